"""What brokers ask each other that no user sees: keeping the state of queues, following, topics of their own.

The law of model/calls.py holds here too. More such verbs stand beside what they are about: model/once.py, for one.
"""

from typing import Final
from uuid import UUID

from runnel.model.calls import Nothing, Value, Verb


# --- what a leader keeps elsewhere (queues/keeper.py)
class KeeperOpen(Value, frozen=True):
    owner: str
    epoch: int
    session: int = 0  # in which it was open before, for one that goes on; 0: it begins, and takes what there is
    made: int = 0  # the number of the queue (cluster/group_rules.py)


class Kept(Value, frozen=True):
    session: int
    records: list[tuple[bytes, bytes]]


class KeeperWrite(Value, frozen=True):
    owner: str
    epoch: int
    session: int
    records: list[tuple[bytes, bytes | None]]  # None: take it out


class KeeperForget(Value, frozen=True):
    """Take out all that the owners of one queue keep in one partition of the keepers' topic.

    Not what a queue of the same name keeps that was made later: whoever asks may have been replaced meanwhile.
    """

    queue: str
    shard: int
    topic_id: UUID | None = None  # of one topic alone
    made: int = 0


class Forgotten(Value, frozen=True):
    owners: int


class KeeperPending(Value, frozen=True):
    """Which owners in one partition of the keepers' topic keep a record whose key begins with one of these."""

    shard: int
    begins: list[bytes]


class Owners(Value, frozen=True):
    owners: list[str]


class ImageFollowed(Value, frozen=True):
    """Answered when the broker has done what the image of this version says."""

    version: int


# --- topics that brokers make for themselves
class MakeInternal(Value, frozen=True):
    topic: str


class MakeForQueue(Value, frozen=True):
    """A topic for what leaves a queue: its name follows from that of the queue."""

    topic: str
    partitions: int


# --- for the leader of the partition in question
KEEPER_OPEN: Final = Verb("keeper.open", KeeperOpen, Kept)
KEEPER_WRITE: Final = Verb("keeper.write", KeeperWrite, Nothing)
KEEPER_FORGET: Final = Verb("keeper.forget", KeeperForget, Forgotten)
KEEPER_PENDING: Final = Verb("keeper.pending", KeeperPending, Owners)

# --- for every broker in turn
IMAGE_FOLLOWED: Final = Verb("image.followed", ImageFollowed, Nothing, waits=True)

# --- for the controller
MAKE_INTERNAL: Final = Verb("topic.make-internal", MakeInternal, Nothing)
MAKE_FOR_QUEUE: Final = Verb("topic.make-for-queue", MakeForQueue, Nothing)
