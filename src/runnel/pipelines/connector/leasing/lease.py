"""Messages of queues that are leased to a stream, as an offset that Spark keeps.

Rule 1: the offset holds all that is needed to read the same messages again and to settle them: places and receipts.
Rule 2: it also holds what was worked on, but could not be accepted any more as its lease had run out (`finished`): when
        such a message comes again, it is accepted and makes no row.

    {"id": 3, "leases": [{"queue", "topic", "partition", "offsets": [[first, last], ...], "receipts": packed}, ...],
     "finished": [{"queue", "topic", "partition", "offsets"}, ...]}

Receipts are opaque and alike: they are packed together, one for each offset, in the same order.
"""

import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from runnel.model.calls import Delivered

Json: TypeAlias = dict[str, Any]
Stretch: TypeAlias = tuple[int, int]  # the first offset and the last

FINISHED_MAX = 100_000  # offsets that are remembered: those that others took never come again


class Place(NamedTuple):
    """A partition of one of a queue's topics."""

    queue: str
    topic: str
    partition: int


@dataclass(frozen=True)
class Lease:
    """All that one micro-batch has."""

    id: int = 0
    receipts: Mapping[Place, Mapping[int, str]] = field(default_factory=dict)  # by offset, which rise
    finished: Mapping[Place, tuple[Stretch, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return sum(len(each) for each in self.receipts.values())

    def by_queue(self) -> dict[str, list[tuple[Place, int, str]]]:
        """What is leased from each queue."""
        out: dict[str, list[tuple[Place, int, str]]] = {}
        for place, each in self.receipts.items():
            out.setdefault(place.queue, []).extend((place, offset, receipt) for offset, receipt in each.items())
        return out

    def to_json(self) -> Json:
        return {
            "id": self.id,
            "leases": [
                {**place._asdict(), "offsets": stretches(each), "receipts": _packed(each.values())}
                for place, each in self.receipts.items()
            ],
            "finished": [{**place._asdict(), "offsets": list(each)} for place, each in self.finished.items()],
        }

    @classmethod
    def from_json(cls, offset: Json) -> "Lease":
        receipts = {
            _place(each): dict(zip(offsets_in(each["offsets"]), _unpacked(each["receipts"]), strict=True))
            for each in offset["leases"]
        }
        finished = {
            _place(each): tuple((first, last) for first, last in each["offsets"]) for each in offset["finished"]
        }
        return cls(offset["id"], receipts, finished)


def leased(
    id: int, messages: Iterable[tuple[str, Delivered]], finished: Mapping[Place, tuple[Stretch, ...]]
) -> tuple[Lease, Lease]:
    """What came of queues, as a lease of what is new, and one of what was finished before and comes again."""
    new: dict[Place, dict[int, str]] = {}
    known: dict[Place, dict[int, str]] = {}
    past = {place: set(offsets_in(each)) for place, each in finished.items()}
    for queue, message in messages:
        place = Place(queue, message.topic, message.partition)
        into = known if message.offset in past.get(place, ()) else new
        into.setdefault(place, {})[message.offset] = message.receipt
    left = {place: each - known.get(place, {}).keys() for place, each in past.items()}
    still = {place: tuple(stretches(each)) for place, each in left.items() if each}
    return Lease(id, _risen(new), still), Lease(id, _risen(known))


def with_finished(lease: Lease, refused: Iterable[tuple[Place, int]]) -> dict[Place, tuple[Stretch, ...]]:
    """What is finished, with what could not be accepted of a lease; the latest, if that is very much."""
    sets = {place: set(offsets_in(each)) for place, each in lease.finished.items()}
    for place, offset in refused:
        sets.setdefault(place, set()).add(offset)
    excess = sum(map(len, sets.values())) - FINISHED_MAX
    for place, each in sets.items():
        if excess > 0:
            oldest = sorted(each)[:excess]
            sets[place] = each - set(oldest)
            excess -= len(oldest)
    return {place: tuple(stretches(each)) for place, each in sets.items() if each}


def stretches(offsets: Iterable[int]) -> list[Stretch]:
    """Offsets that follow each other, as one."""
    out: list[Stretch] = []
    for offset in sorted(offsets):
        if out and out[-1][1] == offset - 1:
            out[-1] = (out[-1][0], offset)
        else:
            out.append((offset, offset))
    return out


def offsets_in(some: Iterable[Sequence[int]]) -> list[int]:
    return [offset for first, last in some for offset in range(first, last + 1)]


def _risen(receipts: dict[Place, dict[int, str]]) -> dict[Place, dict[int, str]]:
    return {place: dict(sorted(each.items())) for place, each in sorted(receipts.items())}


def _place(said: Json) -> Place:
    return Place(said["queue"], said["topic"], said["partition"])


def _packed(receipts: Iterable[str]) -> str:
    return b64encode(zlib.compress("\n".join(receipts).encode())).decode()


def _unpacked(text: str) -> list[str]:
    return zlib.decompress(b64decode(text)).decode().split("\n")
