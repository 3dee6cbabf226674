"""Records of groups as Runnel wrote them before it wrote Kafka's: read once, and written anew
(docs/formats/group-records.md, "Older records").

Rule 1: A coordinator that finds old records writes what they say in the new format, and a tombstone for each of their
        keys, in one batch, before it decides anything else. So there is one format or the other after a crash, too.
Rule 2: What the new records say counts, where both are there: of each offset, and of the members of a group as a whole.
Rule 3: An offset of a topic that is not known stays as it is: without a name it can't be written anew.
Rule 4: A record is refused when it is read (RecordUnreadable) if the new format has no place for it: none of those that
        are kept stops the others. Members of another type than their group, or of none, are not written anew.

The keys and values are msgpack arrays. A key begins with its kind, a value with the number of its shape.
"""

from collections.abc import Container, Iterator
from enum import IntEnum
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

import msgspec

from runnel.groups.records import (
    ClassicGroupRecord,
    ClassicMemberRecord,
    ClassicTerms,
    ConsumerMemberRecord,
    CurrentRecord,
    GroupDetails,
    GroupEpochRecord,
    Key,
    Kind,
    MemberState,
    OffsetRecord,
    PendingKey,
    PendingOffset,
    PendingRecord,
    ShareMemberRecord,
    TargetEpochRecord,
    TargetRecord,
    expiry_ms,
)
from runnel.groups.store import Store
from runnel.groups.turn import Turn
from runnel.model.errors import RecordUnreadable
from runnel.model.ids import PartitionKey, TopicId
from runnel.model.unreadable import FOREIGN
from runnel.wire.kafka.primitives import STRING_BYTES_MAX

ARRAY: Final = 0x90  # a msgpack array of up to 15 elements; as the first byte of Kafka's keys, a negative type
UNKNOWN: Final = -1  # how many partitions a topic had

Int32: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 31), lt=1 << 31)]
Int64: TypeAlias = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
Grouped: TypeAlias = tuple[tuple[UUID, tuple[Int32, ...]], ...]
Row: TypeAlias = tuple["OldKey", Any]
M = TypeVar("M", "OldClassicMember", "OldConsumerMember", "OldShareMember")


class OldKind(IntEnum):
    GROUP = 1
    MEMBER = 2
    TARGET = 3
    CURRENT = 4
    OFFSET = 5
    PENDING = 6


class OldKey(NamedTuple):
    kind: OldKind
    group_id: str
    member_id: str = ""
    partition: PartitionKey | None = None
    producer_id: int = -1


class OldClassicGroup(msgspec.Struct, frozen=True, array_like=True, tag=1):
    protocol_type: str
    generation: Int32
    protocol: str
    leader: str
    stable: bool
    since_ms: Int64


class OldConsumerGroup(msgspec.Struct, frozen=True, array_like=True, tag=2):
    epoch: Int32
    assignment_epoch: Int32
    assignor: str
    topics_hash: Int64
    since_ms: Int64


class OldShareGroup(msgspec.Struct, frozen=True, array_like=True, tag=3):
    epoch: Int32
    topics_hash: Int64
    since_ms: Int64
    topics: tuple[UUID, ...]
    counts: tuple[Int32, ...] = ()


class OldClassicMember(msgspec.Struct, frozen=True, array_like=True, tag=1):
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: Int32
    rebalance_timeout_ms: Int32
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes


class OldClassicTerms(msgspec.Struct, frozen=True, array_like=True):
    session_timeout_ms: Int32
    protocols: tuple[tuple[str, bytes], ...]


class OldConsumerMember(msgspec.Struct, frozen=True, array_like=True, tag=2):
    instance_id: str | None
    rack_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: Int32
    topic_names: tuple[str, ...]
    topic_regex: str
    assignor: str
    classic: OldClassicTerms | None = None
    session_timeout_ms: Int32 = 0  # the group's own; 0: the broker's


class OldShareMember(msgspec.Struct, frozen=True, array_like=True, tag=3):
    rack_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: Int32
    topic_names: tuple[str, ...]


class OldTarget(msgspec.Struct, frozen=True, array_like=True, tag=1):
    partitions: Grouped


class OldCurrent(msgspec.Struct, frozen=True, array_like=True, tag=1):
    epoch: Int32
    previous_epoch: Int32
    state: Literal[1, 2, 3]  # stable, unrevoked, unreleased
    assigned: tuple[tuple[Int32, Grouped], ...]
    revoking: Grouped


class OldOffset(msgspec.Struct, frozen=True, array_like=True, tag=1):
    offset: Int64
    leader_epoch: Int32
    metadata: str
    committed_ms: Int64
    expires_ms: int | None = None  # of any size: clients say how long


class OldPendingOffset(msgspec.Struct, frozen=True, array_like=True):
    topic_id: UUID
    number: Int32
    order: Int64
    offset: Int64
    leader_epoch: Int32
    metadata: str


class OldPending(msgspec.Struct, frozen=True, array_like=True, tag=1):
    epoch: Int32
    coordinator_epoch: Int32
    offsets: tuple[OldPendingOffset, ...]


_values: dict[OldKind, msgspec.msgpack.Decoder[Any]] = {
    OldKind.GROUP: msgspec.msgpack.Decoder(OldClassicGroup | OldConsumerGroup | OldShareGroup),
    OldKind.MEMBER: msgspec.msgpack.Decoder(OldClassicMember | OldConsumerMember | OldShareMember),
    OldKind.TARGET: msgspec.msgpack.Decoder(OldTarget),
    OldKind.CURRENT: msgspec.msgpack.Decoder(OldCurrent),
    OldKind.OFFSET: msgspec.msgpack.Decoder(OldOffset),
    OldKind.PENDING: msgspec.msgpack.Decoder(OldPending),
}
_group_key = msgspec.msgpack.Decoder(tuple[int, str, str])
_offset_key = msgspec.msgpack.Decoder(tuple[int, str, UUID, Int32])
_pending_key = msgspec.msgpack.Decoder(tuple[int, str, Int64])


def is_old(key: bytes) -> bool:
    return len(key) > 0 and key[0] & 0xF0 == ARRAY


def decode(key: bytes, value: bytes | None) -> Row | None:
    """Decode a record; None if its kind is unknown."""
    try:
        parts = msgspec.msgpack.decode(key)
        if parts[0] not in _values:
            return None
        kind = OldKind(parts[0])
        return _key(kind, key), None if value is None else _value(kind, value)
    except FOREIGN as problem:
        raise RecordUnreadable(f"old group record with key {key[:64].hex()} can't be read: {problem}") from None


def _key(kind: OldKind, key: bytes) -> OldKey:
    _check_texts(key)
    if kind is OldKind.PENDING:
        _, group_id, producer_id = _pending_key.decode(key)
        return OldKey(kind, group_id, producer_id=producer_id)
    if kind is OldKind.OFFSET:
        _, group_id, topic_id, number = _offset_key.decode(key)
        return OldKey(kind, group_id, partition=PartitionKey(TopicId(topic_id), number))
    _, group_id, member_id = _group_key.decode(key)
    return OldKey(kind, group_id, member_id)


def _value(kind: OldKind, value: bytes) -> Any:
    _check_texts(value)
    return _values[kind].decode(value)


def _check_texts(data: bytes) -> None:
    """Raise if a text is longer than Kafka's strings."""
    if len(data) > STRING_BYTES_MAX and any(
        len(each.encode()) > STRING_BYTES_MAX for each in _texts(msgspec.msgpack.decode(data))
    ):
        raise ValueError(f"a text in it is longer than {STRING_BYTES_MAX} bytes")


def _texts(parts: object) -> Iterator[str]:
    if isinstance(parts, str):
        yield parts
    elif isinstance(parts, list):
        for each in parts:
            yield from _texts(each)


class OldRecords:
    """The old records of a shard that no tombstone has followed."""

    def __init__(self) -> None:
        self._rows: dict[bytes, Row] = {}

    def replay(self, key: bytes, value: bytes | None) -> None:
        row = decode(key, value)
        if row is None or row[1] is None:
            self._rows.pop(key, None)
        else:
            self._rows[key] = row

    def rewrite(self, turn: Turn) -> None:
        """Write everything in the new format, and a tombstone for each old key."""
        groups: dict[str, dict[bytes, Row]] = {}
        for key, row in self._rows.items():
            groups.setdefault(row[0].group_id, {})[key] = row
        for group_id, rows in groups.items():
            _rewrite(group_id, rows, turn)
        self._rows.clear()


def _rewrite(group_id: str, rows: dict[bytes, Row], turn: Turn) -> None:
    kept = {key for key, row in rows.items() if not _rewrite_offset(group_id, row, turn)}
    stored = turn.store.groups.get(group_id)
    if not (stored and stored.states):  # rule 2
        _rewrite_membership(group_id, list(rows.values()), turn.store)
    for key in rows:
        if key not in kept:
            turn.store.bury(key)


def _rewrite_offset(group_id: str, row: Row, turn: Turn) -> bool:
    """Write an offset, or those of a transaction; False if the topic is not known."""
    key, value = row
    if isinstance(value, OldPending):
        offsets = tuple(PendingOffset(*msgspec.structs.astuple(each)) for each in value.offsets)
        about = PendingKey(group_id, key.producer_id)
        if turn.store.get(about) is None:
            turn.store.put(about, PendingRecord(value.epoch, value.coordinator_epoch, offsets))
    elif isinstance(value, OldOffset) and key.partition is not None:
        name = turn.topics.name_of(key.partition.topic_id)
        if name is None:
            return False
        stored = turn.store.groups.get(group_id)
        if stored is None or stored.offset(name, key.partition) is None:
            turn.store.put_offset(group_id, name, key.partition, _offset(value))
    return True


def _offset(old: OldOffset) -> OffsetRecord:
    expires_ms = None if old.expires_ms is None else expiry_ms(old.expires_ms)
    return OffsetRecord(old.offset, old.leader_epoch, old.metadata, old.committed_ms, expires_ms)


# --- members
def _rewrite_membership(group_id: str, rows: list[Row], store: Store) -> None:
    group = next((value for key, value in rows if key.kind is OldKind.GROUP), None)
    match group:
        case OldClassicGroup():
            _rewrite_classic(group_id, group, _members(rows, OldClassicMember), store)
        case OldConsumerGroup():
            wishes = _members(rows, OldConsumerMember)
            _rewrite_consumer(group_id, group, wishes, store)
            _rewrite_assignments(rows, wishes, Kind.CONSUMER_TARGET, Kind.CONSUMER_CURRENT, store)
        case OldShareGroup():
            sharers = _members(rows, OldShareMember)
            _rewrite_share(group_id, group, sharers, store)
            _rewrite_assignments(rows, sharers, Kind.SHARE_TARGET, Kind.SHARE_CURRENT, store)


def _members(rows: list[Row], of_type: type[M]) -> dict[str, M]:
    """The members of the group's type; rule 4."""
    return {key.member_id: value for key, value in rows if isinstance(value, of_type)}


def _rewrite_classic(group_id: str, group: OldClassicGroup, members: dict[str, OldClassicMember], store: Store) -> None:
    rows = tuple(
        ClassicMemberRecord(
            member_id, member.instance_id, member.client_id, member.client_host, member.rebalance_timeout_ms,
            member.session_timeout_ms, dict(member.protocols).get(group.protocol, b""), member.assignment,
        )
        for member_id, member in members.items()
    )  # fmt: skip
    record = ClassicGroupRecord(
        group.protocol_type, group.generation, group.protocol, group.leader, group.since_ms, rows
    )
    offers = tuple((member_id, member.protocols) for member_id, member in members.items())
    store.put(Key(Kind.CLASSIC_GROUP, group_id), record)
    store.put(Key(Kind.DETAILS, group_id), GroupDetails(stable=group.stable, protocols=offers))


def _rewrite_consumer(
    group_id: str, group: OldConsumerGroup, members: dict[str, OldConsumerMember], store: Store
) -> None:
    store.put(Key(Kind.CONSUMER_GROUP, group_id), GroupEpochRecord(group.epoch, group.topics_hash))
    store.put(Key(Kind.CONSUMER_TARGET_EPOCH, group_id), TargetEpochRecord(group.assignment_epoch))
    timeout_ms = max((each.session_timeout_ms for each in members.values()), default=0)
    details = GroupDetails(group.since_ms, assignor=group.assignor, session_timeout_ms=timeout_ms)
    store.put(Key(Kind.DETAILS, group_id), details)
    for member_id, member in members.items():
        wishes = ConsumerMemberRecord(
            member.instance_id, member.rack_id, member.client_id, member.client_host, member.rebalance_timeout_ms,
            member.topic_names, member.topic_regex, member.assignor,
            None if (terms := member.classic) is None else ClassicTerms(terms.session_timeout_ms, terms.protocols),
        )  # fmt: skip
        store.put(Key(Kind.CONSUMER_MEMBER, group_id, member_id), wishes)


def _rewrite_share(group_id: str, group: OldShareGroup, members: dict[str, OldShareMember], store: Store) -> None:
    store.put(Key(Kind.SHARE_GROUP, group_id), GroupEpochRecord(group.epoch, group.topics_hash))
    store.put(Key(Kind.SHARE_TARGET_EPOCH, group_id), TargetEpochRecord(group.epoch))
    timeout_ms = max((each.session_timeout_ms for each in members.values()), default=0)
    known = len(group.counts) == len(group.topics)
    counts = group.counts if known else (UNKNOWN,) * len(group.topics)
    topics = tuple(sorted(zip(group.topics, counts, strict=True)))
    store.put(Key(Kind.DETAILS, group_id), GroupDetails(group.since_ms, session_timeout_ms=timeout_ms, topics=topics))
    for member_id, member in members.items():
        wishes = ShareMemberRecord(member.rack_id, member.client_id, member.client_host, member.topic_names)
        store.put(Key(Kind.SHARE_MEMBER, group_id, member_id), wishes)


def _rewrite_assignments(rows: list[Row], members: Container[str], target: Kind, current: Kind, store: Store) -> None:
    for key, value in rows:
        if key.member_id not in members:
            continue
        if isinstance(value, OldTarget):
            store.put(Key(target, key.group_id, key.member_id), TargetRecord(value.partitions))
        elif isinstance(value, OldCurrent):
            has = CurrentRecord(
                value.epoch, value.previous_epoch, MemberState(value.state - 1), value.assigned, value.revoking
            )
            store.put(Key(current, key.group_id, key.member_id), has)
