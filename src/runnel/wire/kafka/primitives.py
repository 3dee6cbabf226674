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
REQUEST_ELEMENTS_MAX = 1_000_000  # array elements in one request: bounds what 100 MB of tiny elements cost as objects
_UVARINT_MAX = 0x7FFF_FFFF  # Kafka reads lengths and tags as int32
_KEPT_PACKERS_COUNT_MAX = 64  # arrays above it are too rare to remember a struct for each length
_KEPT_UUIDS_MAX = 8_192  # topics and directories that are named again and again; about 1 MB


class Malformed(InvalidRequest):
    """The bytes are not the message that they claim to be."""


# --- reading
def long_uvarint(frame: memoryview, position: int, first: int) -> tuple[int, int]:
    """The rest of an unsigned varint whose first byte, above 127, was already read."""
    value = first & 0x7F
    for shift in (7, 14, 21, 28):
        byte = frame[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
    else:
        raise Malformed("a varint is longer than 5 bytes")
    if value > _UVARINT_MAX:
        raise Malformed(f"a varint holds {value}, the most is {_UVARINT_MAX}")
    return value, position


def skip_tags(frame: memoryview, position: int, count: int) -> int:
    """Pass over tagged fields, none of which this version knows; `count` is the first byte of their number."""
    if count > 127:
        count, position = long_uvarint(frame, position, count)
    if count > (len(frame) - position) // 2:
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
    raise Malformed(f"{field} has the length {size}, which is not allowed or more than the frame holds")


def wrong_count(field: str, count: int) -> NoReturn:
    raise Malformed(f"{field} has {count} elements, which is not allowed or more than the frame holds")


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


class _PerCount(dict[int, Callable[..., Any]]):
    """A struct's function for each number of elements."""

    def __init__(self, code: str, function: str) -> None:
        self._code = code
        self._function = function

    def __missing__(self, count: int) -> Callable[..., Any]:
        made: Callable[..., Any] = getattr(Struct(f">{count}{self._code}"), self._function)
        if count <= _KEPT_PACKERS_COUNT_MAX:
            self[count] = made
        return made


def unpackers(code: str) -> _PerCount:
    return _PerCount(code, "unpack_from")


def packers(code: str) -> _PerCount:
    return _PerCount(code, "pack")


# --- writing
def uvarint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def long_string_size(size: int) -> bytes:
    """The length of a compact string, one more than its bytes."""
    if size > STRING_BYTES_MAX + 1:
        raise ValueError(f"a string of {size - 1} bytes can't be sent: the protocol's most is {STRING_BYTES_MAX}")
    return uvarint(size)


def tagged_field(tag: int, pieces: Sequence[Buffer]) -> bytes:
    body = b"".join(pieces)
    return uvarint(tag) + uvarint(len(body)) + body


def tag_section(fields: list[bytes]) -> bytes:
    return uvarint(len(fields)) + b"".join(fields)
