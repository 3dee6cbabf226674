"""What the log knows of each group.

Rule 1: durable state changes only through `put` and `drop`, and every such change is a record.
Rule 2: replaying those records through `apply` gives the same state again.
Rule 3: members of another kind than their group are taken out when the log was read (`drop_strays`): the record of the
        group, or those that ended the members, may have been set aside.
"""

from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Final

from runnel.groups.records import (
    AnyKey,
    ClassicGroupRecord,
    ClassicMemberRecord,
    ConsumerGroupRecord,
    ConsumerMemberRecord,
    CurrentRecord,
    GroupRecord,
    Key,
    Kind,
    MemberRecord,
    OffsetKey,
    OffsetRecord,
    PendingKey,
    PendingRecord,
    ShareGroupRecord,
    ShareMemberRecord,
    TargetRecord,
    Value,
    encode_key,
    encode_value,
)
from runnel.model.ids import PartitionKey
from runnel.model.step import Record

MEMBERS: Final[dict[type, type]] = {
    ClassicGroupRecord: ClassicMemberRecord,
    ConsumerGroupRecord: ConsumerMemberRecord,
    ShareGroupRecord: ShareMemberRecord,
}


@dataclass(slots=True)
class Stored:
    """One group as a replay of the log would give it."""

    group: GroupRecord | None = None
    members: dict[str, MemberRecord] = field(default_factory=dict)
    targets: dict[str, TargetRecord] = field(default_factory=dict)
    currents: dict[str, CurrentRecord] = field(default_factory=dict)
    offsets: dict[PartitionKey, OffsetRecord] = field(default_factory=dict)
    pending: dict[int, PendingRecord] = field(default_factory=dict)  # by producer

    @property
    def blank(self) -> bool:
        return not (self.group or self.members or self.targets or self.currents or self.offsets or self.pending)

    def get(self, key: AnyKey) -> Value | None:
        if isinstance(key, Key) and key.kind is Kind.GROUP:
            return self.group
        part, name = self._place(key)
        found: Value | None = part.get(name)
        return found

    def set(self, key: AnyKey, value: Any) -> None:  # the key's kind decides the value's
        if isinstance(key, Key) and key.kind is Kind.GROUP:
            self.group = value
            return
        part, name = self._place(key)
        if value is None:
            part.pop(name, None)
        else:
            part[name] = value

    def _place(self, key: AnyKey) -> tuple[dict[Any, Any], object]:
        if isinstance(key, OffsetKey):
            return self.offsets, key.partition
        if isinstance(key, PendingKey):
            return self.pending, key.producer_id
        if key.kind is Kind.MEMBER:
            return self.members, key.member_id
        return (self.targets if key.kind is Kind.TARGET else self.currents), key.member_id


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

    def put(self, key: AnyKey, value: Value) -> None:
        """Write, unless the log already says so."""
        stored = self.groups.get(key.group_id)
        if stored is None or stored.get(key) != value:
            self.apply(key, value)
            self._records.append((encode_key(key), encode_value(value)))

    def drop(self, key: AnyKey) -> None:
        """Write a tombstone, unless there is nothing to forget."""
        stored = self.groups.get(key.group_id)
        if stored is not None and stored.get(key) is not None:
            self.apply(key, None)
            self._records.append((encode_key(key), None))

    def drop_strays(self) -> None:
        """Forget members of another kind than their group; rule 3."""
        for group_id, stored in list(self.groups.items()):
            kind = MEMBERS.get(type(stored.group), NoneType)
            known = {**stored.members, **stored.targets, **stored.currents}
            for member_id in [id for id in known if not isinstance(stored.members.get(id, ""), kind)]:
                for part in (Kind.CURRENT, Kind.TARGET, Kind.MEMBER):
                    self.drop(Key(part, group_id, member_id))

    def drop_membership(self, group_id: str) -> None:
        """Forget everything but the offsets, also those of open transactions."""
        stored = self.groups.get(group_id)
        if stored is None:
            return
        for kind, part in (
            (Kind.CURRENT, stored.currents),
            (Kind.TARGET, stored.targets),
            (Kind.MEMBER, stored.members),
        ):
            for member_id in list(part):
                self.drop(Key(kind, group_id, member_id))
        self.drop(Key(Kind.GROUP, group_id))

    def drop_group(self, group_id: str) -> None:
        stored = self.groups.get(group_id)
        for partition in list(stored.offsets if stored else ()):
            self.drop(OffsetKey(group_id, partition))
        for producer_id in list(stored.pending if stored else ()):
            self.drop(PendingKey(group_id, producer_id))
        self.drop_membership(group_id)

    def drain(self) -> list[Record]:
        """The records since the last call, in the order they were written."""
        records, self._records = self._records, []
        return records
