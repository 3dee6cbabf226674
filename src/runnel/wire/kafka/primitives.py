"""What the compiled decoders and encoders call: the rare cases, and the small tables.

Rule 1: nothing read is trusted: every number that steers reading is checked against the bytes that are left.
Rule 2: the common case (one byte of length, no tagged fields) is not here but inline in the compiled code.
"""

from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, NoReturn
from uuid import UUID

from runnel.model.errors import InvalidRequest

Buffer = bytes | bytearray | memoryview

STRING_BYTES_MAX = 32_767  # what the int16 length of the older versions holds; Kafka holds compact strings to it too
ELEMENTS_MAX = 250_000  # array elements and tagged fields a client may send at once: about 100 MB and 0.1 s as objects
TAGGED_FIELDS_MAX = 127  # of one struct; Kafka has 4 at the most
_UVARINT_MAX = 0x7FFF_FFFF  # Kafka reads lengths and tags as int32, in 5 bytes
_KEPT_PACKERS_COUNT_MAX = 64  # arrays above it are too rare to remember a struct for each length
_KEPT_UUIDS_MAX = 8_192  # topics and directories that are named again and again; about 1 MB


class Malformed(InvalidRequest):
    """The bytes are not the message that they claim to be."""


# --- reading
def long_uvarint(frame: memoryview, position: int, first: int) -> tuple[int, int]:
    """The rest of an unsigned varint whose first byte, above 127, was already read."""
    byte = frame[position]
    value = (first & 0x7F) | (byte & 0x7F) << 7
    if byte < 0x80:
        return value, position + 1
    byte = frame[position + 1]
    value |= (byte & 0x7F) << 14
    if byte < 0x80:
        return value, position + 2
    return _longest_uvarint(frame, position + 2, value)


def _longest_uvarint(frame: memoryview, position: int, value: int) -> tuple[int, int]:
    """The fourth and the fifth byte."""
    byte = frame[position]
    value |= (byte & 0x7F) << 21
    if byte < 0x80:
        return value, position + 1
    value |= frame[position + 1] << 28
    if value > _UVARINT_MAX:
        raise Malformed(f"a varint holds more than {_UVARINT_MAX}")
    return value, position + 2


def long_string_size(frame: memoryview, position: int, first: int) -> tuple[int, int]:
    """The same for the length of a compact string, one more than its bytes."""
    size, position = long_uvarint(frame, position, first)
    if size > STRING_BYTES_MAX + 1:
        raise Malformed(f"a string of {size - 1} bytes: the most is {STRING_BYTES_MAX}")
    return size, position


def skip_tags(frame: memoryview, position: int, count: int) -> int:
    """Pass over tagged fields, none of which this version knows."""
    if count > TAGGED_FIELDS_MAX:
        wrong_count("tagged fields", count)
    for _ in range(count):
        _, position = uvarint_at(frame, position)
        size, position = uvarint_at(frame, position)
        position += size
    if position > len(frame):
        raise Malformed("a tagged field is longer than the frame")
    return position


def uvarint_at(frame: memoryview, position: int) -> tuple[int, int]:
    first = frame[position]
    return (first, position + 1) if first < 128 else long_uvarint(frame, position + 1, first)


def wrong_size(field: str, size: int) -> NoReturn:
    raise Malformed(f"{field} has the length {size}, which is not allowed, or more than the frame holds")


def wrong_count(field: str, count: int) -> NoReturn:
    raise Malformed(f"{field} has {count} elements, which is not allowed, or more than the frame holds")


def wrong_end(field: str) -> NoReturn:
    raise Malformed(f"the tagged field {field} has another length than it says")


def wrong_marker(field: str, marker: int) -> NoReturn:
    raise Malformed(f"{field} begins with {marker}: 1 (present) or -1 (null) must stand there")


class _Uuids(dict[bytes, UUID]):
    """UUIDs by their bytes: making one takes a microsecond, and the same few come again and again."""

    def __missing__(self, raw: bytes) -> UUID:
        if len(self) >= _KEPT_UUIDS_MAX:
            self.clear()
        made = self[raw] = UUID(bytes=raw)
        return made


uuids = _Uuids()


class PerCount(dict[int, Callable[..., Any]]):
    """A struct's function for each number of elements, which follow the values of a fixed head."""

    def __init__(self, code: str, function: str, head: str = "") -> None:
        self._code = code
        self._function = function
        self._head = head

    def __missing__(self, count: int) -> Callable[..., Any]:
        made: Callable[..., Any] = getattr(Struct(f">{self._head}{count}{self._code}"), self._function)
        if count <= _KEPT_PACKERS_COUNT_MAX:
            self[count] = made
        return made


# --- writing
one_byte = [bytes([value]) for value in range(128)]
_two_bytes, _three_bytes = Struct("2B").pack, Struct("3B").pack


def uvarint(value: int) -> bytes:
    if value < 1 << 7:
        return one_byte[value]
    if value < 1 << 14:
        return _two_bytes(value & 0x7F | 0x80, value >> 7)
    if value < 1 << 21:
        return _three_bytes(value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14)
    return _three_bytes(value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80) + uvarint(value >> 21)


def uvarint_of_string(size: int) -> bytes:
    """The length of a compact string, one more than its bytes."""
    if size > STRING_BYTES_MAX + 1:
        raise ValueError(f"a string of {size - 1} bytes can't be sent: the protocol's most is {STRING_BYTES_MAX}")
    return uvarint(size)


def tagged_field(tag: int, pieces: Sequence[Buffer]) -> bytes:
    body = b"".join(pieces)
    return uvarint(tag) + uvarint(len(body)) + body


def tag_section(fields: list[bytes]) -> bytes:
    return uvarint(len(fields)) + b"".join(fields)
