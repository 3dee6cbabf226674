"""The fields of a message's JSON value.

Rule 1: a message's value is parsed once at most, and only if the evaluation comes to a field of the body.
Rule 2: only the fields that the filter names are built; the rest is skipped, which costs a fifth of the time. A value
        of another shape than the names suggest (a list where a field has a name) is parsed as a whole.
Rule 3: what is no JSON (model/json_values.py), or is larger than 4 MiB, has no fields: all are NULL, whichever of them
        the filter names. A number that no float holds is NULL by itself.
"""

from collections.abc import Iterable
from typing import Any, TypeAlias, Union

import msgspec
from msgspec import Struct, ValidationError
from msgspec.json import Decoder

from runnel.model.json_values import must_be_utf8, parse
from runnel.model.limits import MIB
from runnel.model.unreadable import UNREADABLE
from runnel.route.message import Message
from runnel.route.syntax import Path

PATHS_MAX = 64  # more of them, or deeper ones, are parsed as a whole: such types would be slow to make
DEPTH_MAX = 8
BYTES_MAX = 4 * MIB  # of a value: a larger one would hold everything else up for too long

_Tree: TypeAlias = dict[str, "_Tree | None"]  # the fields below a field; None: all that is there


class Body:
    """How to read the JSON values of messages for one filter."""

    def __init__(self, paths: Iterable[Path]) -> None:
        tree = _tree_of(set(paths))
        self._names = {name: f"field_{number}" for number, name in enumerate(sorted(_names_in(tree)))} if tree else {}
        self._some: Decoder[Any] | None = Decoder(self._type_of(tree)) if tree else None

    def parse(self, message: Message) -> Any:
        """The value, as far as the filter looks into it."""
        value = message.value
        if not value or len(value) > BYTES_MAX:
            return None
        try:
            if self._some is not None:
                must_be_utf8(value)
                try:
                    return self._some.decode(value)
                except ValidationError:
                    pass  # well-formed as far as it was read, but of another shape, or with a number that is too large
            return parse(value)
        except UNREADABLE:
            return None

    def at(self, found: Any, path: Path) -> Any:
        """What lies at a path of a parsed value; None where nothing does."""
        names = self._names
        for step in path:
            if isinstance(found, Struct):
                found = getattr(found, names[step])  # type: ignore[index]
            elif type(found) is dict:
                found = found.get(step)
            elif type(found) is list and type(step) is int and step < len(found):
                found = found[step]
            else:
                return None
        return found

    def _type_of(self, tree: _Tree) -> Any:
        """A type that has these fields alone. An absent one is None, as null is."""
        fields: list[tuple[str, Any, Any]] = [
            (self._names[name], Any if below is None else Union[self._type_of(below), None], None)  # noqa: UP007
            for name, below in tree.items()
        ]
        return msgspec.defstruct("Body", fields, rename={self._names[name]: name for name in tree}, gc=False)


def _tree_of(paths: set[Path]) -> _Tree | None:
    """The names that begin these paths; None if the whole value is wanted, or too much of it."""
    if len(paths) > PATHS_MAX:
        return None
    root: _Tree = {}
    for path in sorted(paths, key=len, reverse=True):  # a short one takes all that longer ones took a part of
        named = path[: next((at for at, step in enumerate(path) if not _can_be_a_field(step)), len(path))]
        if not named or len(named) > DEPTH_MAX:
            return None
        tree = root
        for step in named[:-1]:
            below = tree.setdefault(str(step), {})
            if below is None:
                break
            tree = below
        else:
            tree[str(named[-1])] = None
    return root


def _can_be_a_field(step: str | int) -> bool:
    return isinstance(step, str) and step.isprintable() and not set(step) & {'"', "\\"}  # msgspec takes no others


def _names_in(tree: _Tree) -> set[str]:
    return set(tree).union(*(_names_in(below) for below in tree.values() if below))
