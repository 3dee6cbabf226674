"""What the verbs of groups take and give, and the settings they obey.

Bytes of the classic protocol (metadata, assignments) are the members' own business and stay opaque. Topics are named
by id: a topic that is deleted and created again is another topic.
"""

from collections.abc import Collection
from enum import Enum
from typing import Protocol

import msgspec

from runnel.model.errors import InvalidRequest, InvalidSessionTimeout, RunnelError
from runnel.model.ids import Epoch, Life, Offset, PartitionKey, TopicId
from runnel.model.limits import MIB, OFFSET_METADATA_BYTES_MAX

HOUR_MS = 60 * 60 * 1000
LEAVE = -1  # the member epoch of a consumer that leaves for good
LEAVE_STATIC = -2  # the member epoch of a static consumer that means to come back
NO_GENERATION = -1  # a commit from outside the group: an administrator, or a consumer that assigns itself


class TopicView(Protocol):
    """The topics of the cluster, and the lives of its brokers, as one consistent picture."""

    @property
    def version(self) -> int:
        """Changes whenever a topic appears, grows or disappears."""
        ...

    def names(self) -> Collection[str]:
        """Those that an expression may match: all but internal ones."""
        ...

    def id_of(self, name: str) -> TopicId | None: ...

    def name_of(self, topic_id: TopicId) -> str | None: ...

    def partition_count(self, topic_id: TopicId) -> int:
        """How many partitions the topic has; 0 if there is no such topic."""
        ...

    def is_over(self, life: Life) -> bool:
        """Whether a broker has ended, or lives anew."""
        ...


class GroupConfig(msgspec.Struct, frozen=True):
    """The settings of groups; Kafka's name of each stands beside it."""

    session_timeout_min_ms: int = 6_000  # group.min.session.timeout.ms
    session_timeout_max_ms: int = 1_800_000  # group.max.session.timeout.ms
    initial_rebalance_delay_ms: int = 100  # group.initial.rebalance.delay.ms; short: most groups start small
    new_member_timeout_ms: int = 300_000  # how long a first join may wait for the others, as in Kafka
    members_max: int = 10_000  # group.max.size
    consumer_members_max: int = 10_000  # group.consumer.max.size
    member_bytes_max: int = MIB  # what a member says of itself, and its assignment
    said_bytes_max: int = 8 * MIB  # what the members of all groups of one shard say
    consumer_session_timeout_ms: int = 45_000  # group.consumer.session.timeout.ms
    consumer_heartbeat_interval_ms: int = 5_000  # group.consumer.heartbeat.interval.ms
    consumer_assignors: tuple[str, ...] = ("uniform", "range")  # group.consumer.assignors; the first is the default
    share_members_max: int = 200  # group.share.max.size
    migration: bool = True  # group.consumer.migration.policy: bidirectional or disabled
    offsets_retention_ms: int = 7 * 24 * HOUR_MS  # offsets.retention.minutes
    offsets_check_interval_ms: int = 600_000  # offsets.retention.check.interval.ms
    offset_metadata_bytes_max: int = OFFSET_METADATA_BYTES_MAX  # offset.metadata.max.bytes


def check_timeouts(session_ms: int, rebalance_ms: int, config: GroupConfig) -> None:
    """Of a member that joins."""
    low, high = config.session_timeout_min_ms, config.session_timeout_max_ms
    if not low <= session_ms <= high:
        raise InvalidSessionTimeout(f"session timeout {session_ms} ms is not allowed: use {low} to {high} ms")
    check_rebalance_timeout(rebalance_ms)


def check_rebalance_timeout(timeout_ms: int) -> None:
    if timeout_ms <= 0:
        raise InvalidRequest(f"rebalance timeout {timeout_ms} ms leaves no time to join: use a number above 0")


class GroupType(Enum):
    CLASSIC = "classic"
    CONSUMER = "consumer"
    SHARE = "share"


class GroupState(Enum):
    """Kafka's names, for all protocols."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"


# --- the classic protocol
class OfferedProtocol(msgspec.Struct, frozen=True):
    """One way of assigning that a member offers, best first, with its metadata for it."""

    name: str
    metadata: bytes


class Join(msgspec.Struct, frozen=True):
    group_id: str
    member_id: str  # "" at the first try
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[OfferedProtocol, ...]
    requires_known_id: bool = False  # JoinGroup v4+: the first join only gets an id (KIP-394)
    can_skip_assignment: bool = False  # JoinGroup v9+: a returning leader can be told not to assign (KIP-814)


class JoinedMember(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    metadata: bytes


class Joined(msgspec.Struct, frozen=True):
    member_id: str
    generation: int
    protocol_type: str
    protocol: str
    leader: str
    members: tuple[JoinedMember, ...]  # for the leader alone
    skip_assignment: bool = False


class Sync(msgspec.Struct, frozen=True):
    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None
    protocol_type: str | None = None
    protocol: str | None = None
    assignments: tuple[tuple[str, bytes], ...] = ()  # (member id, assignment), from the leader alone


class Synced(msgspec.Struct, frozen=True):
    protocol_type: str
    protocol: str
    assignment: bytes


class Heartbeat(msgspec.Struct, frozen=True):
    group_id: str
    generation: int
    member_id: str
    instance_id: str | None = None


class Leaver(msgspec.Struct, frozen=True):
    """Who leaves: by member id, or by instance id alone when an administrator removes a static member."""

    member_id: str
    instance_id: str | None = None


class Leave(msgspec.Struct, frozen=True):
    group_id: str
    members: tuple[Leaver, ...]


class Left(msgspec.Struct, frozen=True):
    """One entry for each member asked for, in order."""

    members: tuple[tuple[Leaver, RunnelError | None], ...]


class Done(msgspec.Struct, frozen=True):
    """It is done; there is nothing more to say."""


# --- KIP-848
class ConsumerHeartbeat(msgspec.Struct, frozen=True):
    """None means unchanged since the last heartbeat; a full one carries everything. Settings of the group come too."""

    group_id: str
    member_id: str
    member_epoch: int  # 0 joins, LEAVE and LEAVE_STATIC leave
    client_id: str = ""
    client_host: str = ""
    instance_id: str | None = None
    rack_id: str | None = None
    rebalance_timeout_ms: int | None = None
    topic_names: tuple[str, ...] | None = None
    topic_regex: str | None = None  # "" takes the expression back
    assignor: str | None = None
    owned: tuple[PartitionKey, ...] | None = None
    session_timeout_ms: int = 0  # of the group; 0: the broker's
    heartbeat_interval_ms: int = 0


class ConsumerAlive(msgspec.Struct, frozen=True):
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assigned: tuple[PartitionKey, ...] | None  # None: as before


# --- offsets
class OffsetToCommit(msgspec.Struct, frozen=True):
    partition: PartitionKey
    offset: Offset
    leader_epoch: Epoch = Epoch(-1)
    metadata: str = ""


class CommitOffsets(msgspec.Struct, frozen=True):
    group_id: str
    member_id: str
    generation: int  # or the member epoch of a consumer group
    offsets: tuple[OffsetToCommit, ...]
    instance_id: str | None = None
    retention_ms: int | None = None  # OffsetCommit v2-v4 may ask for its own

    @property
    def from_outside(self) -> bool:
        """Whether it names no member."""
        return self.generation < 0 and not self.member_id and self.instance_id is None


class CommitInTransaction(CommitOffsets, frozen=True, kw_only=True):
    """Offsets that shall count if the producer's transaction is committed. It was let in by the coordinator."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int = -1  # at least that of the coordinator that let it in


class EndTransaction(msgspec.Struct, frozen=True, kw_only=True):
    """A transaction has ended: what a marker says to a partition."""

    producer_id: int
    producer_epoch: int
    commit: bool
    coordinator_epoch: int
    bumped: bool  # KIP-890: the epoch is that of the producer's next transaction

    def ends(self, epoch: int) -> bool:
        """Whether it means a transaction of this epoch."""
        return epoch < self.producer_epoch or (epoch == self.producer_epoch and not self.bumped)


class OffsetsCommitted(msgspec.Struct, frozen=True):
    """One entry for each offset asked for, in order."""

    errors: tuple[RunnelError | None, ...]


class FetchOffsets(msgspec.Struct, frozen=True):
    """The offsets of one group; a request for several groups is several of these, each to its own shard."""

    group_id: str
    partitions: tuple[PartitionKey, ...] | None = None  # None: all that there are
    member_id: str | None = None
    member_epoch: int = -1
    require_stable: bool = False  # refuse where the outcome of a transaction could change the answer


class FetchedOffset(msgspec.Struct, frozen=True):
    partition: PartitionKey
    offset: Offset  # -1: none
    leader_epoch: Epoch
    metadata: str
    error: RunnelError | None = None


class OffsetsFetched(msgspec.Struct, frozen=True):
    offsets: tuple[FetchedOffset, ...]


class DeleteOffsets(msgspec.Struct, frozen=True):
    group_id: str
    partitions: tuple[PartitionKey, ...]


class OffsetsDeleted(msgspec.Struct, frozen=True):
    """One entry for each partition asked for, in order."""

    errors: tuple[RunnelError | None, ...]


# --- looking
class ListGroups(msgspec.Struct, frozen=True):
    """Empty filters let everything through; names are compared without regard to case, as in Kafka."""

    states: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


class ListedGroup(msgspec.Struct, frozen=True):
    group_id: str
    protocol_type: str
    state: GroupState
    type: GroupType


class DescribedMember(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    metadata: bytes
    assignment: bytes


class DescribedGroup(msgspec.Struct, frozen=True):
    group_id: str
    state: GroupState
    protocol_type: str
    protocol: str
    members: tuple[DescribedMember, ...]


class DescribedConsumer(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    topic_names: tuple[str, ...]
    topic_regex: str | None
    assigned: tuple[PartitionKey, ...]
    target: tuple[PartitionKey, ...]
    type: GroupType  # CLASSIC: it speaks the classic protocol in an upgraded group


class DescribedConsumerGroup(msgspec.Struct, frozen=True):
    group_id: str
    state: GroupState
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[DescribedConsumer, ...]
