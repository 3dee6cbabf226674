"""What the parts of a filter are worth for one message: fields, their kinds, and how one kind is read as another.

Rule 1: whatever a message holds, reading it gives a value or None (NULL), and never raises.
Rule 2: bytes are as they came; beside a number they are read as a number, beside a truth value as one, else as text.
        Values of the body keep the types that JSON gave them: a text there is no number.
Rule 3: numbers are 64 bits wide: wider whole ones become floating, and what no float holds is NULL.
"""

import re
from collections.abc import Callable
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from runnel.route.body import Body
from runnel.route.message import Message
from runnel.route.syntax import Path

INT_MIN, INT_MAX = -(2**63), 2**63 - 1
NUMBER_CHARACTERS_MAX = 40  # a longer text is no number: reading it could cost more than its length

Scratch: TypeAlias = list[Any]  # what was found out about the message under evaluation; one place each
Get: TypeAlias = Callable[[Message, Scratch], Any]

UNSEEN: Final = object()  # what a place holds before
BODY, HEADERS = 0, 1  # places that have a fixed meaning
FIXED = 2

_NUMBER = re.compile(rb"[+-]?(?:[0-9]+(\.[0-9]*)?|(\.[0-9]+))([eE][+-]?[0-9]+)?")
_TRUTHS = {b"true": True, b"TRUE": True, b"True": True, b"false": False, b"FALSE": False, b"False": False}


class Kind(Enum):
    """What is known of a value before any message is seen."""

    RAW = "bytes"  # read as what stands beside it
    TEXT = "a text"
    NUMBER = "a number"
    TIME = "a time"  # a number of milliseconds; beside a text, that is read as a date
    TRUTH = "a condition"
    ANY = "a JSON value"  # known only when a message is seen


class Operand(NamedTuple):
    """How to get a value, and what is known of it."""

    kind: Kind
    get: Get
    constant: Any = None  # the value itself, if it stands in the filter


# --- fields
def header_getter(name: str) -> Get:
    """The last header of a name, as Kafka's lastHeader gives it."""

    def get(message: Message, _: Scratch) -> bytes | None:
        found = None
        for each, value in message.headers:
            if each == name:
                found = value
        return found

    return get


def indexed_header_getter(name: str) -> Get:
    """The same, for filters that look at several: whatever their number, the headers are walked once."""

    def get(message: Message, scratch: Scratch) -> bytes | None:
        headers = scratch[HEADERS]
        if headers is UNSEEN:
            headers = scratch[HEADERS] = dict(message.headers)
        found: bytes | None = headers.get(name)
        return found

    return get


def body_getter(body: Body, path: Path) -> Get:
    """What lies in the JSON value at a path."""
    parse, at = body.parse, body.at

    def get(message: Message, scratch: Scratch) -> Any:
        found = scratch[BODY]
        if found is UNSEEN:
            found = scratch[BODY] = parse(message)
        return at(found, path)

    return get


PLAIN: dict[str, Operand] = {
    "key": Operand(Kind.RAW, lambda message, _: message.key),
    "value": Operand(Kind.RAW, lambda message, _: message.value),
    "topic": Operand(Kind.TEXT, lambda message, _: message.topic),
    "partition": Operand(Kind.NUMBER, lambda message, _: message.partition),
    "offset": Operand(Kind.NUMBER, lambda message, _: message.offset),
    "timestamp": Operand(Kind.TIME, lambda message, _: None if message.timestamp_ms < 0 else message.timestamp_ms),
}
ROOTS: tuple[str, ...] = ("body", "headers", *PLAIN, "tag")


# --- one kind read as another
def text_of_bytes(raw: bytes) -> str:
    """Bytes that are not UTF-8 become characters that no filter can hold, so that they equal nothing by chance."""
    return raw.decode("utf-8", "surrogateescape")


def number_of_bytes(raw: bytes) -> int | float | None:
    if len(raw) > NUMBER_CHARACTERS_MAX:
        return None
    found = _NUMBER.fullmatch(raw)
    if found is None:
        return None
    return number_of(int(raw) if found.lastindex is None else float(raw))


def truth_of_bytes(raw: bytes) -> bool | None:
    return _TRUTHS.get(raw)


def number_of(value: Any) -> int | float | None:
    """A number of at most 64 bits; None for what is none."""
    if type(value) is int:
        return value if INT_MIN <= value <= INT_MAX else _as_float(value)
    if type(value) is float:
        return value if value - value == 0.0 else None  # neither infinite nor NaN
    return None


def _as_float(value: int) -> float | None:
    try:
        return float(value)
    except OverflowError:
        return None


def comparable(left: Any, right: Any) -> tuple[Any, Any] | None:
    """Two values of kinds that only the message tells, as what can be compared; None if they can't."""
    if type(left) is bytes:
        left = _beside(left, right)
    if type(right) is bytes:
        right = _beside(right, left)
    if type(left) is str or type(left) is bool:
        return (left, right) if type(left) is type(right) else None
    left, right = number_of(left), number_of(right)
    return None if left is None or right is None else (left, right)


def _beside(raw: bytes, other: Any) -> Any:
    match other:
        case bool():
            return truth_of_bytes(raw)
        case int() | float():
            return number_of_bytes(raw)
    return text_of_bytes(raw)
