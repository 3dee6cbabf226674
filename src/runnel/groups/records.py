"""The records of the internal topic: what of a group survives. docs/formats/group-records.md draws them.

A key says what the record is about, so that compaction keeps the last state of each thing; no value is a tombstone.
Keys and values are msgpack arrays. A value begins with the number of its shape; fields may be added at its end.
"""

from enum import IntEnum
from typing import NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from runnel.model.errors import RecordUnreadable
from runnel.model.ids import PartitionKey, TopicId
from runnel.model.partition_sets import Grouped
from runnel.model.unreadable import FOREIGN


class Kind(IntEnum):
    """The first element of a key."""

    GROUP = 1
    MEMBER = 2
    TARGET = 3
    CURRENT = 4
    OFFSET = 5
    PENDING = 6


class MemberState(IntEnum):
    """Where a KIP-848 member stands between its current and its target assignment."""

    STABLE = 1
    UNREVOKED = 2  # it has been told to give partitions up, and has not yet done so
    UNRELEASED = 3  # it waits for partitions that others have not given up yet


class Key(NamedTuple):
    """A group, or one of its members."""

    kind: Kind
    group_id: str
    member_id: str = ""


class OffsetKey(NamedTuple):
    group_id: str
    partition: PartitionKey


class PendingKey(NamedTuple):
    """What a group's offsets will be if a producer's transaction is committed."""

    group_id: str
    producer_id: int


AnyKey: TypeAlias = Key | OffsetKey | PendingKey


class ClassicGroupRecord(msgspec.Struct, frozen=True, array_like=True, tag=1):
    protocol_type: str
    generation: int
    protocol: str
    leader: str
    stable: bool  # the leader's assignment has arrived
    since_ms: int  # wall time of the last change; for an empty group, since when it is empty


class ConsumerGroupRecord(msgspec.Struct, frozen=True, array_like=True, tag=2):
    epoch: int
    assignment_epoch: int
    assignor: str
    topics_hash: int  # of ids and partition counts of the topics subscribed to, when the epoch was set
    since_ms: int


class ShareGroupRecord(msgspec.Struct, frozen=True, array_like=True, tag=3):
    epoch: int
    topics_hash: int
    since_ms: int
    topics: tuple[UUID, ...]  # in which the group has, or may have, a place
    counts: tuple[int, ...] = ()  # of each: the partitions that it had when the group came to it; -1: nobody knows


class ClassicMemberRecord(msgspec.Struct, frozen=True, array_like=True, tag=1):
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes


class ClassicTerms(msgspec.Struct, frozen=True, array_like=True):
    """What a member of an upgraded group that still speaks the classic protocol has asked for."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class ConsumerMemberRecord(msgspec.Struct, frozen=True, array_like=True, tag=2):
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    topic_names: tuple[str, ...]
    topic_regex: str
    assignor: str
    classic: ClassicTerms | None = None
    session_timeout_ms: int = 0  # the group's own; 0: the broker's


class ShareMemberRecord(msgspec.Struct, frozen=True, array_like=True, tag=3):
    rack_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    topic_names: tuple[str, ...]


class TargetRecord(msgspec.Struct, frozen=True, array_like=True, tag=1):
    partitions: Grouped


class CurrentRecord(msgspec.Struct, frozen=True, array_like=True, tag=1):
    epoch: int
    previous_epoch: int
    state: MemberState
    assigned: tuple[tuple[int, Grouped], ...]  # by the epoch in which it was given
    revoking: Grouped


class OffsetRecord(msgspec.Struct, frozen=True, array_like=True, tag=1):
    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int  # wall time
    expires_ms: int | None = None  # wall time; only if an old client asked for its own retention


class PendingOffset(msgspec.Struct, frozen=True, array_like=True):
    topic_id: UUID
    number: int
    order: int  # which of the group's pending offsets came later, also those of other producers
    offset: int
    leader_epoch: int
    metadata: str

    @property
    def partition(self) -> PartitionKey:
        return PartitionKey(TopicId(self.topic_id), self.number)


class PendingRecord(msgspec.Struct, frozen=True, array_like=True, tag=1):
    epoch: int  # of the producer
    coordinator_epoch: int  # of the transaction's coordinator, when it let the offsets in
    offsets: tuple[PendingOffset, ...]


GroupRecord: TypeAlias = ClassicGroupRecord | ConsumerGroupRecord | ShareGroupRecord
MemberRecord: TypeAlias = ClassicMemberRecord | ConsumerMemberRecord | ShareMemberRecord
Value: TypeAlias = GroupRecord | MemberRecord | TargetRecord | CurrentRecord | OffsetRecord | PendingRecord

_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_values: dict[Kind, msgspec.msgpack.Decoder[Value]] = {
    Kind.GROUP: msgspec.msgpack.Decoder(GroupRecord),
    Kind.MEMBER: msgspec.msgpack.Decoder(MemberRecord),
    Kind.TARGET: msgspec.msgpack.Decoder(TargetRecord),
    Kind.CURRENT: msgspec.msgpack.Decoder(CurrentRecord),
    Kind.OFFSET: msgspec.msgpack.Decoder(OffsetRecord),
    Kind.PENDING: msgspec.msgpack.Decoder(PendingRecord),
}


def encode_key(key: AnyKey) -> bytes:
    if isinstance(key, OffsetKey):
        return _encoder.encode((Kind.OFFSET, key.group_id, key.partition.topic_id.bytes, key.partition.number))
    if isinstance(key, PendingKey):
        return _encoder.encode((Kind.PENDING, key.group_id, key.producer_id))
    return _encoder.encode((key.kind, key.group_id, key.member_id))


def encode_value(value: Value) -> bytes:
    return _encoder.encode(value)


def decode(key: bytes, value: bytes | None) -> tuple[AnyKey, Value | None] | None:
    """One record as it was written; None if its kind is unknown: a newer broker wrote it and can do without us."""
    try:
        parts = msgspec.msgpack.decode(key)
        if parts[0] not in _values:
            return None
        kind = Kind(parts[0])
        return _key(kind, parts), None if value is None else _values[kind].decode(value)
    except FOREIGN as problem:
        raise RecordUnreadable(
            f"group record with key {key[:64].hex()} can't be read: {problem}; was it written by a newer Runnel?"
        ) from None


def _key(kind: Kind, parts: list[object]) -> AnyKey:
    if kind is Kind.PENDING:
        _, group_id, producer_id = parts
        if not isinstance(producer_id, int):
            raise ValueError("a pending offset's key names its producer by a number")
        return PendingKey(str(group_id), producer_id)
    if kind is not Kind.OFFSET:
        _, group_id, member_id = parts
        return Key(kind, str(group_id), str(member_id))
    _, group_id, topic_id, number = parts
    if not (isinstance(topic_id, bytes) and isinstance(number, int)):
        raise ValueError("an offset's key names its topic by 16 bytes and its partition by a number")
    return OffsetKey(str(group_id), PartitionKey(TopicId(UUID(bytes=topic_id)), number))
