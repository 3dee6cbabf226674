"""What the verbs of a delivery take and give, what it sees of the world, and what it orders.

Offsets come in spans: `first` and `last` are both in it. Moments that are kept are milliseconds of the wall clock.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from runnel.model.errors import RunnelError
from runnel.model.ids import PartitionKey, TopicId
from runnel.model.queue_config import QueueConfig

BYTES_MAX: Final = 1 << 62


class Outcome(IntEnum):
    """What a consumer says of a message that it had. The numbers are Kafka's (KIP-932)."""

    ACCEPT = 1
    RELEASE = 2
    REJECT = 3


class Why(IntEnum):
    """Why a message leaves the queue without being accepted. Stored."""

    REJECTED = 1
    ATTEMPTS = 2  # delivered as often as it may be
    EXPIRED = 3
    WAITS = 4  # for longer than it may wait in place
    STRAGGLES = 5  # the window is full, and it only waits
    OVERFLOW = 6  # the queue was longer than it may be

    @property
    def dies(self) -> bool:
        """Whether it becomes a dead letter; else it is copied forward, and delivered from there."""
        return self in (Why.REJECTED, Why.ATTEMPTS, Why.EXPIRED, Why.OVERFLOW)


class Span(NamedTuple):
    first: int
    last: int


class Target(Struct, frozen=True, array_like=True):
    """Where messages go that leave. `floor`: an offset that the partition's end had reached before this was kept."""

    topic_id: TopicId
    partition: int
    floor: int


class View(Struct, frozen=True):
    """What a delivery sees of its partition and its queue, when a verb is called."""

    config: QueueConfig
    start: int  # the first offset that the log still has
    end: int  # what may be delivered ends here: the last stable offset
    jitter: float = 0.0  # in [0, 1): drawn anew for each view
    dead: Target | None = None  # where dead letters go, if that is known by now
    retry: Target | None = None  # where messages are copied that wait for long, if that is known by now
    made: int = 0  # the number of the queue, which no other of its name has; 0: a share group
    begin: int | None = None  # where it begins if it begins by time: the first offset that is young enough


# --- copies for another attempt
class Maker(NamedTuple):
    """What made a copy: a queue of this number, of a message of this partition, in this generation there."""

    made: int
    key: PartitionKey
    generation: int


class Since(NamedTuple):
    """A partition was rewound: of its copies those count that are of this generation, or of a later one."""

    key: PartitionKey
    generation: int


# --- leasing
class Offered(NamedTuple):
    """Messages of the log that may be leased. Several at once if nothing in them matters (a plain queue).

    What has no message in it (markers, aborted transactions, gaps of compaction), and what does not pass the queue's
    filter, is offered too, with `passes` false: it is done then. Offers come in the order of offsets.
    """

    first: int
    last: int
    size: int = 0  # bytes of all of them
    passes: bool = True
    key: bytes | None = None
    expires_ms: int = 0  # by the wall clock; 0: never
    attempts: int = 0  # deliveries before it was copied here
    wanted: bool = True  # else it is passed over, for its key alone: who is offered it has chosen others
    maker: Maker | None = None  # of a copy: if that does not count any more, nor does the copy, and is done


class Lease(Struct, frozen=True):
    """Lease some of what is offered. `owner` names the consumer, or its connection."""

    owner: str
    offers: Sequence[Offered]
    messages_max: int
    bytes_max: int = BYTES_MAX
    lease_ms: int | None = None  # None: the queue's lease.ms; 0: until the owner is released, or the leader changes
    bound: bool = False  # what ends at a moment also ends when the leader changes: its owner would be unknown there


class Granted(NamedTuple):
    """Messages with the number of this attempt."""

    first: int
    last: int
    attempt: int


class Leased(Struct, frozen=True):
    grants: tuple[Granted, ...]
    generation: int
    until_ms: int  # by the wall clock; 0: while the owner lives


# --- settling
class Verdict(Struct, frozen=True):
    """What became of leased messages, with what their receipts say.

    `attempt` 0: whoever settles knows the owner of the lease instead (share groups), and gives it to `Settle`; the
    generation does not matter then.
    """

    first: int
    last: int
    attempt: int
    generation: int
    outcome: Outcome = Outcome.ACCEPT
    delay_ms: int | None = None  # of a release: None means the queue's backoff
    reason: str = ""  # of a reject, or of a release: kept if the message dies


class Settle(Struct, frozen=True):
    verdicts: Sequence[Verdict]
    owner: str = ""


class Settled(Struct, frozen=True):
    """Kept. `refused`: the verdicts (by their place) that met a message which is not leased like that (any more).

    Nothing came of them; the others count.
    """

    refused: Mapping[int, RunnelError]


class Extend(Struct, frozen=True):
    """Lease on; the outcome of the verdicts does not matter. Answered with Settled."""

    verdicts: Sequence[Verdict]
    lease_ms: int | None = None  # from now
    owner: str = ""


# --- administration
class Purge(Struct, frozen=True):
    """All that is there and not leased is done."""


class Purged(Struct, frozen=True):
    messages: int


class Rewind(Struct, frozen=True):
    """Deliver from this offset on, again or at last. All receipts that are out are void."""

    offset: int


class Rewound(Struct, frozen=True):
    before: int  # what was the first that was not done
    after: int
    generation: int


class Void(Struct, frozen=True):
    """Of a partition with copies: others were rewound. What lies below an offset is done, as far as it was not.

    Who leased it can't settle it any more. Answered with Voided.
    """

    since: Sequence[Since]
    below: int = 0  # all that lies there is void


class Voided(Struct, frozen=True):
    before: int  # what was the first that was not done
    after: int


class Describe(Struct, frozen=True):
    """Ask how things stand."""


class Counters(Struct, array_like=True):
    """What happened since the queue began. Kept about as often as the mark: a crash may take back some."""

    delivered: int = 0
    accepted: int = 0
    released: int = 0  # by consumers, and with their connections
    timed_out: int = 0  # leases that ran out
    dead: int = 0
    copied: int = 0
    filtered: int = 0
    expired: int = 0
    dropped: int = 0  # by purging, with the end of their retention, or at the maximum length without dead letters


class Described(Struct, frozen=True):
    first_open: int  # everything below is done
    next_new: int  # nothing at or above was ever leased or passed over
    end: int
    generation: int
    ready: int
    blocked: int  # of those: behind another message of their key
    waiting: int
    leased: int
    leaving: int
    backlog: int  # offsets at or above next_new
    done_above: int  # settled out of order
    breaker: Literal["closed", "open", "half-open"]
    holder: str  # the single active consumer
    counters: Counters


class Standing(NamedTuple):
    """How one offset stands, for who looks without taking."""

    state: Literal["done", "ready", "waiting", "leased", "new"]
    attempts: int
    until_ms: int  # when the lease or the wait ends
    owner: str


# --- what is ordered, and told when it is done
class Leaving(Struct, frozen=True, array_like=True):
    """Messages that are to be appended once each to `target`; kept until that is done.

    A message's name there: `name` of its queue and partition, the generation and its offset.
    """

    generation: int
    first: int
    last: int
    attempts: int
    why: Why
    reason: str
    left_ms: int  # by the wall clock
    due_ms: int  # copies: when they are to be delivered at the earliest; 0: at once
    target: Target | None = None

    @property
    def id(self) -> "LeavingId":
        return LeavingId(self.generation, self.first)


class LeavingId(NamedTuple):
    generation: int
    first: int


class Leave(Struct, frozen=True):
    """Append these messages to their target; then tell `left`. Without a target: find one, then tell `aim`."""

    leaving: Leaving


class Aimed(Struct, frozen=True):
    """Told: where messages go of which that was not known, or whose topic was deleted. They are ordered to leave again.

    The target is kept first; but not if they have one in that topic: then they are ordered to go there.
    """

    id: LeavingId
    target: Target


class Available(Struct, frozen=True):
    """Something may be leased that could not be a moment ago: let those who wait try again."""


class OwnerGone(Struct, frozen=True):
    """Told: a connection ended, or a member left. Its leases end with it.

    `untouched`: it says that it never began with what it still has. Those of its leases that nobody has a receipt of
    (bound ones) do not count as attempts then.
    """

    owner: str
    untouched: bool = False


class Unsent(Struct, frozen=True):
    """Told: these leases were kept, but their messages did not leave the broker. They do not count as attempts."""

    owner: str
    grants: Sequence[Granted]
