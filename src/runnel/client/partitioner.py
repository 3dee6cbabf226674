"""Which partition a message goes to: by its key as every Kafka client does, else wherever the batch under way goes."""

from collections.abc import Sequence

from runnel.model.errors import InvalidConfig

_MASK = 0xFFFFFFFF
SEED = 0x9747B28C
MULTIPLIER = 0x5BD1E995
SHIFT = 24


def murmur2(data: bytes) -> int:
    """The 32-bit MurmurHash2 of Java's client, as an unsigned number."""
    length = len(data)
    h = SEED ^ length
    whole = length & ~3
    for at in range(0, whole, 4):
        k = int.from_bytes(data[at : at + 4], "little") * MULTIPLIER & _MASK
        k = (k ^ k >> SHIFT) * MULTIPLIER & _MASK
        h = h * MULTIPLIER & _MASK ^ k
    if length > whole:
        h = (h ^ int.from_bytes(data[whole:], "little")) * MULTIPLIER & _MASK
    h = (h ^ h >> 13) * MULTIPLIER & _MASK
    return h ^ h >> 15


def partition_of_key(key: bytes, count: int) -> int:
    """The partition of a key in a topic with so many partitions: the same as Java's."""
    return (murmur2(key) & 0x7FFFFFFF) % count


class Sticky:
    """Messages without a key fill one batch, then turn to the next partition: few, large batches, evenly spread."""

    def __init__(self, first: int = 0) -> None:
        self._first = first  # where to begin: short-lived producers should not all choose partition 0
        self._turn: dict[str, int] = {}

    def choose(self, topic: str, key: bytes | None, available: Sequence[int], count: int) -> int:
        if key is not None:
            return partition_of_key(key, count)
        return available[self._turn.get(topic, self._first) % len(available)]

    def batch_closed(self, topic: str) -> None:
        self._turn[topic] = self._turn.get(topic, self._first) + 1


class RoundRobin(Sticky):
    """Every message without a key goes to the next partition."""

    def choose(self, topic: str, key: bytes | None, available: Sequence[int], count: int) -> int:
        chosen = super().choose(topic, key, available, count)
        if key is None:
            self._turn[topic] = self._turn.get(topic, self._first) + 1
        return chosen

    def batch_closed(self, topic: str) -> None:
        """The turn does not depend on batches."""


PARTITIONERS: dict[str, type[Sticky]] = {"sticky": Sticky, "round-robin": RoundRobin}


def partitioner(name: str, first: int = 0) -> Sticky:
    """The partitioner of this name; `first` is a number, best drawn by lot, that says where it begins."""
    if name not in PARTITIONERS:
        raise InvalidConfig(f"partitioner can't be {name!r}: allowed are {', '.join(PARTITIONERS)}")
    return PARTITIONERS[name](first)
