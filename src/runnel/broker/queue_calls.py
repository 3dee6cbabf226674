"""What brokers ask each other about queues: each for the partitions that the other leads."""

from typing import Final
from uuid import UUID

from runnel.model.calls import (
    DeliveryState,
    Extend,
    Moved,
    NamedQueue,
    Nothing,
    Read,
    Received,
    Settle,
    Settled,
    Value,
    Verb,
)
from runnel.model.ids import PartitionKey, TopicId
from runnel.queues.values import Since


class At(Value, frozen=True):
    """A partition of one of the queue's topics."""

    topic_id: UUID
    partition: int

    @property
    def key(self) -> PartitionKey:
        return PartitionKey(TopicId(self.topic_id), self.partition)


class LeaseThere(Value, frozen=True):
    """Lease what is there now, from these partitions in this order."""

    queue: str
    places: list[At]
    messages_max: int
    bytes_max: int
    owner: str
    lease_ms: int | None
    filter: str = ""
    broker: int = -1  # who asks, for leases that end with a connection there
    epoch: int = -1
    bare: bool = False


class Watch(Value, frozen=True):
    """Somebody at this broker, in this life of it, waits for messages of a queue: ring once when there may be some."""

    queue: str
    broker: int
    epoch: int


class Heard(Value, frozen=True):
    """Of a watch: there may be some now. Of a ring: somebody was there to hear it."""

    yes: bool


class OwnerEnded(Value, frozen=True):
    """A connection ended, and with it all its leases."""

    queue: str
    owner: str


class States(Value, frozen=True):
    partitions: list[DeliveryState]


class PeekThere(Value, frozen=True):
    queue: str
    place: At
    messages_max: int
    offset: int | None
    filter: str


class PeekedThere(Value, frozen=True):
    messages: list[Read]


class Shift(Value, frozen=True):
    """Purge one partition, or rewind it: to an offset, or to a time."""

    queue: str
    place: At
    verb: str  # purge, start, end, offset or time
    to: int = -1
    dry_run: bool = False


class VoidThere(Value, frozen=True):
    """Of a partition with copies: partitions were rewound. All that lies below an offset is void in any case."""

    queue: str
    place: At
    since: list[Since]
    below: int


# What may have to wait until a queue has been read has a connection of its own: reading it takes calls, too.
LEASE: Final = Verb("outlet.lease", LeaseThere, Received, waits=True)
SETTLE: Final = Verb("outlet.settle", Settle, Settled, waits=True)
EXTEND: Final = Verb("outlet.extend", Extend, Settled, waits=True)
WATCH: Final = Verb("outlet.watch", Watch, Heard, waits=True)
RING: Final = Verb("outlet.ring", NamedQueue, Heard)
OWNER_ENDED: Final = Verb("outlet.owner.ended", OwnerEnded, Nothing)
STATES: Final = Verb("outlet.states", NamedQueue, States, waits=True)
PEEK: Final = Verb("outlet.peek", PeekThere, PeekedThere, waits=True)
SHIFT: Final = Verb("outlet.shift", Shift, Moved, waits=True)
VOID: Final = Verb("outlet.void", VoidThere, Moved, waits=True)
