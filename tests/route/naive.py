"""Filters once more, as trees that are evaluated by the book: slow, and with nothing shared with the compiler.

Each expression is a tuple; `written` gives its text, `worth` what it is for a message.
"""

import json
import re
from collections.abc import Callable
from typing import Any, TypeAlias

from runnel.route.message import View

Expression: TypeAlias = tuple[Any, ...]
PLAIN = ("key", "value", "topic", "partition", "offset")
NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


class Raw(str):
    """Text that is read as a number or a truth value if such a one stands beside it."""


# --- text
def written(tree: Expression) -> str:
    """The text of an expression, with parentheses wherever they are not needed."""
    match tree:
        case "literal", value:
            return _literal(value)
        case "field", root, *path:
            return str(root) + "".join(f'."{step}"' if isinstance(step, str) else f"[{step}]" for step in path)
        case "not", inner:
            return f"NOT ({written(inner)})"
        case "null", inner:
            return f"({written(inner)}) IS NULL"
        case "like", inner, pattern:
            return f"({written(inner)}) LIKE {_literal(pattern)}"
        case "in", inner, values:
            return f"({written(inner)}) IN ({', '.join(_literal(value) for value in values)})"
        case "between", inner, low, high:
            return f"({written(inner)}) BETWEEN ({written(low)}) AND ({written(high)})"
        case sign, left, right:
            return f"({written(left)}) {sign} ({written(right)})"
    raise AssertionError(tree)


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "TRUE" if value else "FALSE"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    return repr(value)


# --- worth
def worth(tree: Expression, message: View) -> Any:
    match tree:
        case "literal", value:
            return value
        case "field", *path:
            return _field(path, message)
        case "not", inner:
            return _contrary(truth(worth(inner, message)))
        case "and", left, right:
            return _least(truth(worth(left, message)), truth(worth(right, message)))
        case "or", left, right:
            neither = _least(*(_contrary(truth(worth(each, message))) for each in (left, right)))
            return _contrary(neither)
        case "null", inner:
            return worth(inner, message) is None
        case "like", inner, pattern:
            found = worth(inner, message)
            return like(found, pattern) if isinstance(found, str) else None
        case "in", inner, values:
            equal = [_compared("=", worth(inner, message), value) for value in values]
            return True if True in equal else None if None in equal else False
        case "between", inner, low, high:
            value = worth(inner, message)
            above, below = worth(low, message), worth(high, message)
            return _least(_compared(">=", value, above), _compared("<=", value, below))
        case sign, left, right if sign in "+-*/":
            return _operated(sign, number(worth(left, message)), number(worth(right, message)))
        case sign, left, right:
            return _compared(sign, worth(left, message), worth(right, message))
    raise AssertionError(tree)


def _field(path: list[str | int], message: View) -> Any:
    root, *rest = path
    if root == "headers":
        return _raw(dict(message.headers).get(str(rest[0])))
    if root == "tag":
        return _raw(dict(message.headers).get("runnel-tag"))
    if root == "body":
        return _body(message.value, rest)
    found = getattr(message, str(root))
    return _raw(found) if root in ("key", "value") else found


def _raw(found: bytes | None) -> Raw | None:
    return None if found is None else Raw(found.decode("utf-8", "surrogateescape"))


def _body(value: bytes | None, path: list[str | int]) -> Any:
    try:
        found = json.loads(value or b"")
    except ValueError:
        return None
    for step in path:
        if isinstance(found, dict) and isinstance(step, str):
            found = found.get(step)
        elif isinstance(found, list) and isinstance(step, int) and step < len(found):
            found = found[step]
        else:
            return None
    return found


def truth(found: Any) -> bool | None:
    if isinstance(found, Raw):
        return {"true": True, "false": False}.get(found.lower())
    return found if isinstance(found, bool) else None


def number(found: Any) -> int | float | None:
    if isinstance(found, Raw):
        if len(found) > 40 or not NUMBER.fullmatch(found):
            return None
        return number(int(found) if found.lstrip("+-").isdigit() else float(found))
    if isinstance(found, bool) or not isinstance(found, int | float):
        return None
    if isinstance(found, int) and not -(2**63) <= found < 2**63:
        found = float(found)
    return found if abs(found) < float("inf") else None


def _contrary(one: bool | None) -> bool | None:
    return None if one is None else not one


def _least(one: bool | None, other: bool | None) -> bool | None:
    return False if False in (one, other) else None if None in (one, other) else True


def _operated(sign: str, one: int | float | None, other: int | float | None) -> int | float | None:
    if one is None or other is None or (sign == "/" and other == 0):
        return None
    return number({"+": one + other, "-": one - other, "*": one * other}[sign] if sign != "/" else one / other)


COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": lambda a, b: a == b, "<>": lambda a, b: a != b, "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b, ">": lambda a, b: a > b, ">=": lambda a, b: a >= b,
}  # fmt: skip


def _compared(sign: str, one: Any, other: Any) -> bool | None:
    if one is None or other is None:
        return None
    for raw, beside in ((one, other), (other, one)):
        if isinstance(raw, Raw) and not isinstance(beside, str):
            if isinstance(beside, bool):
                return (
                    None if truth(raw) is None or sign not in ("=", "<>") else COMPARE[sign](truth(one), truth(other))
                )
            one, other = number(one), number(other)
            return None if one is None or other is None else COMPARE[sign](one, other)
    if isinstance(one, bool) or isinstance(other, bool):
        same = isinstance(one, bool) and isinstance(other, bool) and sign in ("=", "<>")
        return COMPARE[sign](one, other) if same else None
    if isinstance(one, str) or isinstance(other, str):
        return COMPARE[sign](str(one), str(other)) if isinstance(one, str) and isinstance(other, str) else None
    one, other = number(one), number(other)
    return None if one is None or other is None else COMPARE[sign](one, other)


def like(text: str, pattern: str) -> bool:
    """By dynamic programming: which prefixes of the pattern match the text so far."""
    reached = [True, *(False for _ in pattern)]
    for at, character in enumerate(pattern):
        reached[at + 1] = reached[at] and character == "%"
    for letter in text:
        before, reached = reached, [False] * (len(pattern) + 1)
        for at, character in enumerate(pattern):
            if character == "%":
                reached[at + 1] = reached[at] or before[at + 1]
            else:
                reached[at + 1] = before[at] and character in ("_", letter)
    return reached[-1]
