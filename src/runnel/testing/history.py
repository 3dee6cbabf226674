"""What clients did and saw: the input of the checker. Times are seconds of one clock, that of the test.

A process is one life of one client: after a crash, or when it is made anew, the client is another process.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from runnel.model.calls import Outcome

Records = Mapping[str, list[tuple[int, str]]]  # key -> (offset, value), in the order in which they were handed out
NEVER = float("inf")


class Status(Enum):
    OK = "ok"  # acknowledged
    FAIL = "fail"  # certainly not done
    INFO = "info"  # nobody knows


class Row(NamedTuple):
    """A part of a batch that a sink publishes."""

    sink: str
    batch: int
    number: int


@dataclass(slots=True)
class Send:
    """One message on its way to one partition (`key`); it may be there until somebody says that it is not."""

    process: str
    key: str
    value: str
    begun: float = 0.0
    ended: float = NEVER
    status: Status = Status.INFO
    offset: int | None = None
    durable: bool = True  # sent with acks=all: what is acknowledged must survive
    idempotent: bool = True
    transactional: bool = False  # then its status is that of its transaction
    source: tuple[str, int] | None = None  # where the message lies that was turned into this one
    row: Row | None = None  # what it is of a batch; it may be sent more than once


@dataclass(slots=True)
class Poll:
    """Messages that were handed out. In a group, by whom and in which generation."""

    process: str
    records: Records
    begun: float = 0.0
    ended: float = 0.0
    group: str | None = None
    member: str = ""
    generation: int = -1
    final: bool = False  # part of the reading of everything at the end


@dataclass(slots=True)
class Assigned:
    """From now on the process reads these partitions, from these offsets on."""

    process: str
    positions: Mapping[str, int]


@dataclass(slots=True)
class Commit:
    """Offsets that a member stored for its group."""

    group: str
    offsets: Mapping[str, int]
    member: str = ""
    generation: int = -1
    begun: float = 0.0
    ended: float = NEVER
    status: Status = Status.INFO


@dataclass(slots=True)
class Looked:
    """Offsets of a group, as somebody read them."""

    group: str
    offsets: Mapping[str, int]
    begun: float = 0.0
    ended: float = 0.0


@dataclass(slots=True)
class Transaction:
    """Messages that are there all or not at all, and what was read while they were sent.

    It has failed until its commit is asked for, is unknown until that is answered, and is never known to have failed
    afterwards.
    """

    process: str
    sends: list[Send] = field(default_factory=list)
    reads: dict[str, list[tuple[int, str]]] = field(default_factory=dict)
    status: Status = Status.FAIL

    def becomes(self, status: Status, now: float = NEVER) -> None:
        self.status = status
        for send in self.sends:
            send.status, send.ended = status, now


@dataclass(slots=True)
class Joined:
    """A member learned that it is in this generation."""

    group: str
    member: str
    generation: int
    at: float = 0.0


@dataclass(slots=True)
class Owned:
    """A member of a group without generations (KIP-848) learned that these partitions are its own, and no others."""

    group: str
    member: str
    keys: frozenset[str]
    begun: float = 0.0  # it asked: what it was told was decided between then and `at`
    at: float = 0.0


@dataclass(slots=True)
class Handed:
    """A message of the queue that a worker was handed: `key` and `offset` are where it lies, its value names it."""

    process: str
    value: str
    key: str
    offset: int
    attempt: int
    begun: float = 0.0
    ended: float = 0.0
    lease_ms: int = 0


@dataclass(slots=True)
class Said:
    """What a worker says of a message that it was handed."""

    process: str
    value: str
    attempt: int
    outcome: Outcome
    delay_ms: int | None = None  # of a release; None: as the queue likes
    begun: float = 0.0
    ended: float = NEVER
    status: Status = Status.INFO
    tries: int = 0


@dataclass(slots=True)
class QueueHistory:
    """What happened to the messages of the queue."""

    attempts_max: int = 0
    clocks_set: bool = False  # then nothing can be said of what came too early
    keys: dict[str, int] = field(default_factory=dict)  # of each value, where the queue keeps them in order
    handed: list[Handed] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    dead: list[tuple[str, int]] | None = None  # at the end: values and attempts; None: nobody could read them


@dataclass(slots=True)
class Reminder:
    """A message that is to come later, as far as its sender knows."""

    send: Send
    due_s: float  # it must not come before; of several times that may hold, the first
    settled: float = NEVER  # since when that time is certain


@dataclass(slots=True)
class ScheduleHistory:
    """Messages that were sent for later."""

    clocks_set: bool = False  # then nothing can be said of what came too early
    reminders: list[Reminder] = field(default_factory=list)


@dataclass(slots=True)
class History:
    """Everything, each kind in the order of its beginning."""

    sends: list[Send] = field(default_factory=list)
    polls: list[Poll | Assigned] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    looks: list[Looked] = field(default_factory=list)
    joins: list[Joined] = field(default_factory=list)
    owned: list[Owned] = field(default_factory=list)
    transactions: list[Transaction] = field(default_factory=list)
    queue: QueueHistory = field(default_factory=QueueHistory)
    schedule: ScheduleHistory = field(default_factory=ScheduleHistory)
    transforming_group: str | None = None  # turns what it reads into other messages, in transactions
    noted: dict[str, int] = field(default_factory=dict)  # for each sink, the batch that its driver is at
    batch_rows: int = 0  # of each batch
