"""What brokers ask each other, and what Runnel's own clients ask them, beyond Kafka: names and values of the calls.

Rule 1: a verb is its name, the type of its request and the type of its answer; who serves it and who asks it share
        this value, and nothing else.
Rule 2: values are arrays on the wire: fields are added at the end, with defaults, and none is ever taken out or
        changed. So an older broker and a newer one understand each other.
Rule 3: user verbs are answered by every broker, which asks those that can; the others by whom they are meant for.
"""

from typing import Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from msgspec import Struct

Q = TypeVar("Q")
A = TypeVar("A")


class Verb(NamedTuple, Generic[Q, A]):
    """One call: what is sent, what comes back, and whether the answer may be a long time coming."""

    name: str
    request: type[Q]
    answer: type[A]
    waits: bool = False


class Value(Struct, frozen=True, array_like=True, gc=False):
    """What all values of calls have in common."""


class Nothing(Value, frozen=True):
    """Asked without words, or done without results."""


class Failure(Value, frozen=True):
    """Why one part of a call could not be done: the name of the error's class, and its text."""

    name: str
    message: str


Header: TypeAlias = tuple[str, bytes | None]
Outcome: TypeAlias = Literal["accept", "release", "reject"]


# --- messages
class Outgoing(Value, frozen=True):
    """A message to be sent."""

    value: bytes | None
    key: bytes | None = None
    headers: list[Header] = []
    partition: int | None = None  # of a topic; chosen by key, or in turn, if None
    priority: int | None = None  # the lane of a queue; the lowest if None
    timestamp_ms: int | None = None  # now, if None
    deliver_at_ms: int | None = None  # by the wall clock; at once if None
    message_id: str | None = None  # a second message of this name is not kept
    floor: int = -1  # an offset of its partition, from which on names count; -1: those in the topic's window do


class Placed(Value, frozen=True):
    """Where a message went; offset -1: it is parked until it is due, under this id."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int = -1
    scheduled_id: str = ""
    duplicate: bool = False  # it was there already


class Read(Value, frozen=True):
    """A message as it lies in a topic."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[Header] = []
    attempts: int = 0  # how often a queue has delivered it
    state: str = ""  # what it is to the queue: ready, leased, waiting, blocked, done
    left_out_bytes: int = 0  # of a value that is larger than what was asked for: it is told by its size alone


class Sent(Value, frozen=True):
    """For each message, in order: where it went, or why it did not."""

    placed: list[Placed | None]
    failures: list[Failure | None]


class SendTo(Value, frozen=True):
    """Messages for a topic, from those who leave it to the broker where they go."""

    topic: str
    messages: list[Outgoing]
    acks: int = -1
    timeout_ms: int = 30_000
    request: str = ""  # a key: asked for twice under one, they are sent once, and the answer is the same


# --- definitions of queues
class CreateQueue(Value, frozen=True):
    queue: str
    settings: dict[str, str] = {}
    partitions: int = -1  # of its topic, if that is to be made: the broker's default (or the lanes) if -1
    replicas: int = -1
    validate_only: bool = False


class QueueDefined(Value, frozen=True):
    queue: str
    topic: str
    created_topic: bool


class AlterQueue(Value, frozen=True):
    queue: str
    settings: dict[str, str | None]  # None: back to the default
    validate_only: bool = False


class DeleteQueue(Value, frozen=True):
    queue: str
    topics: bool = False  # also its topic, its retry topic and its dead letters
    validate_only: bool = False


class QueueDeleted(Value, frozen=True):
    queue: str
    topics: list[str]  # that went with it


class ListQueues(Value, frozen=True):
    prefix: str = ""
    after: str = ""  # names behind this one
    queues_max: int = 1_000


class ListedQueue(Value, frozen=True):
    queue: str
    topic: str
    settings: dict[str, str]  # those that were set


class Queues(Value, frozen=True):
    queues: list[ListedQueue]
    more: bool = False  # ask again with `after`, the name of the last one


class NamedQueue(Value, frozen=True):
    queue: str


class Setting(Value, frozen=True):
    name: str
    value: str
    default: bool


class DeliveryState(Value, frozen=True):
    """What one queue keeps of one partition, as its leader sees it."""

    topic: str
    partition: int
    leader: int
    first_open: int  # everything below is done
    next_new: int  # nothing at or above was ever leased
    end: int  # what can be read now ends here
    leased: int = 0
    waiting: int = 0  # for another attempt
    blocked: int = 0  # behind another message of their key
    ready: int = 0  # that can be leased now
    done_above: int = 0  # settled out of order
    dead: int = 0  # given up since the queue began
    accepted: int = 0
    released: int = 0
    expired: int = 0
    generation: int = 0
    breaker: str = "closed"  # open: leasing pauses; half-open: a trickle
    consumers: int = 0
    oldest_ms: int = -1  # the timestamp of the first message that is not done
    failure: Failure | None = None  # why the rest could not be learned


class QueueDescription(Value, frozen=True):
    queue: str
    topic: str
    defined: bool  # not: a share group that has no settings of its own
    settings: list[Setting]
    partitions: list[DeliveryState] = []
    scheduled: int = 0  # wait in the schedule for another attempt; -1: it could not be asked
    dead_letters: int = 0  # that there are now; -1: they could not be counted


# --- using queues
class Send(Value, frozen=True):
    queue: str
    messages: list[Outgoing]
    request: str = ""  # as of SendTo


class Receive(Value, frozen=True):
    queue: str
    messages_max: int = 1
    bytes_max: int = 1 << 20
    wait_ms: int = 0
    lease_ms: int | None = None  # the queue's own, if None
    consumer: str = ""
    filter: str = ""
    bare: bool = False  # without keys, values and headers, for who reads them in the log


class Delivered(Value, frozen=True):
    receipt: str  # opaque: hand it back to settle
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    attempt: int
    leased_until_ms: int = -1
    value_bytes: int = 0  # of a value that was left out


class Received(Value, frozen=True):
    messages: list[Delivered]


class Settlement(Value, frozen=True):
    receipt: str
    outcome: Outcome
    delay_ms: int | None = None  # of a release: instead of the queue's backoff
    reason: str = ""  # of a reject, or of a release: kept if the message dies


class Settle(Value, frozen=True):
    queue: str
    settlements: list[Settlement]


class Extend(Value, frozen=True):
    queue: str
    receipts: list[str]
    lease_ms: int | None = None


class Settled(Value, frozen=True):
    """For each receipt, in order: None, or why not."""

    failures: list[Failure | None]


class Peek(Value, frozen=True):
    queue: str
    messages_max: int = 10
    partition: int | None = None  # all of them, if None
    offset: int | None = None  # from the first that is not done, if None
    filter: str = ""
    topic: str = ""  # the queue's main topic, if empty


class Peeked(Value, frozen=True):
    messages: list[Read]


class Purge(Value, frozen=True):
    queue: str
    partition: int | None = None
    dry_run: bool = False


class Rewind(Value, frozen=True):
    """To a time, or to an offset of a partition; the receipts that are out are void then."""

    queue: str
    to: str = "start"  # start, end, offset or time
    offset: int = -1
    time_ms: int = -1
    partition: int | None = None
    dry_run: bool = False


class Moved(Value, frozen=True):
    """What happened to one partition: messages that are taken out, or are to be delivered again."""

    topic: str
    partition: int
    before: int
    after: int
    failure: Failure | None = None
    generation: int = -1  # that the queue has there since it was rewound


class Shifted(Value, frozen=True):
    partitions: list[Moved]
    scheduled: int = 0  # waited in the schedule for another attempt, and are taken out


# --- dead letters
class Place(Value, frozen=True):
    partition: int
    offset: int


class ListDead(Value, frozen=True):
    queue: str
    messages_max: int = 100
    partition: int | None = None
    offset: int | None = None
    filter: str = ""
    since: Place | None = None  # go on from here: what `next` of the page before says


class DeadLetter(Value, frozen=True):
    message: Read
    origin_topic: str = ""
    origin_partition: int = -1
    origin_offset: int = -1
    origin_timestamp_ms: int = -1
    reason: str = ""
    attempts: int = 0
    died_ms: int = -1


class DeadLetters(Value, frozen=True):
    """A page. It may be short, or have no letter at all, and not be the last: looking has its bounds, too."""

    letters: list[DeadLetter]
    more: bool = False
    next: Place | None = None  # where the next page begins; None: there is nothing left


class ListDeadQueues(Value, frozen=True):
    queues_max: int = 100
    since: str = ""  # go on from here: what `next` of the page before says


class DeadQueue(Value, frozen=True):
    """A queue that has dead letters."""

    queue: str
    topic: str
    messages: int  # dead letters that there are now


class DeadQueues(Value, frozen=True):
    """A page. It may be short, or empty, and not be the last: looking has its bounds, too."""

    queues: list[DeadQueue]
    next: str | None = None  # where the next page begins; None: there is nothing left


class Redrive(Value, frozen=True):
    """Send dead letters back to where they came from."""

    queue: str
    filter: str = ""
    to: str = ""  # another topic than the origin
    rate_max: int = 0  # messages a second; 0: as fast as it goes
    limit: int = 0  # messages; 0: all that are there now
    dry_run: bool = False
    only: list[Place] = []  # these alone
    edit: str = ""  # the new value of the one message in `only`, as base64; empty: unchanged
    set_headers: dict[str, str] = {}
    remove_headers: list[str] = []
    merge: str = ""  # JSON that is merged into the value of each (RFC 7396)
    task: str = ""  # its name: asked for twice under one, it is done once; a new one if empty
    empties: bool = False  # the new value is an empty one, which `edit` can't say


class RedriveTask(Value, frozen=True):
    queue: str
    task: str = ""  # the newest of the queue, if empty


class RedriveState(Value, frozen=True):
    queue: str
    task: str
    state: str  # running, done, stopped, failed
    looked_at: int = 0
    moved: int = 0
    skipped: int = 0
    total: int = 0
    failure: str = ""
    dry_run: bool = False  # nothing was sent: `moved` is what would have been
    stopping: bool = False  # it runs until nothing of it is in doubt, and no longer


class DropDead(Value, frozen=True):
    """Give up dead letters for good: those below an offset, or all, of each partition."""

    queue: str
    only: list[Place] = []  # up to and with these; empty: all that are there now
    dry_run: bool = False


class Dropped(Value, frozen=True):
    messages: int


class AskAway(Value, frozen=True):
    """Which dead letters of a stretch of one partition lie elsewhere by now."""

    queue: str
    partition: int
    first: int
    last: int


class MarkAway(Value, frozen=True):
    """Somebody else than a re-drive sent these dead letters away: they are dead no more."""

    queue: str
    partition: int
    offsets: list[int]


class Away(Value, frozen=True):
    offsets: list[int]


# --- schedule
class Pending(Value, frozen=True):
    """A message that waits for its time."""

    id: str
    due_ms: int
    topic: str
    partition: int
    key: bytes | None = None
    value: bytes | None = None
    headers: list[Header] = []
    parked_ms: int = -1


class ListPending(Value, frozen=True):
    topic: str = ""  # all, if empty
    from_ms: int = 0
    messages_max: int = 100
    after_id: str = ""  # of those due at from_ms: those behind this one
    with_values: bool = False


class GetPending(Value, frozen=True):
    """What waits under an id: one message, or none, unless several topics have one of that name."""

    id: str


class PendingMessages(Value, frozen=True):
    messages: list[Pending]
    more: bool = False


class Cancel(Value, frozen=True):
    ids: list[str]


class Move(Value, frozen=True):
    id: str
    due_ms: int


class Rescheduled(Value, frozen=True):
    """For each id, in order: None, or why not (it was fired, or is not known)."""

    failures: list[Failure | None]


class CountPending(Value, frozen=True):
    topic: str = ""


class PendingCount(Value, frozen=True):
    messages: int
    next_due_ms: int = -1


# --- verbs of users: any broker answers them
MESSAGE_SEND: Final = Verb("message.send", SendTo, Sent)
QUEUE_CREATE: Final = Verb("queue.create", CreateQueue, QueueDefined)
QUEUE_ALTER: Final = Verb("queue.alter", AlterQueue, Nothing)
QUEUE_DELETE: Final = Verb("queue.delete", DeleteQueue, QueueDeleted)
QUEUE_LIST: Final = Verb("queue.list", ListQueues, Queues)
QUEUE_DESCRIBE: Final = Verb("queue.describe", NamedQueue, QueueDescription)
QUEUE_SEND: Final = Verb("queue.send", Send, Sent)
QUEUE_RECEIVE: Final = Verb("queue.receive", Receive, Received, waits=True)
QUEUE_SETTLE: Final = Verb("queue.settle", Settle, Settled)
QUEUE_EXTEND: Final = Verb("queue.extend", Extend, Settled)
QUEUE_PEEK: Final = Verb("queue.peek", Peek, Peeked)
QUEUE_PURGE: Final = Verb("queue.purge", Purge, Shifted)
QUEUE_REWIND: Final = Verb("queue.rewind", Rewind, Shifted)
DEAD_LIST: Final = Verb("dead.list", ListDead, DeadLetters)
DEAD_QUEUES: Final = Verb("dead.queues", ListDeadQueues, DeadQueues)
DEAD_DROP: Final = Verb("dead.drop", DropDead, Dropped)
DEAD_AWAY: Final = Verb("dead.away", AskAway, Away)
DEAD_MARK: Final = Verb("dead.mark", MarkAway, Away)
REDRIVE_START: Final = Verb("dead.redrive.start", Redrive, RedriveState)
REDRIVE_STATUS: Final = Verb("dead.redrive.status", RedriveTask, RedriveState)
REDRIVE_STOP: Final = Verb("dead.redrive.stop", RedriveTask, RedriveState)
SCHEDULE_LIST: Final = Verb("schedule.list", ListPending, PendingMessages)
SCHEDULE_GET: Final = Verb("schedule.get", GetPending, PendingMessages)
SCHEDULE_CANCEL: Final = Verb("schedule.cancel", Cancel, Rescheduled)
SCHEDULE_MOVE: Final = Verb("schedule.move", Move, Rescheduled)
SCHEDULE_COUNT: Final = Verb("schedule.count", CountPending, PendingCount)
