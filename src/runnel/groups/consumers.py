"""The members of a KIP-848 group, their epochs and their partitions.

    group epoch       +1 whenever members, their wishes or their topics change
    assignment epoch  the group epoch that the targets were made for
    member epoch      the assignment epoch a member has got to

Rule 1: a partition is held by one member at the most; it stays with a member that is giving it up until that is done.
Rule 2: every change goes to the store, so that a replay gives the same group.
"""

from dataclasses import dataclass, field

from runnel.groups.assignors import ASSIGNORS, Claimant
from runnel.groups.reconcile import NOTHING, Current, reconcile
from runnel.groups.records import (
    ConsumerMemberRecord,
    GroupDetails,
    GroupEpochRecord,
    Key,
    Kind,
    MemberState,
    TargetEpochRecord,
    TargetRecord,
)
from runnel.groups.seats import find_seated
from runnel.groups.store import Stored
from runnel.groups.timers import Alarm, Timer
from runnel.groups.topics_read import TopicsRead, topics_hash
from runnel.groups.turn import Turn
from runnel.groups.values import LEAVE_STATIC, GroupState
from runnel.model.ids import Millis, PartitionKey, TopicId
from runnel.model.partition_sets import Partitions, grouped, ungrouped

SMALL = 1_000  # members and partitions: a group up to this size is assigned anew at every change, which takes 10 ms
SPACING_PER_MS = 10  # a larger one at most every 100 ms for each 1,000 of its size


@dataclass(slots=True)
class Consumer:
    member_id: str
    record: ConsumerMemberRecord  # what it wishes
    target: Partitions = NOTHING
    current: Current = field(default_factory=Current)
    names: frozenset[str] = frozenset()  # what its wishes come to, its expression resolved
    topics: frozenset[TopicId] = frozenset()  # those of them that exist

    @property
    def is_classic(self) -> bool:
        return self.record.classic is not None


class Consumers(TopicsRead[Consumer]):
    def __init__(self, group_id: str) -> None:
        super().__init__()
        self.group_id = group_id
        self.epoch = 0
        self.assignment_epoch = 0
        self.assignor = ""
        self.since_ms = 0
        self.session_timeout_ms = 0  # the group's own setting, as its last heartbeat had it; 0: the broker's
        self.statics: dict[str, str] = {}  # instance id -> member id
        self._holders: dict[PartitionKey, str] = {}
        self._assigned_ms: Millis | None = None

    # --- loading
    def _restore(self, stored: Stored) -> None:
        record: GroupEpochRecord | None = stored.group(Kind.CONSUMER_GROUP)
        target_epoch: TargetEpochRecord | None = stored.group(Kind.CONSUMER_TARGET_EPOCH)
        details: GroupDetails = stored.group(Kind.DETAILS) or GroupDetails()
        assert record is not None
        self.epoch, self.assignment_epoch = record.epoch, target_epoch.epoch if target_epoch else 0
        self._topics_hash, self.since_ms, self.assignor = record.topics_hash, details.since_ms, details.assignor
        self.session_timeout_ms = details.session_timeout_ms
        targets = stored.members(Kind.CONSUMER_TARGET)
        currents = stored.members(Kind.CONSUMER_CURRENT)
        for member_id, wishes in stored.members(Kind.CONSUMER_MEMBER).items():
            member = Consumer(member_id, wishes)
            if member_id in targets:
                member.target = ungrouped(targets[member_id].partitions)
            self._seat(member)
            if member_id in currents:
                self._hold(member, Current.of_record(currents[member_id]))

    def wake(self, turn: Turn) -> None:
        """Start the timers after loading: every session begins anew."""
        for member in self.members.values():
            self._read_topics(member, turn)
            self._heard(member, turn)
            if member.current.state is MemberState.UNREVOKED:
                self._time_revocation(member, turn)

    # --- members
    def _seat(self, member: Consumer) -> None:
        self.members[member.member_id] = member
        if member.record.instance_id is not None:
            self.statics[member.record.instance_id] = member.member_id

    def _remove(self, member: Consumer, turn: Turn) -> None:
        """Take a member out; what it held is free at once."""
        self._hold(member, Current())
        del self.members[member.member_id]
        if member.record.instance_id is not None:
            del self.statics[member.record.instance_id]
        for alarm in (Alarm.SESSION, Alarm.REVOKE, Alarm.JOIN, Alarm.SYNC):
            turn.timers.cancel(self._timer(alarm, member.member_id))
        for kind in (Kind.CONSUMER_CURRENT, Kind.CONSUMER_TARGET, Kind.CONSUMER_MEMBER):
            turn.store.drop(Key(kind, self.group_id, member.member_id))

    def _hold(self, member: Consumer, current: Current) -> None:
        for partition in member.current.held - current.held:
            del self._holders[partition]
        for partition in current.held - member.current.held:
            self._holders[partition] = member.member_id
        member.current = current

    def _wish(self, member: Consumer, record: ConsumerMemberRecord, turn: Turn) -> bool:
        """Take over what a member wishes; True if that calls for another assignment."""
        before, member.record = member.record, record
        if before.instance_id != record.instance_id:
            self.statics.pop(before.instance_id or "", None)
            self._seat(member)
        turn.store.put(Key(Kind.CONSUMER_MEMBER, self.group_id, member.member_id), record)
        if (before.topic_names, before.topic_regex) != (record.topic_names, record.topic_regex):
            self._read_topics(member, turn)
            return True
        return before.assignor != record.assignor

    def _find(self, member_id: str, instance_id: str | None) -> Consumer:
        """The member that sent a request, or why it is none (any more)."""
        return find_seated(self.members, self.statics, member_id, instance_id, f"group {self.group_id!r}")

    def _dismiss(self, member: Consumer, turn: Turn) -> None:
        self._remove(member, turn)
        self._bump(turn)

    def _succeed(self, old: Consumer, member_id: str, turn: Turn) -> Consumer:
        """A static member comes back under another id: it takes over partitions and target as they are."""
        new = Consumer(member_id, old.record, old.target, names=old.names, topics=old.topics)
        assigned = old.current.assigned
        self._remove(old, turn)
        self._seat(new)
        self._hold(new, Current(assigned=assigned))
        self._keep_target(new, turn)
        return new

    # --- topics
    def _read_topics(self, member: Consumer, turn: Turn) -> None:
        names = frozenset(member.record.topic_names)
        if member.record.topic_regex:
            names |= turn.patterns.matching(member.record.topic_regex, turn.topics.version, turn.topics.names)
        found = (turn.topics.id_of(name) for name in names)
        member.names = names
        member.topics = frozenset(topic_id for topic_id in found if topic_id is not None)

    # --- epochs and targets
    def _bump(self, turn: Turn) -> None:
        self.epoch += 1
        self.since_ms = turn.wall_ms
        self._topics_hash = topics_hash(self._counts(turn))

    def keep(self, turn: Turn) -> None:
        """Write the group itself down; the shard does so after every change."""
        turn.store.put(Key(Kind.CONSUMER_GROUP, self.group_id), GroupEpochRecord(self.epoch, self._topics_hash))
        turn.store.put(Key(Kind.CONSUMER_TARGET_EPOCH, self.group_id), TargetEpochRecord(self.assignment_epoch))
        details = GroupDetails(self.since_ms, assignor=self.assignor, session_timeout_ms=self.session_timeout_ms)
        turn.store.put(Key(Kind.DETAILS, self.group_id), details)

    def _assign_if_due(self, turn: Turn) -> None:
        """Make new targets if the group has changed; a large group gathers changes for a moment first."""
        if self.epoch == self.assignment_epoch:
            return
        size = len(self.members) + sum(self._counts(turn).values())
        spacing_ms = size // SPACING_PER_MS if size > SMALL else 0
        due_ms = turn.now_ms if self._assigned_ms is None else self._assigned_ms + spacing_ms
        if turn.now_ms < due_ms:
            turn.timers.set(self._timer(Alarm.ASSIGN), due_ms)
        else:
            self._assign(turn)

    def _assign(self, turn: Turn) -> None:
        turn.timers.cancel(self._timer(Alarm.ASSIGN))
        if self._notice_topics(turn):
            self._bump(turn)
        self.assignor = self._choose_assignor(turn.config.consumer_assignors[0])
        claimants = [
            Claimant(member.member_id, member.record.instance_id, member.topics, member.target)
            for member in self.members.values()
        ]
        targets = ASSIGNORS[self.assignor](claimants, self._counts(turn))
        for member in self.members.values():
            member.target = targets[member.member_id]
            self._keep_target(member, turn)
        self.assignment_epoch = self.epoch
        self._assigned_ms = turn.now_ms

    def _keep_target(self, member: Consumer, turn: Turn) -> None:
        key = Key(Kind.CONSUMER_TARGET, self.group_id, member.member_id)
        turn.store.put(key, TargetRecord(grouped(member.target)))

    def _choose_assignor(self, default: str) -> str:
        """The one that most members ask for; the default if nobody asks."""
        votes: dict[str, int] = {}
        for member in self.members.values():
            if member.record.assignor:
                votes[member.record.assignor] = votes.get(member.record.assignor, 0) + 1
        return max(sorted(votes), key=lambda name: votes[name], default=default)

    # --- giving and taking
    def _advance(self, member: Consumer, owned: Partitions | None, turn: Turn) -> bool:
        """One step towards the target; True if what the member is assigned changed."""
        before = member.current
        after = reconcile(before, member.target, self.assignment_epoch, owned, lambda each: each not in self._holders)
        if after is before:
            return False
        self._hold(member, after)
        turn.store.put(Key(Kind.CONSUMER_CURRENT, self.group_id, member.member_id), after.record())
        if after.state is not MemberState.UNREVOKED:
            turn.timers.cancel(self._timer(Alarm.REVOKE, member.member_id))
        elif before.state is not MemberState.UNREVOKED or after.epoch != before.epoch:
            self._time_revocation(member, turn)
        return after.assigned != before.assigned

    def _time_revocation(self, member: Consumer, turn: Turn) -> None:
        timer = self._timer(Alarm.REVOKE, member.member_id)
        turn.timers.set(timer, turn.now_ms + member.record.rebalance_timeout_ms)

    def _heard(self, member: Consumer, turn: Turn) -> None:
        classic = member.record.classic
        own_ms = classic.session_timeout_ms if classic else self.session_timeout_ms
        timeout_ms = own_ms or turn.config.consumer_session_timeout_ms
        turn.timers.set(self._timer(Alarm.SESSION, member.member_id), turn.now_ms + timeout_ms)

    def _timer(self, alarm: Alarm, member_id: str = "") -> Timer:
        return Timer(alarm, self.group_id, member_id)

    # --- looking
    @property
    def state(self) -> GroupState:
        if not self.members:
            return GroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return GroupState.ASSIGNING
        settled = all(
            member.current.state is MemberState.STABLE and member.current.epoch in (self.epoch, LEAVE_STATIC)
            for member in self.members.values()
        )
        return GroupState.STABLE if settled else GroupState.RECONCILING
