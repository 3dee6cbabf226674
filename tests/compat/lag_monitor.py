"""What monitors of lag make of `__consumer_offsets`, written from the layout that Kafka publishes and nothing of ours.

As Burrow and kminion do it: the key's first int16 says what the record is; 0 and 1 are offsets, 2 is a group, all else
is left alone. Of values they know the versions that are not flexible. A key or value that can't be read is a failure.
"""

import struct
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, TopicPartition

TOPIC = "__consumer_offsets"
LIMIT_S = 30


class Bytes:
    """Fields in their order; what is missing raises."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def number(self, form: str) -> int:
        (value,) = struct.unpack_from(">" + form, self._data, self._at)
        self._at += struct.calcsize(">" + form)
        return int(value)

    def take(self, size: int) -> bytes:
        taken = self._data[self._at : self._at + size]
        assert len(taken) == size, "a length points beyond the end"
        self._at += size
        return taken

    def string(self) -> str:
        size = self.number("h")
        return "" if size < 0 else self.take(size).decode()

    def blob(self) -> bytes:
        return self.take(max(self.number("i"), 0))

    def end(self) -> None:
        assert self._at == len(self._data), f"{len(self._data) - self._at} bytes too many"


@dataclass
class Seen:
    """All that the topic says."""

    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    committed_ms: dict[tuple[str, str, int], int] = field(default_factory=dict)
    owners: dict[str, dict[tuple[str, int], str]] = field(default_factory=dict)  # client ids, by group
    skipped: set[int] = field(default_factory=set)  # types of records

    def take(self, key: bytes, value: bytes | None) -> None:
        read = Bytes(key)
        match read.number("h"):
            case 0 | 1:
                about = (read.string(), read.string(), read.number("i"))
                read.end()
                self._offset(about, value)
            case 2:
                group = read.string()
                read.end()
                self.owners[group] = {} if value is None else _owners(Bytes(value))
            case other:
                self.skipped.add(other)

    def _offset(self, about: tuple[str, str, int], value: bytes | None) -> None:
        if value is None:
            self.offsets.pop(about, None)
            return
        read = Bytes(value)
        version = read.number("h")
        assert version in (0, 1, 3), f"Burrow can't read version {version}"
        self.offsets[about] = read.number("q")
        if version == 3:
            read.number("i")  # the leader's epoch
        read.string()  # metadata
        self.committed_ms[about] = read.number("q")
        if version == 1:
            read.number("q")  # when it expires
        read.end()


def _owners(read: Bytes) -> dict[tuple[str, int], str]:
    """Who reads which partition, by client id."""
    version = read.number("h")
    assert version in (0, 1, 2, 3), f"Burrow can't read version {version}"
    protocol_type, _, _, _ = read.string(), read.number("i"), read.string(), read.string()
    if version >= 2:
        read.number("q")  # since when
    owners: dict[tuple[str, int], str] = {}
    for _ in range(read.number("i")):
        client_id, assignment = _member(read, version)
        if protocol_type == "consumer" and assignment:
            owners |= dict.fromkeys(_assigned(Bytes(assignment)), client_id)
    read.end()
    return owners


def _member(read: Bytes, version: int) -> tuple[str, bytes]:
    read.string()  # the member's id
    if version == 3:
        read.string()  # its instance
    client_id, _ = read.string(), read.string()
    if version >= 1:
        read.number("i")  # the rebalance timeout
    read.number("i")  # the session timeout
    read.blob()  # its subscription
    return client_id, read.blob()


def _assigned(read: Bytes) -> list[tuple[str, int]]:
    assert read.number("h") >= 0
    topics = [(read.string(), [read.number("i") for _ in range(read.number("i"))]) for _ in range(read.number("i"))]
    return [(topic, number) for topic, numbers in topics for number in numbers]


class LagMonitor:
    """Reads the topic with an ordinary consumer."""

    def __init__(self, address: str) -> None:
        settings = {"bootstrap.servers": address, "group.id": "monitor", "enable.auto.commit": False}
        self._consumer: Any = Consumer({**settings, "enable.partition.eof": True})

    def look(self) -> Seen:
        """The topic from its beginning to its end."""
        numbers = self._consumer.list_topics(TOPIC, LIMIT_S).topics[TOPIC].partitions
        self._consumer.assign([TopicPartition(TOPIC, number, 0) for number in numbers])
        seen, left = Seen(), set(numbers)
        while left:
            message = self._consumer.poll(LIMIT_S)
            assert message is not None, f"no end of {left}"
            if message.error():
                left.discard(message.partition())
            else:
                seen.take(message.key(), message.value())
        return seen

    def lag(self, group: str, topic: str, partition: int) -> int | None:
        """How many messages a group has not read; None if the topic does not say how far it is."""
        offset = self.look().offsets.get((group, topic, partition))
        _, end = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), LIMIT_S)
        return None if offset is None else int(end) - offset

    def close(self) -> None:
        self._consumer.close()
