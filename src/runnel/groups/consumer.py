"""A group of KIP-848: members say what they want and have, the broker says what each shall have.

Rule 1: a member speaks for its epoch alone. The one before is forgiven if all it claims is still its own: then the
        answer that moved it on got lost.
Rule 2: a static member that leaves with epoch -2 keeps its partitions until its session ends; who comes with its
        instance id gets them.
"""

from uuid import UUID

from runnel.groups.bridge import ClassicSeats
from runnel.groups.consumers import Consumer
from runnel.groups.orphans import is_orphan
from runnel.groups.reconcile import NOTHING, Current
from runnel.groups.records import ConsumerMemberRecord, Key, Kind, MemberState
from runnel.groups.store import Stored
from runnel.groups.timers import Alarm, Timer
from runnel.groups.turn import Turn
from runnel.groups.values import (
    LEAVE_STATIC,
    CommitInTransaction,
    CommitOffsets,
    ConsumerAlive,
    ConsumerHeartbeat,
    DescribedConsumer,
    DescribedConsumerGroup,
    FetchOffsets,
    GroupType,
    ListedGroup,
    check_rebalance_timeout,
)
from runnel.model.errors import (
    FencedMemberEpoch,
    GroupFull,
    IllegalGeneration,
    InvalidRequest,
    RunnelError,
    StaleMemberEpoch,
    UnknownMember,
    UnreleasedInstance,
    UnsupportedAssignor,
)
from runnel.model.ids import PartitionKey


class ConsumerGroup(ClassicSeats):
    type = GroupType.CONSUMER

    @classmethod
    def restored(cls, group_id: str, stored: Stored) -> "ConsumerGroup":
        group = cls(group_id)
        group._restore(stored)
        return group

    # --- heartbeats
    def consumer_heartbeat(self, request: ConsumerHeartbeat, ticket: object, turn: Turn) -> None:
        if request.member_epoch < 0:
            self._leave(self._speaker(request), request, ticket, turn)
            return
        count = len(self.members)
        member = self._enrol(request, turn) if request.member_epoch == 0 else self._speaker(request)
        self.session_timeout_ms = request.session_timeout_ms
        changed = self._wish(member, wishes_of(request, None if request.member_epoch == 0 else member.record), turn)
        if self._notice_topics(turn) or changed or len(self.members) > count:
            self._bump(turn)
        self._assign_if_due(turn)
        owned = None if request.owned is None else frozenset(request.owned)
        gained = self._advance(member, NOTHING if request.member_epoch == 0 else owned, turn)
        self._heard(member, turn)
        turn.reply(ticket, self._alive(member, request, gained or is_full(request), turn))

    def _alive(self, member: Consumer, request: ConsumerHeartbeat, with_assignment: bool, turn: Turn) -> ConsumerAlive:
        assigned = tuple(sorted(member.current.assigned)) if with_assignment else None
        return ConsumerAlive(member.member_id, member.current.epoch, _interval_ms(request, turn), assigned)

    def _enrol(self, request: ConsumerHeartbeat, turn: Turn) -> Consumer:
        """The member that joins: new, back again, or the heir of a static one."""
        holder = self.statics.get(request.instance_id or "")
        if holder is not None and holder != request.member_id:
            old = self.members[holder]
            if old.current.epoch != LEAVE_STATIC and not old.is_classic:  # classic members never say that they go
                raise UnreleasedInstance(
                    f"instance {request.instance_id!r} is held by {holder!r}: stop it, or wait for its session's end"
                )
            return self._succeed(old, request.member_id, turn)
        member = self.members.get(request.member_id)
        if member is None:
            if len(self.members) >= turn.config.consumer_members_max:
                raise GroupFull(f"group {self.group_id!r} is full: raise group.consumer.max.size")
            member_id = request.member_id or str(UUID(bytes=turn.rng.token(16)))
            member = Consumer(member_id, wishes_of(request, None))
            self._read_topics(member, turn)
            self._seat(member)
        elif member.current.epoch == LEAVE_STATIC:
            self._hold(member, Current(assigned=member.current.assigned))
        return member

    def _speaker(self, request: ConsumerHeartbeat) -> Consumer:
        member = self._find(request.member_id, request.instance_id)
        if request.member_epoch < 0 or request.member_epoch == member.current.epoch:
            return member
        owned = None if request.owned is None else frozenset(request.owned)
        previous = request.member_epoch == member.current.previous_epoch and member.current.epoch > 0
        if previous and owned is not None and owned <= member.current.assigned:
            return member
        raise FencedMemberEpoch(
            f"{member.member_id!r} is in epoch {member.current.epoch}, not {request.member_epoch}:"
            " give up all partitions and join again"
        )

    # --- leaving
    def _leave(self, member: Consumer, request: ConsumerHeartbeat, ticket: object, turn: Turn) -> None:
        if request.member_epoch == LEAVE_STATIC:
            current = member.current
            left = Current(LEAVE_STATIC, LEAVE_STATIC, MemberState.STABLE, current.assigned)
            self._hold(member, left)
            turn.store.put(Key(Kind.CONSUMER_CURRENT, self.group_id, member.member_id), left.record())
            turn.timers.cancel(self._timer(Alarm.REVOKE, member.member_id))
        else:
            self._dismiss(member, turn)
        interval_ms = _interval_ms(request, turn)
        turn.reply(ticket, ConsumerAlive(request.member_id, request.member_epoch, interval_ms, None))

    def expire(self, timer: Timer, turn: Turn) -> None:
        if timer.alarm is Alarm.ASSIGN:
            self._assign(turn)
        else:
            self._dismiss(self.members[timer.member_id], turn)

    def remove_orphans(self, turn: Turn) -> bool:
        """Members leave whose broker's life is over, as in a classic group; True if there were any."""
        gone = [each for each in self.members.values() if is_orphan(each.record.client_id, turn)]
        for member in gone:
            self._dismiss(member, turn)
        return bool(gone)

    def retire(self, turn: Turn) -> None:
        turn.timers.cancel(self._timer(Alarm.ASSIGN))

    # --- moving to another protocol
    def take_over(self, member: Consumer, turn: Turn) -> None:
        """Seat a member of a classic group with what it holds."""
        current, member.current = member.current, Current()
        self._seat(member)
        self._hold(member, current)
        turn.store.put(Key(Kind.CONSUMER_MEMBER, self.group_id, member.member_id), member.record)
        turn.store.put(Key(Kind.CONSUMER_CURRENT, self.group_id, member.member_id), current.record())
        self._keep_target(member, turn)
        self._heard(member, turn)
        if current.state is MemberState.UNREVOKED:
            self._time_revocation(member, turn)

    @property
    def only_classic(self) -> bool:
        return bool(self.members) and all(member.is_classic for member in self.members.values())

    def disband(self, turn: Turn) -> None:
        """Stop all timers: the members go on in a classic group."""
        for member_id in self.members:
            for alarm in (Alarm.SESSION, Alarm.REVOKE, Alarm.JOIN, Alarm.SYNC):
                turn.timers.cancel(self._timer(alarm, member_id))
        self.retire(turn)

    # --- offsets
    def check_commit(self, request: CommitOffsets, turn: Turn) -> None:
        if request.generation < 0 and not self.members:
            return
        if request.generation < 0 and not request.member_id:
            raise UnknownMember(f"group {self.group_id!r} has members: stop them before committing from outside")
        member = self._find(request.member_id, request.instance_id)
        if member.is_classic or not 0 < request.generation <= member.current.epoch:
            self._check_epoch(member, request.generation)

    def check_partition(self, request: CommitOffsets, partition: PartitionKey) -> RunnelError | None:
        """A commit from an epoch ago is good for what the member had then and has had ever since (KIP-1251)."""
        member = self.members.get(request.member_id)
        if member is None or request.generation == member.current.epoch:
            return None
        if partition in member.current.assigned and member.current.since(partition) <= request.generation:
            return None
        return _stale(member, request.generation)

    def check_transaction(self, request: CommitInTransaction) -> None:
        """As a classic group does; producers know generations alone, so that a stale epoch is an illegal one."""
        if request.from_outside or (request.generation < 0 and not self.members):
            return
        member = self._find(request.member_id, request.instance_id)
        if member.is_classic or not 0 < request.generation <= member.current.epoch:
            self._check_generation(member, request.generation)

    def check_transaction_partition(self, request: CommitOffsets, partition: PartitionKey) -> RunnelError | None:
        problem = self.check_partition(request, partition)
        return IllegalGeneration(str(problem)) if isinstance(problem, StaleMemberEpoch) else problem

    def check_fetch(self, request: FetchOffsets) -> None:
        if request.member_id is not None or request.member_epoch >= 0:
            self._check_epoch(self._find(request.member_id or "", None), request.member_epoch)

    def _check_generation(self, member: Consumer, generation: int) -> None:
        if generation != member.current.epoch:
            raise IllegalGeneration(f"generation {generation} is over, now is {member.current.epoch}: join again")

    def _check_epoch(self, member: Consumer, epoch: int) -> None:
        if member.is_classic:
            self._check_generation(member, epoch)
        if epoch != member.current.epoch:
            raise _stale(member, epoch)

    def check_delete_offsets(self) -> None:
        """Those of topics that nobody reads can go at any time."""

    def subscribes(self, topic: str) -> bool:
        return any(topic in member.names for member in self.members.values())

    def unused_since_ms(self, committed_ms: int, topic: str | None) -> int | None:
        if not self.members:
            return max(committed_ms, self.since_ms)
        return committed_ms if topic is None or not self.subscribes(topic) else None

    # --- looking
    @property
    def empty(self) -> bool:
        return not self.members

    idle = empty

    def listed(self) -> ListedGroup:
        return ListedGroup(self.group_id, "consumer", self.state, self.type)

    def describe_consumer(self, default_assignor: str) -> DescribedConsumerGroup:
        return DescribedConsumerGroup(
            self.group_id, self.state, self.epoch, self.assignment_epoch, self.assignor or default_assignor,
            tuple(map(_described, self.members.values())),
        )  # fmt: skip


def _stale(member: Consumer, epoch: int) -> StaleMemberEpoch:
    return StaleMemberEpoch(
        f"{member.member_id!r} is in epoch {member.current.epoch}, not {epoch}: retry after the next heartbeat"
    )


def _described(member: Consumer) -> DescribedConsumer:
    record = member.record
    return DescribedConsumer(
        member.member_id, record.instance_id, record.rack_id, member.current.epoch, record.client_id,
        record.client_host, record.topic_names, record.topic_regex or None, tuple(sorted(member.current.assigned)),
        tuple(sorted(member.target)), GroupType.CLASSIC if member.is_classic else GroupType.CONSUMER,
    )  # fmt: skip


def check_heartbeat(request: ConsumerHeartbeat, turn: Turn) -> None:
    """Raise if the request makes no sense by itself."""
    if request.member_epoch < LEAVE_STATIC:
        raise InvalidRequest(f"member epoch {request.member_epoch} means nothing: use 0 to join, -1 to leave")
    if request.member_epoch == LEAVE_STATIC and request.instance_id is None:
        raise InvalidRequest("member epoch -2 is for static members: set group.instance.id, or leave with -1")
    if request.member_epoch != 0 and not request.member_id:
        raise InvalidRequest("only a member that joins can be without an id")
    if request.assignor and request.assignor not in turn.config.consumer_assignors:
        offered = ", ".join(turn.config.consumer_assignors)
        raise UnsupportedAssignor(f"there is no assignor {request.assignor!r}: use one of {offered}")
    if request.rebalance_timeout_ms is not None:
        check_rebalance_timeout(request.rebalance_timeout_ms)
    if request.member_epoch == 0:
        _check_joining(request)
    if request.topic_regex:
        turn.patterns.compile(request.topic_regex)


def _check_joining(request: ConsumerHeartbeat) -> None:
    if request.rebalance_timeout_ms is None:
        raise InvalidRequest("a member that joins must say its rebalance timeout")
    if request.owned:
        raise InvalidRequest("a member that joins can't own partitions yet: give them up first")
    if request.topic_names is None and request.topic_regex is None:
        raise InvalidRequest("a member that joins must say what it subscribes to")


def is_full(request: ConsumerHeartbeat) -> bool:
    """Whether a member says everything, as it does when it joins or has missed an answer."""
    says_topics = request.topic_names is not None or request.topic_regex is not None
    all_said = request.rebalance_timeout_ms is not None and request.owned is not None and says_topics
    return request.member_epoch == 0 or all_said


def wishes_of(request: ConsumerHeartbeat, before: ConsumerMemberRecord | None) -> ConsumerMemberRecord:
    """What a member wishes now: what it says, and what it said before where it says nothing."""
    if before is None:
        before = ConsumerMemberRecord(None, None, "", "", 0, (), "", "")
    names, timeout_ms = request.topic_names, request.rebalance_timeout_ms
    return ConsumerMemberRecord(
        request.instance_id if request.instance_id is not None else before.instance_id,
        request.rack_id if request.rack_id is not None else before.rack_id,
        request.client_id, request.client_host,
        before.rebalance_timeout_ms if timeout_ms is None else timeout_ms,
        before.topic_names if names is None else tuple(sorted(set(names))),
        before.topic_regex if request.topic_regex is None else request.topic_regex,
        before.assignor if request.assignor is None else request.assignor,
    )  # fmt: skip


def _interval_ms(request: ConsumerHeartbeat, turn: Turn) -> int:
    """How often the members of the group that a request is for report."""
    return request.heartbeat_interval_ms or turn.config.consumer_heartbeat_interval_ms
