"""What must stand in a message for a filter to let it pass: so that batches without it need not be taken apart.

Rule 1: of the byte strings that are told, each message that passes has at least one, in its key, its value or its
        headers. None are told where nothing of the kind is known.
Rule 2: a value that is compared says more than the name of its header: names are told only where there is no value.
"""

from collections.abc import Callable
from typing import Final, TypeAlias

from runnel.model.headers import TAG
from runnel.route import syntax as s
from runnel.route.like import pieces_of

ALTERNATIVES_MAX: Final = 8  # each of them is looked for

Needs: TypeAlias = tuple[bytes, ...]
RAW: Final = ("key", "value", "headers", "tag")


def needs_of(tree: s.Node) -> Needs:
    """One of these is in every message that passes."""
    return _needs(tree, _value_of) or _needs(tree, _name_of)


def _needs(node: s.Node, leaf: Callable[[s.Node], Needs]) -> Needs:
    match node:
        case s.All(parts):
            return max((_needs(part, leaf) for part in parts), key=lambda need: min(map(len, need), default=0))
        case s.Any(parts):
            each = [_needs(part, leaf) for part in parts]
            together = tuple(dict.fromkeys(text for need in each for text in need))
            return together if all(each) and len(together) <= ALTERNATIVES_MAX else ()
    return leaf(node)


def _value_of(node: s.Node) -> Needs:
    match node:
        case s.Compare("=", s.Field(root), s.Literal(str(text))) | s.Compare("=", s.Literal(str(text)), s.Field(root)):
            found: Needs = (text.encode(),)
        case s.In(s.Field(root), values) if len(values) <= ALTERNATIVES_MAX:
            found = tuple(value.encode() for value in values if isinstance(value, str))
            found = found if len(found) == len(values) else ()
        case s.Like(s.Field(root), pattern, escape):
            found = (max(pieces_of(pattern, escape), key=len, default="").encode(),)
        case _:
            return ()
    return found if root in RAW and all(found) else ()


def _name_of(node: s.Node) -> Needs:
    match node:
        case s.Compare(_, s.Field(root, path)) | s.Compare(_, _, s.Field(root, path)):
            pass
        case s.Between(s.Field(root, path)) | s.In(s.Field(root, path)) | s.Like(s.Field(root, path)):
            pass
        case s.Not(s.IsNull(s.Field(root, path))):
            pass
        case _:
            return ()
    if root == "tag":
        return (TAG.encode(),)
    return (str(path[0]).encode(),) if root == "headers" and path and path[0] else ()
