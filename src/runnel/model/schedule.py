"""The schedule's values, the calls that carry them to a shard's leader, and the seam of its index.

A message waits under its target (a partition, by the topic's id) and its id; the same id may wait for other targets.
"""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, Protocol, TypeAlias
from uuid import UUID

from runnel.model.calls import Failure, Header, PendingCount, Value, Verb
from runnel.model.ids import PartitionKey
from runnel.model.topic_config import DAY_MS

CANCELLED_MS: Final = DAY_MS  # that a message was cancelled is known for so long
NEWEST: Final = -2  # instead of a floor: it was never sent before, so the schedule itself sees to it
DUE_MS_MAX: Final = 253_402_300_799_999  # the year 9999, the last one that ISO 8601 can write


class Parked(Value, frozen=True):
    """A message that is to wait for its time.

    `floor`: as in model/once.py, of the target. With WINDOW the id is the message's own name, within the window; what
    waits under it already keeps its time, unless it is to be replaced.
    `again`: an earlier request may have been carried out, and its message may have been sent since; `floor` was seen
    before that request.
    """

    id: str
    due_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    floor: int = NEWEST
    replaces: bool = False
    again: bool = False


class Park(Value, frozen=True):
    topic_id: UUID
    partition: int
    messages: list[Parked]


class WhenDue(Value, frozen=True):
    """For each message, in order: when it is due. One that waited already keeps its time."""

    due_ms: list[int]


class CancelHere(Value, frozen=True):
    """Cancel what the shards that this broker leads have of these ids; with a time, move it there instead."""

    ids: list[str]
    due_ms: int | None = None


class ChangedHere(Value, frozen=True):
    """For each id, in order: whether something of it waited here, and why it could not be changed."""

    found: list[bool]
    failures: list[Failure | None]


class FirstHere(Value, frozen=True):
    topic_id: UUID | None  # of all topics, if None
    from_ms: int
    after_id: str
    messages_max: int


class WaitingRow(Value, frozen=True):
    topic_id: UUID
    partition: int
    id: str
    due_ms: int
    body: bytes


class WaitingRows(Value, frozen=True):
    rows: list[WaitingRow]


class CountHere(Value, frozen=True):
    topic_id: UUID | None


class NamedHere(Value, frozen=True):
    id: str


SCHEDULE_PARK: Final = Verb("schedule.park", Park, WhenDue, waits=True)
SCHEDULE_CHANGE_HERE: Final = Verb("schedule.change.here", CancelHere, ChangedHere, waits=True)
SCHEDULE_FIRST_HERE: Final = Verb("schedule.first.here", FirstHere, WaitingRows, waits=True)
SCHEDULE_NAMED_HERE: Final = Verb("schedule.named.here", NamedHere, WaitingRows, waits=True)
SCHEDULE_COUNT_HERE: Final = Verb("schedule.count.here", CountHere, PendingCount, waits=True)


# --- the index of one shard: what waits, by time and by id
class Front(NamedTuple):
    """Nothing of a target that is due later was ever sent; nothing was ever sent that could lie below the floor."""

    upto_ms: int
    floor: int


class Put(NamedTuple):
    target: PartitionKey
    id: str
    due_ms: int
    offset: int  # of its record in the schedule's log
    body: bytes


class Drop(NamedTuple):
    target: PartitionKey
    id: str
    cancelled_ms: int | None = None  # when it was cancelled; None: it was sent, or went with its topic


class Move(NamedTuple):
    """The front of a target is here now; nowhere, if None."""

    target: PartitionKey
    front: Front | None


Change: TypeAlias = Put | Drop | Move


class Row(NamedTuple):
    """One message that waits."""

    target: PartitionKey
    id: str
    due_ms: int
    offset: int
    body: bytes


class TargetRow(NamedTuple):
    """What waits for one target."""

    target: PartitionKey
    pending: int
    next_due_ms: int | None
    front: Front | None


class Applied(NamedTuple):
    """How far an index has followed the log: the next offset, and the leader epoch of what lies before."""

    offset: int
    epoch: int


class IndexDamaged(Exception):
    """An index can't be read or written: it has to be built again."""


class DueIndex(Protocol):
    """An index that may block, and is used by one at a time. Every method may raise IndexDamaged.

    It holds what the log says up to `applied`, and survives a crash of the process as of some earlier moment.
    """

    def applied(self) -> Applied: ...

    def apply(self, changes: Sequence[Change], applied: Applied) -> None:
        """Take over what the log says next, all of it or nothing."""
        ...

    def targets(self) -> list[TargetRow]: ...

    def due(self, target: PartitionKey, upto_ms: int, rows_max: int, bytes_max: int) -> list[Row]:
        """The first that are due until then, in the order of their times; at least one, if there is one."""
        ...

    def next_due_ms(self, target: PartitionKey, after_ms: int, offset: int) -> int | None:
        """When the first one is due behind the place of one that is due then."""
        ...

    def named(self, id: str) -> list[Row]: ...

    def get(self, target: PartitionKey, id: str) -> Row | None: ...

    def cancelled_ms(self, id: str) -> int | None:
        """When a message of this id was cancelled last, if none came under it since; known for a day."""
        ...

    def first(self, target: PartitionKey, from_ms: int, after_id: str, rows_max: int) -> list[Row]:
        """From a time on, in the order of times and ids; of those that are due just then, those behind an id."""
        ...

    def close(self) -> None: ...

    def destroy(self) -> None:
        """Close it, and leave nothing behind."""
        ...


# The index in this file below the data directory; an empty one, if there is none that can be read.
OpenDueIndex: TypeAlias = Callable[[str], DueIndex]
