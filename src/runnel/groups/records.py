"""The records of the internal topic: what of a group survives. docs/formats/group-records.md draws them.

Rule 1: a key says what the record is about, so that compaction keeps the last state of each thing; no value is a
        tombstone.
Rule 2: a record that Kafka has is Kafka's. What only Runnel keeps stands in records of types that Kafka's tools skip.
"""

from enum import IntEnum
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from runnel.model.ids import PartitionKey, TopicId
from runnel.model.partition_sets import Grouped

TIME_MS_MAX: Final = (1 << 63) - 1


class Kind(IntEnum):
    """The type of a record: the number at the beginning of its key. From PENDING on they are Runnel's own."""

    OFFSET = 1
    CLASSIC_GROUP = 2
    CONSUMER_GROUP = 3
    CONSUMER_MEMBER = 5
    CONSUMER_TARGET_EPOCH = 6
    CONSUMER_TARGET = 7
    CONSUMER_CURRENT = 8
    SHARE_MEMBER = 10
    SHARE_GROUP = 11
    SHARE_TARGET_EPOCH = 12
    SHARE_TARGET = 13
    SHARE_CURRENT = 14
    PENDING = 10100  # what a group's offsets will be if a producer's transaction is committed
    TOPIC = 10101  # which topic of a name the group's offsets are about
    DETAILS = 10102  # of the group, beside what Kafka keeps of it


class MemberState(IntEnum):
    """Where a KIP-848 member stands between its current and its target assignment; Kafka's numbers."""

    STABLE = 0
    UNREVOKED = 1  # it has been told to give partitions up, and has not yet done so
    UNRELEASED = 2  # it waits for partitions that others have not given up yet


class Key(NamedTuple):
    """A group, or one of its members."""

    kind: Kind
    group_id: str
    member_id: str = ""


class OffsetKey(NamedTuple):
    group_id: str
    topic: str
    number: int


class TopicKey(NamedTuple):
    group_id: str
    topic: str


class PendingKey(NamedTuple):
    group_id: str
    producer_id: int


AnyKey: TypeAlias = Key | OffsetKey | TopicKey | PendingKey


class ClassicMemberRecord(msgspec.Struct, frozen=True):
    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes  # its metadata for the group's protocol
    assignment: bytes


class ClassicGroupRecord(msgspec.Struct, frozen=True):
    protocol_type: str
    generation: int
    protocol: str
    leader: str
    since_ms: int  # wall time of the last change; for an empty group, since when it is empty
    members: tuple[ClassicMemberRecord, ...]


class GroupEpochRecord(msgspec.Struct, frozen=True):
    epoch: int
    topics_hash: int  # of ids and partition counts of the topics subscribed to, when the epoch was set


class TargetEpochRecord(msgspec.Struct, frozen=True):
    epoch: int  # the group epoch that the targets were made for


class ClassicTerms(msgspec.Struct, frozen=True):
    """What a member of an upgraded group that still speaks the classic protocol has asked for."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class ConsumerMemberRecord(msgspec.Struct, frozen=True):
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topic_names: tuple[str, ...]
    topic_regex: str
    assignor: str
    classic: ClassicTerms | None = None


class ShareMemberRecord(msgspec.Struct, frozen=True):
    rack_id: str | None
    client_id: str
    client_host: str
    topic_names: tuple[str, ...]


class TargetRecord(msgspec.Struct, frozen=True):
    partitions: Grouped


class CurrentRecord(msgspec.Struct, frozen=True):
    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: tuple[tuple[int, Grouped], ...]  # by the epoch in which it was given
    revoking: Grouped


class OffsetRecord(msgspec.Struct, frozen=True):
    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int  # wall time
    expires_ms: int | None = None  # wall time; only if an old client asked for its own retention


def expiry_ms(wanted_ms: int) -> int:
    """The time to expire that a record can hold, for one that may lie in any future: clients say how long."""
    return max(0, min(wanted_ms, TIME_MS_MAX))


class PendingOffset(msgspec.Struct, frozen=True):
    topic_id: UUID
    number: int
    order: int  # which of the group's pending offsets came later, also those of other producers
    offset: int
    leader_epoch: int
    metadata: str

    @property
    def partition(self) -> PartitionKey:
        return PartitionKey(TopicId(self.topic_id), self.number)


class PendingRecord(msgspec.Struct, frozen=True):
    epoch: int  # of the producer
    coordinator_epoch: int  # of the transaction's coordinator, when it let the offsets in
    offsets: tuple[PendingOffset, ...]


class TopicRecord(msgspec.Struct, frozen=True):
    topic_id: UUID


class GroupDetails(msgspec.Struct, frozen=True):
    """Of a classic group `stable` and `protocols`; of a consumer group `since_ms`, `assignor` and
    `session_timeout_ms`; of a share group `since_ms`, `session_timeout_ms` and `topics`."""

    since_ms: int = -1  # wall time of the last change
    stable: bool = False  # the leader's assignment has arrived
    assignor: str = ""
    session_timeout_ms: int = 0  # of the members, as the group's settings have it; 0: the broker's
    topics: tuple[tuple[UUID, int], ...] = ()  # in which the group may have a place; the partitions then, or -1
    protocols: tuple[tuple[str, tuple[tuple[str, bytes], ...]], ...] = ()  # all that each member offers


Value: TypeAlias = (
    ClassicGroupRecord | GroupEpochRecord | TargetEpochRecord | ConsumerMemberRecord | ShareMemberRecord | TargetRecord
    | CurrentRecord | OffsetRecord | PendingRecord | TopicRecord | GroupDetails
)  # fmt: skip
