"""The two structures that consumers put into the opaque bytes of the classic protocol (protocol type "consumer").

Subscription: i16 version, topics, user data, then v1 owned partitions, v2 generation, v3 rack.
Assignment:   i16 version, partitions by topic, user data.
Only what the coordinator needs is read; versions above ours begin with the same fields.
"""

import struct
from dataclasses import dataclass

CONSUMER = "consumer"  # the protocol type
ASSIGNMENT_VERSION = 0  # the lowest: every consumer reads it

TopicPartitions = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True, slots=True)
class Subscription:
    topics: tuple[str, ...]
    owned: TopicPartitions = ()
    generation: int = -1
    rack_id: str | None = None
    user_data: bytes = b""


class Malformed(ValueError):
    """These bytes are no subscription or assignment of a consumer."""


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    def number(self, form: str) -> int:
        try:
            (value,) = struct.unpack_from(form, self._data, self._position)
        except struct.error:
            raise Malformed("the bytes end early") from None
        self._position += struct.calcsize(form)
        return int(value)

    def take(self, size: int) -> bytes:
        if size < 0 or self._position + size > len(self._data):
            raise Malformed("a length points beyond the end")
        self._position += size
        return self._data[self._position - size : self._position]

    def string(self) -> str:
        return self._text(self.number(">h"))

    def nullable_string(self) -> str | None:
        size = self.number(">h")
        return None if size < 0 else self._text(size)

    def nullable_bytes(self) -> bytes:
        size = self.number(">i")
        return b"" if size < 0 else self.take(size)

    def count(self, bytes_min: int) -> int:
        count = self.number(">i")
        if count * bytes_min > len(self._data) - self._position:
            raise Malformed("an array is longer than the bytes left")
        return count  # -1, a null array, reads as empty

    def partitions(self) -> TopicPartitions:
        return tuple((self.string(), self._numbers()) for _ in range(self.count(6)))

    def _numbers(self) -> tuple[int, ...]:
        return tuple(self.number(">i") for _ in range(self.count(4)))

    def _text(self, size: int) -> str:
        try:
            return self.take(size).decode()
        except UnicodeDecodeError:
            raise Malformed("a name is no UTF-8") from None


def read_subscription(data: bytes) -> Subscription:
    reader = _Reader(data)
    version = reader.number(">h")
    if version < 0:
        raise Malformed(f"subscription version {version}")
    topics = tuple(reader.string() for _ in range(reader.count(2)))
    user_data = reader.nullable_bytes()
    owned = reader.partitions() if version >= 1 else ()
    generation = reader.number(">i") if version >= 2 else -1
    rack_id = reader.nullable_string() if version >= 3 else None
    return Subscription(topics, owned, generation, rack_id, user_data)


def read_assignment(data: bytes) -> TopicPartitions:
    """The partitions of an assignment; no bytes at all are an empty one."""
    if not data:
        return ()
    reader = _Reader(data)
    if reader.number(">h") < 0:
        raise Malformed("negative assignment version")
    return reader.partitions()


def write_subscription(subscription: Subscription, version: int = 3) -> bytes:
    parts = [struct.pack(">hi", version, len(subscription.topics)), *map(_string, subscription.topics)]
    parts.append(struct.pack(">i", len(subscription.user_data)) + subscription.user_data)
    if version >= 1:
        parts.append(_partitions(subscription.owned))
    if version >= 2:
        parts.append(struct.pack(">i", subscription.generation))
    if version >= 3:
        parts.append(struct.pack(">h", -1) if subscription.rack_id is None else _string(subscription.rack_id))
    return b"".join(parts)


def write_assignment(partitions: TopicPartitions) -> bytes:
    return struct.pack(">h", ASSIGNMENT_VERSION) + _partitions(partitions) + struct.pack(">i", -1)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def _partitions(topics: TopicPartitions) -> bytes:
    parts = [struct.pack(">i", len(topics))]
    for name, numbers in topics:
        parts.append(_string(name) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers))
    return b"".join(parts)
