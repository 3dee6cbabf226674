"""A share group (KIP-932): its members read the same partitions together, message by message.

    group epoch   +1 whenever members, their wishes or their topics change; the targets are made at once
    member epoch  the group epoch a member has heard of

Rule 1: nothing is given up before it is given to another: partitions are shared, so that a member has its target as
        soon as it hears of it.
Rule 2: a member speaks for its epoch alone; the one before is forgiven, because the answer that moved it on got lost.
Rule 3: every change goes to the store, so that a replay gives the same group.
Rule 4: an empty group stays until it is deleted, because its progress lives elsewhere: it remembers in which topics.
Rule 5: it remembers how many partitions a topic had when the group came to it: those that are added later it reads
        from their beginning, wherever it began itself (KAFKA-20742).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from runnel.groups.assignors.claims import Claimant
from runnel.groups.assignors.simple import assign_simple
from runnel.groups.foreign import Foreign
from runnel.groups.records import (
    CurrentRecord,
    GroupDetails,
    GroupEpochRecord,
    Key,
    Kind,
    MemberState,
    ShareMemberRecord,
    TargetEpochRecord,
    TargetRecord,
)
from runnel.groups.share_values import DescribedShareGroup, DescribedSharer, NoteTopics, ShareAlive, ShareHeartbeat
from runnel.groups.store import Stored
from runnel.groups.timers import Alarm, Timer
from runnel.groups.topics_read import TopicsRead, topics_hash
from runnel.groups.turn import Turn
from runnel.groups.values import LEAVE, GroupState, GroupType, ListedGroup
from runnel.model.errors import FencedMemberEpoch, GroupFull, GroupNotEmpty, InvalidRequest, UnknownMember
from runnel.model.ids import TopicId
from runnel.model.partition_sets import Partitions, grouped, ungrouped

ASSIGNOR = "simple"
NOTHING: Partitions = frozenset()
UNKNOWN = -1
SESSION_TIMEOUT_MS = 45_000  # share.session.timeout.ms


@dataclass(slots=True)
class Sharer:
    """A member of a share group."""

    member_id: str
    record: ShareMemberRecord  # what it wishes
    epoch: int = 0
    previous_epoch: int = 0
    target: Partitions = NOTHING
    assigned: Partitions = NOTHING  # what it was told last
    topics: frozenset[TopicId] = frozenset()  # those of its topics that exist

    def current(self) -> CurrentRecord:
        assigned = ((self.epoch, grouped(self.assigned)),)
        return CurrentRecord(self.epoch, self.previous_epoch, MemberState.STABLE, assigned, ())


class ShareGroup(TopicsRead[Sharer], Foreign):
    type = GroupType.SHARE

    def __init__(self, group_id: str) -> None:
        super().__init__()
        self.group_id = group_id
        self.epoch = 0
        self.since_ms = 0
        self.session_timeout_ms = SESSION_TIMEOUT_MS  # the group's setting, as its last heartbeat had it
        self.topics: dict[TopicId, int] = {}  # in which the group has, or may have, a place; their partitions then

    # --- loading
    @classmethod
    def restored(cls, group_id: str, stored: Stored) -> "ShareGroup":
        group = cls(group_id)
        record: GroupEpochRecord | None = stored.group(Kind.SHARE_GROUP)
        details: GroupDetails = stored.group(Kind.DETAILS) or GroupDetails()
        assert record is not None
        group.epoch, group._topics_hash, group.since_ms = record.epoch, record.topics_hash, details.since_ms
        group.session_timeout_ms = details.session_timeout_ms or SESSION_TIMEOUT_MS
        group.topics = {TopicId(topic_id): count for topic_id, count in details.topics}
        for member_id, wishes in stored.members(Kind.SHARE_MEMBER).items():
            group.members[member_id] = _restored(member_id, wishes, stored)
        return group

    def wake(self, turn: Turn) -> None:
        """Start the timers after loading: every session begins anew."""
        for member in self.members.values():
            self._read_topics(member, turn)
            self._heard(member, turn)

    # --- heartbeats
    def share_heartbeat(self, request: ShareHeartbeat, ticket: object, turn: Turn) -> None:
        if request.member_epoch == LEAVE:
            self._dismiss(self._speaker(request), turn)
            turn.reply(ticket, ShareAlive(request.member_id, LEAVE, request.heartbeat_interval_ms, None))
            return
        count = len(self.members)
        self.session_timeout_ms = request.session_timeout_ms
        member = self._enrol(request, turn) if request.member_epoch == 0 else self._speaker(request)
        changed = self._wish(member, request, turn)
        if self._notice_topics(turn) or changed or len(self.members) > count:
            self._assign(turn)
        self._advance(member, turn)
        self._heard(member, turn)
        told = request.member_epoch != member.epoch or request.topic_names is not None
        assigned = tuple(sorted(member.assigned)) if told else None
        turn.reply(ticket, ShareAlive(member.member_id, member.epoch, request.heartbeat_interval_ms, assigned))

    def _enrol(self, request: ShareHeartbeat, turn: Turn) -> Sharer:
        member = self.members.get(request.member_id)
        if member is None:
            if len(self.members) >= turn.config.share_members_max:
                raise GroupFull(f"share group {self.group_id!r} is full: raise group.share.max.size")
            member = Sharer(request.member_id, wishes_of(request, None))
            self.members[member.member_id] = member
            self._read_topics(member, turn)
        return member

    def _speaker(self, request: ShareHeartbeat) -> Sharer:
        member = self.members.get(request.member_id)
        if member is None:
            raise UnknownMember(
                f"{request.member_id!r} is no member of share group {self.group_id!r} (any more): join with epoch 0"
            )
        if request.member_epoch not in (LEAVE, member.epoch, member.previous_epoch):
            raise FencedMemberEpoch(
                f"{member.member_id!r} is in epoch {member.epoch}, not {request.member_epoch}: join again with epoch 0"
            )
        return member

    def _wish(self, member: Sharer, request: ShareHeartbeat, turn: Turn) -> bool:
        """Take over what a member wishes; True if it reads other topics now."""
        before, member.record = member.record, wishes_of(request, member.record)
        turn.store.put(Key(Kind.SHARE_MEMBER, self.group_id, member.member_id), member.record)
        if before.topic_names == member.record.topic_names:
            return False
        self._read_topics(member, turn)
        return True

    def _advance(self, member: Sharer, turn: Turn) -> None:
        """A member hears of its target."""
        if member.epoch != self.epoch:
            member.previous_epoch, member.epoch = member.epoch, self.epoch
            member.assigned = member.target
            turn.store.put(Key(Kind.SHARE_CURRENT, self.group_id, member.member_id), member.current())

    def _heard(self, member: Sharer, turn: Turn) -> None:
        turn.timers.set(self._timer(member), turn.now_ms + self.session_timeout_ms)

    def _timer(self, member: Sharer) -> Timer:
        return Timer(Alarm.SESSION, self.group_id, member.member_id)

    # --- leaving
    def expire(self, timer: Timer, turn: Turn) -> None:
        self._dismiss(self.members[timer.member_id], turn)

    def _dismiss(self, member: Sharer, turn: Turn) -> None:
        del self.members[member.member_id]
        turn.timers.cancel(self._timer(member))
        for kind in (Kind.SHARE_CURRENT, Kind.SHARE_TARGET, Kind.SHARE_MEMBER):
            turn.store.drop(Key(kind, self.group_id, member.member_id))
        self._assign(turn)

    def retire(self, turn: Turn) -> None:
        """Nothing waits in an empty group."""

    # --- topics and targets
    def _read_topics(self, member: Sharer, turn: Turn) -> None:
        found = (turn.topics.id_of(name) for name in member.record.topic_names)
        member.topics = frozenset(topic_id for topic_id in found if topic_id is not None)

    def _assign(self, turn: Turn) -> None:
        counts = self._counts(turn)
        claimants = [Claimant(each.member_id, None, each.topics, each.target) for each in self.members.values()]
        targets = assign_simple(claimants, counts)
        for member in self.members.values():
            member.target = targets[member.member_id]
            key = Key(Kind.SHARE_TARGET, self.group_id, member.member_id)
            turn.store.put(key, TargetRecord(grouped(member.target)))
        self.topics = counts | self.topics  # rule 5: the first count stays
        self.epoch += 1
        self.since_ms = turn.wall_ms
        self._topics_hash = topics_hash(counts)

    def keep(self, turn: Turn) -> None:
        """Write the group itself down; the shard does so after every change."""
        turn.store.put(Key(Kind.SHARE_GROUP, self.group_id), GroupEpochRecord(self.epoch, self._topics_hash))
        turn.store.put(Key(Kind.SHARE_TARGET_EPOCH, self.group_id), TargetEpochRecord(self.epoch))
        topics = tuple(sorted(self.topics.items()))
        details = GroupDetails(self.since_ms, session_timeout_ms=self.session_timeout_ms, topics=topics)
        turn.store.put(Key(Kind.DETAILS, self.group_id), details)

    # --- administration
    def note_topics(self, request: NoteTopics, turn: Turn) -> None:
        if self.members:
            raise GroupNotEmpty(f"share group {self.group_id!r} has members: stop them before changing its offsets")
        self.epoch = max(self.epoch, 1)  # it stays from now on, as if it had had a member
        for topic_id in request.added:
            self.topics.setdefault(topic_id, turn.topics.partition_count(topic_id))
        for topic_id in request.removed:
            self.topics.pop(topic_id, None)

    def forget_topic(self, topic_id: TopicId) -> None:
        """The topic is gone, and what the group did in it."""
        self.topics.pop(topic_id, None)

    # --- looking
    @property
    def empty(self) -> bool:
        return not self.members

    @property
    def idle(self) -> bool:
        """Whether nobody ever was a member, nor gave it a place."""
        return not self.members and self.epoch == 0

    @property
    def state(self) -> GroupState:
        return GroupState.STABLE if self.members else GroupState.EMPTY

    def listed(self) -> ListedGroup:
        return ListedGroup(self.group_id, "share", self.state, self.type)

    def describe_share(self) -> DescribedShareGroup:
        members = tuple(map(_described, self.members.values()))
        topics = tuple(sorted(self.topics))
        counts = tuple(self.topics[topic_id] for topic_id in topics)
        return DescribedShareGroup(self.group_id, self.state, self.epoch, self.epoch, ASSIGNOR, members, topics, counts)


def _restored(member_id: str, wishes: ShareMemberRecord, stored: Stored) -> Sharer:
    member = Sharer(member_id, wishes)
    if (target := stored.members(Kind.SHARE_TARGET).get(member_id)) is not None:
        member.target = ungrouped(target.partitions)
    if (current := stored.members(Kind.SHARE_CURRENT).get(member_id)) is not None:
        member.epoch, member.previous_epoch = current.epoch, current.previous_epoch
        member.assigned = NOTHING.union(*(ungrouped(part) for _, part in current.assigned))
    return member


def _described(member: Sharer) -> DescribedSharer:
    record = member.record
    return DescribedSharer(
        member.member_id, record.rack_id, member.epoch, record.client_id, record.client_host, record.topic_names,
        tuple(sorted(member.assigned)),
    )  # fmt: skip


def check_share_heartbeat(request: ShareHeartbeat) -> None:
    """Raise if the request makes no sense by itself."""
    if not request.member_id:
        raise InvalidRequest("a member of a share group needs an id: it chooses one before it joins")
    if request.member_epoch < LEAVE:
        raise InvalidRequest(f"member epoch {request.member_epoch} means nothing: use 0 to join, -1 to leave")
    if request.member_epoch == 0 and not request.topic_names:
        raise InvalidRequest("a member that joins must say what it subscribes to")
    if not all(name.strip() for name in request.topic_names or ()):
        raise InvalidRequest("a topic without a name can't be subscribed to")


def wishes_of(request: ShareHeartbeat, before: ShareMemberRecord | None) -> ShareMemberRecord:
    """What a member wishes now: what it says, and what it said before where it says nothing."""
    names: Iterable[str] | None = request.topic_names
    rack_id = request.rack_id
    if before is not None and request.member_epoch != 0:
        names = before.topic_names if names is None else names
        rack_id = before.rack_id if rack_id is None else rack_id
    return ShareMemberRecord(rack_id, request.client_id, request.client_host, tuple(sorted(set(names or ()))))
