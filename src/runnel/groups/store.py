"""What the log knows of each group.

Rule 1: durable state changes only through `put` and `drop`, and every such change is a record.
Rule 2: replaying those records through `apply` gives the same state again.
Rule 3: offsets lie under the name of their topic, as Kafka has it, and belong to its id: the first one of a topic that
        was created again takes those of the former topic with it.
Rule 4: members of another type than their group, and all that is of no member, are taken out when the log was read
        (`drop_strays`): the record of the group, or those that ended the members, may have been set aside.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from uuid import UUID

from runnel.groups.record_codec import encode_key, encode_value
from runnel.groups.records import (
    AnyKey,
    Key,
    Kind,
    OffsetKey,
    OffsetRecord,
    PendingKey,
    PendingRecord,
    TopicKey,
    TopicRecord,
    Value,
)
from runnel.model.ids import PartitionKey, TopicId
from runnel.model.step import Record


class Parts(NamedTuple):
    """The kinds of records that a type of group consists of."""

    member: Kind | None = None  # of a classic group, the members stand in the record of the group
    of_members: frozenset[Kind] = frozenset()
    of_group: frozenset[Kind] = frozenset()


# By the record of the group; the first one counts where there are several.
TYPES: Final = {
    Kind.CONSUMER_GROUP: Parts(
        Kind.CONSUMER_MEMBER,
        frozenset((Kind.CONSUMER_MEMBER, Kind.CONSUMER_TARGET, Kind.CONSUMER_CURRENT)),
        frozenset((Kind.CONSUMER_GROUP, Kind.CONSUMER_TARGET_EPOCH, Kind.DETAILS)),
    ),
    Kind.SHARE_GROUP: Parts(
        Kind.SHARE_MEMBER,
        frozenset((Kind.SHARE_MEMBER, Kind.SHARE_TARGET, Kind.SHARE_CURRENT)),
        frozenset((Kind.SHARE_GROUP, Kind.SHARE_TARGET_EPOCH, Kind.DETAILS)),
    ),
    Kind.CLASSIC_GROUP: Parts(of_group=frozenset((Kind.CLASSIC_GROUP, Kind.DETAILS))),
}
NOTHING: Final = Parts()


@dataclass(slots=True)
class TopicOffsets:
    """How far a group has read the partitions of one topic."""

    topic_id: TopicId | None = None
    partitions: dict[int, OffsetRecord] = field(default_factory=dict)


@dataclass(slots=True)
class Stored:
    """One group as a replay of the log would give it."""

    states: dict[Kind, dict[str, Any]] = field(default_factory=dict)  # by the member's id; "" of the group itself
    offsets: dict[str, TopicOffsets] = field(default_factory=dict)  # by the topic's name
    pending: dict[int, PendingRecord] = field(default_factory=dict)  # by producer

    @property
    def blank(self) -> bool:
        return not (self.states or self.offsets or self.pending)

    @property
    def type(self) -> Kind | None:
        """The kind of the group's own record; None if there is none."""
        return next((kind for kind in TYPES if kind in self.states), None)

    def members(self, kind: Kind) -> Mapping[str, Any]:
        """The records of one kind, by member."""
        return self.states.get(kind, {})

    def group(self, kind: Kind) -> Any | None:
        """The record of the group itself."""
        return self.members(kind).get("")

    def strays(self) -> Iterator[tuple[Kind, str]]:
        """Kinds, and members, that do not belong to the group's type or to a member of it."""
        parts = NOTHING if self.type is None else TYPES[self.type]
        members = self.members(parts.member) if parts.member else ()
        for kind, rows in self.states.items():
            if kind not in parts.of_group:
                yield from ((kind, each) for each in rows if kind not in parts.of_members or each not in members)

    def offset(self, topic: str, partition: PartitionKey) -> OffsetRecord | None:
        """How far the group has read a partition of a topic of this name and id."""
        found = self.offsets.get(topic)
        return None if found is None or found.topic_id != partition.topic_id else found.partitions.get(partition.number)

    def topic_of(self, topic_id: UUID) -> str | None:
        """The name under which the group's offsets of a topic lie."""
        return next((name for name, found in self.offsets.items() if found.topic_id == topic_id), None)

    def get(self, key: AnyKey) -> Any | None:
        match key:
            case Key(kind, _, member_id):
                return self.members(kind).get(member_id)
            case PendingKey(_, producer_id):
                return self.pending.get(producer_id)
            case TopicKey(_, topic):
                found = self.offsets.get(topic)
                return None if found is None or found.topic_id is None else TopicRecord(found.topic_id)
            case OffsetKey(_, topic, number):
                found = self.offsets.get(topic)
                return None if found is None else found.partitions.get(number)

    def set(self, key: AnyKey, value: Any) -> None:  # the key's kind decides the value's
        match key:
            case Key(kind, _, member_id):
                _set(self.states.setdefault(kind, {}), member_id, value)
                if not self.states[kind]:
                    del self.states[kind]
            case PendingKey(_, producer_id):
                _set(self.pending, producer_id, value)
            case TopicKey(_, topic) | OffsetKey(_, topic, _):
                self._set_offset(key, self.offsets.setdefault(topic, TopicOffsets()), value)

    def _set_offset(self, key: TopicKey | OffsetKey, found: TopicOffsets, value: Any) -> None:
        if isinstance(key, OffsetKey):
            _set(found.partitions, key.number, value)
        else:
            found.topic_id = None if value is None else value.topic_id
        if found.topic_id is None and not found.partitions:
            del self.offsets[key.topic]


def _set(part: dict[Any, Any], name: object, value: object | None) -> None:
    if value is None:
        part.pop(name, None)
    else:
        part[name] = value


class Store:
    def __init__(self) -> None:
        self.groups: dict[str, Stored] = {}
        self._holders: dict[int, set[str]] = {}  # the groups of which a producer's transaction holds offsets
        self._records: list[Record] = []

    def apply(self, key: AnyKey, value: Value | None) -> None:
        """Take over one change, from the log or on its way there."""
        stored = self.groups.get(key.group_id)
        if stored is None:
            if value is None:
                return
            stored = self.groups[key.group_id] = Stored()
        stored.set(key, value)
        if isinstance(key, PendingKey):
            self._note(key, held=value is not None)
        if value is None and stored.blank:
            del self.groups[key.group_id]

    def _note(self, key: PendingKey, *, held: bool) -> None:
        if held:
            self._holders.setdefault(key.producer_id, set()).add(key.group_id)
        elif groups := self._holders.get(key.producer_id):
            groups.discard(key.group_id)
            if not groups:
                del self._holders[key.producer_id]

    def pending_of(self, producer_id: int) -> list[tuple[str, PendingRecord]]:
        """What a producer's transaction holds, by group."""
        return [
            (group_id, self.groups[group_id].pending[producer_id])
            for group_id in sorted(self._holders.get(producer_id, ()))
        ]

    def get(self, key: AnyKey) -> Any | None:
        stored = self.groups.get(key.group_id)
        return None if stored is None else stored.get(key)

    def put(self, key: AnyKey, value: Value) -> None:
        """Write, unless the log already says so."""
        if self.get(key) != value:
            self.apply(key, value)
            self._records.append((encode_key(key), encode_value(key, value)))

    def drop(self, key: AnyKey) -> None:
        """Write a tombstone, unless there is nothing to forget."""
        if self.get(key) is not None:
            self.apply(key, None)
            self.bury(encode_key(key))

    def bury(self, key: bytes) -> None:
        """Write the tombstone of a key, whatever it is about."""
        self._records.append((key, None))

    # --- offsets
    def put_offset(self, group_id: str, topic: str, partition: PartitionKey, record: OffsetRecord) -> None:
        known = self.get(TopicKey(group_id, topic))
        if known is None or known.topic_id != partition.topic_id:
            self.drop_topic(group_id, topic)
            self.put(TopicKey(group_id, topic), TopicRecord(partition.topic_id))
        self.put(OffsetKey(group_id, topic, partition.number), record)

    def drop_offset(self, group_id: str, topic: str, number: int) -> None:
        self.drop(OffsetKey(group_id, topic, number))
        stored = self.groups.get(group_id)
        if stored and topic in stored.offsets and not stored.offsets[topic].partitions:
            self.drop(TopicKey(group_id, topic))

    def drop_topic(self, group_id: str, topic: str) -> None:
        """Forget how far a group is in a topic."""
        stored = self.groups.get(group_id)
        if stored and topic in stored.offsets:
            for number in list(stored.offsets[topic].partitions):
                self.drop(OffsetKey(group_id, topic, number))
            self.drop(TopicKey(group_id, topic))

    # --- groups
    def drop_strays(self) -> None:
        """Rule 4; and topics of which no offset is left."""
        for group_id, stored in list(self.groups.items()):
            for kind, member_id in list(stored.strays()):
                self.drop(Key(kind, group_id, member_id))
            for topic in [name for name, found in stored.offsets.items() if not found.partitions]:
                self.drop(TopicKey(group_id, topic))

    def drop_membership(self, group_id: str) -> None:
        """Forget everything but the offsets, also those of open transactions."""
        stored = self.groups.get(group_id)
        for kind, members in list(stored.states.items() if stored else ()):
            for member_id in list(members):
                self.drop(Key(kind, group_id, member_id))

    def drop_group(self, group_id: str) -> None:
        stored = self.groups.get(group_id)
        for topic in list(stored.offsets if stored else ()):
            self.drop_topic(group_id, topic)
        for producer_id in list(stored.pending if stored else ()):
            self.drop(PendingKey(group_id, producer_id))
        self.drop_membership(group_id)

    def drain(self) -> list[Record]:
        """The records since the last call, in the order they were written."""
        records, self._records = self._records, []
        return records
