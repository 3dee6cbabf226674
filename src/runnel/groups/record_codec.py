"""Records of groups to bytes and back: Kafka's messages, and Runnel's own in the same notation
(wire/kafka/schema/group_records.txt).

Rule 1: Offsets and classic groups are written in the newest version that is not flexible: all tools read it (decision
        0018). Every version of Kafka's is read.
Rule 2: A record of a type that is not known here is skipped, if the type is Kafka's or Runnel's. A known one that can't
        be read, and a key that is none, is RecordUnreadable.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple
from uuid import UUID

from runnel.groups.records import (
    AnyKey,
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
    OffsetKey,
    OffsetRecord,
    PendingKey,
    PendingOffset,
    PendingRecord,
    ShareMemberRecord,
    TargetEpochRecord,
    TargetRecord,
    TopicKey,
    TopicRecord,
    Value,
)
from runnel.model.errors import RecordUnreadable
from runnel.model.ids import PartitionKey, TopicId
from runnel.model.partition_sets import Grouped, grouped
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.codec import Malformed, decode_versioned, encode_versioned

OFFSET_VERSION: Final = 3
OFFSET_EXPIRING_VERSION: Final = 1  # the only one with a time to expire; it has no leader epoch
CLASSIC_VERSION: Final = 3
NEVER: Final = -1  # of a time
TYPES_OF_KAFKA: Final = range(1_000)  # Kafka 4.3 has counted up to 23
TYPES_OF_RUNNEL: Final = range(10_100, 11_100)


class Form(NamedTuple):
    """How the records of one kind are written."""

    key: Any  # the message's class
    value: Any
    write: Callable[[Any], Any]
    read: Callable[[Any], Value]


# --- keys
def encode_key(key: AnyKey) -> bytes:
    match key:
        case OffsetKey(group_id, topic, number):
            return encode_versioned(m.OffsetCommitKey(group=group_id, topic=topic, partition=number), Kind.OFFSET)
        case TopicKey(group_id, topic):
            return encode_versioned(m.RunnelOffsetsTopicKey(group_id=group_id, topic=topic), Kind.TOPIC)
        case PendingKey(group_id, producer_id):
            return encode_versioned(m.RunnelPendingOffsetsKey(group_id=group_id, producer_id=producer_id), Kind.PENDING)
        case Key(Kind.CLASSIC_GROUP, group_id):
            return encode_versioned(m.GroupMetadataKey(group=group_id), Kind.CLASSIC_GROUP)
        case Key(kind, group_id, member_id):
            about = {"group_id": group_id, "member_id": member_id} if member_id else {"group_id": group_id}
            return encode_versioned(FORMS[kind].key(**about), kind)


def _key_of(kind: Kind, message: Any) -> AnyKey:
    match kind:
        case Kind.OFFSET:
            return OffsetKey(message.group, message.topic, message.partition)
        case Kind.TOPIC:
            return TopicKey(message.group_id, message.topic)
        case Kind.PENDING:
            return PendingKey(message.group_id, message.producer_id)
        case Kind.CLASSIC_GROUP:
            return Key(kind, message.group)
    return Key(kind, message.group_id, getattr(message, "member_id", ""))


# --- both
def encode_value(key: AnyKey, value: Value) -> bytes:
    version = 0
    if isinstance(value, OffsetRecord):
        version = OFFSET_VERSION if value.expires_ms is None else OFFSET_EXPIRING_VERSION
    elif isinstance(value, ClassicGroupRecord):
        version = CLASSIC_VERSION
    return encode_versioned(FORMS[kind_of(key)].write(value), version)


def kind_of(key: AnyKey) -> Kind:
    match key:
        case Key(kind):
            return kind
        case OffsetKey():
            return Kind.OFFSET
        case TopicKey():
            return Kind.TOPIC
    return Kind.PENDING


def decode(key: bytes, value: bytes | None) -> tuple[AnyKey, Value | None] | None:
    """Decode a record; None if its kind is unknown: this broker can do without it."""
    try:
        number = _type_of(key)
        if number not in FORMS:
            return None
        kind = Kind(number)
        form = FORMS[kind]
        about = _key_of(kind, decode_versioned(form.key, key)[1])
        return about, None if value is None else form.read(_read(form.value, value))
    except (Malformed, ValueError) as problem:
        raise RecordUnreadable(
            f"group record with key {key[:64].hex()} can't be read: {problem}; was it written by a newer Runnel?"
        ) from None


def _type_of(key: bytes) -> int:
    number = int.from_bytes(key[:2], "big", signed=True)
    if len(key) < 2 or not (number in TYPES_OF_KAFKA or number in TYPES_OF_RUNNEL):
        raise ValueError("it is no key of a group: neither Kafka nor Runnel has records of such a type")
    return number


def _read(message_class: Any, value: bytes) -> Any:
    version, message = decode_versioned(message_class, value)
    newest = NEWEST.get(message_class.__name__, 0)
    if version > newest:
        raise ValueError(f"{message_class.__name__} has the versions 0 to {newest}, not {version}")
    return message


# --- offsets
def _offset_message(record: OffsetRecord) -> m.OffsetCommitValue:
    return m.OffsetCommitValue(
        offset=record.offset, leader_epoch=record.leader_epoch, metadata=record.metadata,
        commit_timestamp=record.committed_ms,
        expire_timestamp=NEVER if record.expires_ms is None else record.expires_ms,
    )  # fmt: skip


def _offset(message: m.OffsetCommitValue) -> OffsetRecord:
    expires_ms = None if message.expire_timestamp == NEVER else message.expire_timestamp
    return OffsetRecord(message.offset, message.leader_epoch, message.metadata, message.commit_timestamp, expires_ms)


def _pending_message(record: PendingRecord) -> m.RunnelPendingOffsetsValue:
    offsets = [
        m.RunnelPendingOffsetsValue.PendingOffset(
            topic_id=each.topic_id, partition=each.number, order=each.order, offset=each.offset,
            leader_epoch=each.leader_epoch, metadata=each.metadata,
        )
        for each in record.offsets
    ]  # fmt: skip
    return m.RunnelPendingOffsetsValue(
        producer_epoch=record.epoch, coordinator_epoch=record.coordinator_epoch, offsets=offsets
    )


def _pending(message: m.RunnelPendingOffsetsValue) -> PendingRecord:
    offsets = tuple(
        PendingOffset(each.topic_id, each.partition, each.order, each.offset, each.leader_epoch, each.metadata)
        for each in message.offsets
    )
    return PendingRecord(message.producer_epoch, message.coordinator_epoch, offsets)


# --- groups
def _classic_message(record: ClassicGroupRecord) -> m.GroupMetadataValue:
    return m.GroupMetadataValue(
        protocol_type=record.protocol_type, generation=record.generation, protocol=record.protocol or None,
        leader=record.leader or None, current_state_timestamp=record.since_ms,
        members=[_classic_member_message(each) for each in record.members],
    )  # fmt: skip


def _classic_member_message(member: ClassicMemberRecord) -> m.GroupMetadataValue.MemberMetadata:
    return m.GroupMetadataValue.MemberMetadata(
        member_id=member.member_id, group_instance_id=member.instance_id, client_id=member.client_id,
        client_host=member.client_host, rebalance_timeout=member.rebalance_timeout_ms,
        session_timeout=member.session_timeout_ms, subscription=member.subscription, assignment=member.assignment,
    )  # fmt: skip


def _classic(message: m.GroupMetadataValue) -> ClassicGroupRecord:
    members = tuple(
        ClassicMemberRecord(
            each.member_id, each.group_instance_id, each.client_id, each.client_host, each.rebalance_timeout,
            each.session_timeout, bytes(each.subscription), bytes(each.assignment),
        )
        for each in message.members
    )  # fmt: skip
    return ClassicGroupRecord(
        message.protocol_type, message.generation, message.protocol or "", message.leader or "",
        message.current_state_timestamp, members,
    )  # fmt: skip


def _details_message(details: GroupDetails) -> m.RunnelGroupDetailsValue:
    member = m.RunnelGroupDetailsValue.Member
    topic = m.RunnelGroupDetailsValue.Topic
    return m.RunnelGroupDetailsValue(
        since_ms=details.since_ms, stable=details.stable, assignor=details.assignor,
        session_timeout_ms=details.session_timeout_ms,
        topics=[topic(topic_id=topic_id, partitions=count) for topic_id, count in details.topics],
        members=[
            member(member_id=member_id, protocols=_offers(m.RunnelGroupDetailsValue.Protocol, protocols))
            for member_id, protocols in details.protocols
        ],
    )  # fmt: skip


def _details(message: m.RunnelGroupDetailsValue) -> GroupDetails:
    return GroupDetails(
        message.since_ms, message.stable, message.assignor, message.session_timeout_ms,
        tuple((each.topic_id, each.partitions) for each in message.topics),
        tuple((each.member_id, _protocols(each.protocols)) for each in message.members),
    )  # fmt: skip


def _offers(message_class: Any, protocols: Iterable[tuple[str, bytes]]) -> list[Any]:
    return [message_class(name=name, metadata=metadata) for name, metadata in protocols]


def _protocols(offers: Iterable[Any]) -> tuple[tuple[str, bytes], ...]:
    return tuple((each.name, bytes(each.metadata)) for each in offers)


# --- members
def _member_message(record: ConsumerMemberRecord) -> m.ConsumerGroupMemberMetadataValue:
    value = m.ConsumerGroupMemberMetadataValue
    classic = None if record.classic is None else value.ClassicMemberMetadata(
        session_timeout_ms=record.classic.session_timeout_ms,
        supported_protocols=_offers(value.ClassicProtocol, record.classic.protocols),
    )  # fmt: skip
    return value(
        instance_id=record.instance_id, rack_id=record.rack_id, client_id=record.client_id,
        client_host=record.client_host, subscribed_topic_names=list(record.topic_names),
        subscribed_topic_regex=record.topic_regex, rebalance_timeout_ms=record.rebalance_timeout_ms,
        server_assignor=record.assignor or None, classic_member_metadata=classic,
    )  # fmt: skip


def _member(message: m.ConsumerGroupMemberMetadataValue) -> ConsumerMemberRecord:
    classic = message.classic_member_metadata
    return ConsumerMemberRecord(
        message.instance_id, message.rack_id, message.client_id, message.client_host, message.rebalance_timeout_ms,
        tuple(message.subscribed_topic_names), message.subscribed_topic_regex or "", message.server_assignor or "",
        None if classic is None else ClassicTerms(classic.session_timeout_ms, _protocols(classic.supported_protocols)),
    )  # fmt: skip


def _share_member_message(record: ShareMemberRecord) -> m.ShareGroupMemberMetadataValue:
    return m.ShareGroupMemberMetadataValue(
        rack_id=record.rack_id, client_id=record.client_id, client_host=record.client_host,
        subscribed_topic_names=list(record.topic_names),
    )  # fmt: skip


def _share_member(message: m.ShareGroupMemberMetadataValue) -> ShareMemberRecord:
    return ShareMemberRecord(
        message.rack_id, message.client_id, message.client_host, tuple(message.subscribed_topic_names)
    )


# --- assignments
def _target_writer(message_class: Any) -> Callable[[TargetRecord], Any]:
    def write(record: TargetRecord) -> Any:
        return message_class(topic_partitions=_topics(message_class.TopicPartition, record.partitions))

    return write


def _target(message: Any) -> TargetRecord:
    return TargetRecord(_grouped(message.topic_partitions))


def _current_message(record: CurrentRecord) -> m.ConsumerGroupCurrentMemberAssignmentValue:
    value = m.ConsumerGroupCurrentMemberAssignmentValue
    return value(
        member_epoch=record.epoch, previous_member_epoch=record.previous_epoch, state=record.state,
        assigned_partitions=_topics_since(record.assigned),
        partitions_pending_revocation=_topics(value.TopicPartitions, record.revoking),
    )  # fmt: skip


def _topics_since(
    assigned: tuple[tuple[int, Grouped], ...],
) -> list[m.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions]:
    """The epoch in which each partition was given (KIP-1251)."""
    topics: dict[UUID, dict[int, int]] = {}
    for epoch, part in assigned:
        for topic_id, numbers in part:
            topics.setdefault(topic_id, {}).update(dict.fromkeys(numbers, epoch))
    return [
        m.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions(
            topic_id=topic_id, partitions=list(epochs), assignment_epochs=list(epochs.values())
        )
        for topic_id, epochs in topics.items()
    ]


def _current(message: m.ConsumerGroupCurrentMemberAssignmentValue) -> CurrentRecord:
    by_epoch: dict[int, list[PartitionKey]] = {}
    for each in message.assigned_partitions:
        epochs = each.assignment_epochs or [message.member_epoch] * len(each.partitions)
        for number, epoch in zip(each.partitions, epochs, strict=True):
            by_epoch.setdefault(epoch, []).append(PartitionKey(TopicId(each.topic_id), number))
    return CurrentRecord(
        message.member_epoch, message.previous_member_epoch, MemberState(message.state),
        tuple((epoch, grouped(part)) for epoch, part in sorted(by_epoch.items())),
        _grouped(message.partitions_pending_revocation),
    )  # fmt: skip


def _share_current_message(record: CurrentRecord) -> m.ShareGroupCurrentMemberAssignmentValue:
    value = m.ShareGroupCurrentMemberAssignmentValue
    return value(
        member_epoch=record.epoch, previous_member_epoch=record.previous_epoch, state=record.state,
        assigned_partitions=[each for _, part in record.assigned for each in _topics(value.TopicPartitions, part)],
    )  # fmt: skip


def _share_current(message: m.ShareGroupCurrentMemberAssignmentValue) -> CurrentRecord:
    assigned = ((message.member_epoch, _grouped(message.assigned_partitions)),)
    return CurrentRecord(message.member_epoch, message.previous_member_epoch, MemberState(message.state), assigned, ())


def _topics(message_class: Any, partitions: Grouped) -> list[Any]:
    return [message_class(topic_id=topic_id, partitions=list(numbers)) for topic_id, numbers in partitions]


def _grouped(topics: Iterable[Any]) -> Grouped:
    return tuple((each.topic_id, tuple(each.partitions)) for each in topics)


# --- which is which
def _epoch_writer(message_class: Any) -> Callable[[GroupEpochRecord], Any]:
    return lambda record: message_class(epoch=record.epoch, metadata_hash=record.topics_hash)


def _epoch(message: Any) -> GroupEpochRecord:
    return GroupEpochRecord(message.epoch, message.metadata_hash)


def _target_epoch_writer(message_class: Any) -> Callable[[TargetEpochRecord], Any]:
    return lambda record: message_class(assignment_epoch=record.epoch)


def _target_epoch(message: Any) -> TargetEpochRecord:
    return TargetEpochRecord(message.assignment_epoch)


NEWEST: Final = {"OffsetCommitValue": 4, "GroupMetadataValue": 4}  # of all others there is version 0
FORMS: Final = {
    Kind.OFFSET: Form(m.OffsetCommitKey, m.OffsetCommitValue, _offset_message, _offset),
    Kind.CLASSIC_GROUP: Form(m.GroupMetadataKey, m.GroupMetadataValue, _classic_message, _classic),
    Kind.CONSUMER_GROUP: Form(
        m.ConsumerGroupMetadataKey, m.ConsumerGroupMetadataValue, _epoch_writer(m.ConsumerGroupMetadataValue), _epoch
    ),
    Kind.CONSUMER_MEMBER: Form(
        m.ConsumerGroupMemberMetadataKey, m.ConsumerGroupMemberMetadataValue, _member_message, _member
    ),
    Kind.CONSUMER_TARGET_EPOCH: Form(
        m.ConsumerGroupTargetAssignmentMetadataKey, m.ConsumerGroupTargetAssignmentMetadataValue,
        _target_epoch_writer(m.ConsumerGroupTargetAssignmentMetadataValue), _target_epoch,
    ),
    Kind.CONSUMER_TARGET: Form(
        m.ConsumerGroupTargetAssignmentMemberKey, m.ConsumerGroupTargetAssignmentMemberValue,
        _target_writer(m.ConsumerGroupTargetAssignmentMemberValue), _target,
    ),
    Kind.CONSUMER_CURRENT: Form(
        m.ConsumerGroupCurrentMemberAssignmentKey, m.ConsumerGroupCurrentMemberAssignmentValue,
        _current_message, _current,
    ),
    Kind.SHARE_MEMBER: Form(
        m.ShareGroupMemberMetadataKey, m.ShareGroupMemberMetadataValue, _share_member_message, _share_member
    ),
    Kind.SHARE_GROUP: Form(
        m.ShareGroupMetadataKey, m.ShareGroupMetadataValue, _epoch_writer(m.ShareGroupMetadataValue), _epoch
    ),
    Kind.SHARE_TARGET_EPOCH: Form(
        m.ShareGroupTargetAssignmentMetadataKey, m.ShareGroupTargetAssignmentMetadataValue,
        _target_epoch_writer(m.ShareGroupTargetAssignmentMetadataValue), _target_epoch,
    ),
    Kind.SHARE_TARGET: Form(
        m.ShareGroupTargetAssignmentMemberKey, m.ShareGroupTargetAssignmentMemberValue,
        _target_writer(m.ShareGroupTargetAssignmentMemberValue), _target,
    ),
    Kind.SHARE_CURRENT: Form(
        m.ShareGroupCurrentMemberAssignmentKey, m.ShareGroupCurrentMemberAssignmentValue,
        _share_current_message, _share_current,
    ),
    Kind.PENDING: Form(m.RunnelPendingOffsetsKey, m.RunnelPendingOffsetsValue, _pending_message, _pending),
    Kind.TOPIC: Form(
        m.RunnelOffsetsTopicKey, m.RunnelOffsetsTopicValue,
        lambda record: m.RunnelOffsetsTopicValue(topic_id=record.topic_id),
        lambda message: TopicRecord(message.topic_id),
    ),
    Kind.DETAILS: Form(m.RunnelGroupDetailsKey, m.RunnelGroupDetailsValue, _details_message, _details),
}  # fmt: skip
