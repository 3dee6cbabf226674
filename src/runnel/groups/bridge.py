"""Members of an upgraded group that still speak the classic protocol.

They join, sync and send heartbeats as ever. Their generation is the member epoch, nobody of them leads, and the
broker's assignment comes as the bytes a leader would have sent. A rebalance is a heartbeat that says "join again":
what a member owns, it says in its next join.
"""

from runnel.groups.consumers import Consumer, Consumers
from runnel.groups.records import ClassicTerms, ConsumerMemberRecord, MemberState
from runnel.groups.seats import new_member_id
from runnel.groups.subscription import (
    CONSUMER,
    Malformed,
    Subscription,
    TopicPartitions,
    read_subscription,
    write_assignment,
)
from runnel.groups.timers import Alarm
from runnel.groups.turn import Turn
from runnel.groups.values import Done, Heartbeat, Join, Joined, Leave, Leaver, Left, Sync, Synced, check_timeouts
from runnel.model.errors import (
    GroupFull,
    IllegalGeneration,
    InconsistentGroupProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    RunnelError,
    UnknownMember,
    as_value,
)
from runnel.model.ids import PartitionKey
from runnel.model.partition_sets import Partitions


class ClassicSeats(Consumers):
    # --- joining
    def join(self, request: Join, ticket: object, turn: Turn) -> None:
        check_timeouts(request.session_timeout_ms, request.rebalance_timeout_ms, turn.config)
        subscription = self._read_join(request)
        count = len(self.members)
        member = self._enrol_classic(request, subscription, turn)
        changed = self._wish(member, classic_wishes(request, subscription), turn)
        if self._notice_topics(turn) or changed or len(self.members) > count:
            self._bump(turn)
        self._assign_if_due(turn)
        self._advance(member, partitions_of(subscription.owned, turn), turn)
        self._heard(member, turn)
        turn.timers.cancel(self._timer(Alarm.JOIN, member.member_id))
        self._expect(Alarm.SYNC, member, turn)
        turn.reply(ticket, Joined(member.member_id, member.current.epoch, CONSUMER, _protocol(member), "", ()))

    def _read_join(self, request: Join) -> Subscription:
        offered = {each.name for each in request.protocols}
        others = [member for member in self.members.values() if member.member_id != request.member_id]
        shared = offered.intersection(*(_protocols(member) for member in others if member.is_classic))
        try:
            if request.protocol_type == CONSUMER and shared:
                return read_subscription(request.protocols[0].metadata)
        except Malformed:
            pass
        raise InconsistentGroupProtocol(
            f"group {self.group_id!r} takes consumers alone, with a protocol that all its classic members offer"
        )

    def _enrol_classic(self, request: Join, subscription: Subscription, turn: Turn) -> Consumer:
        holder = self.statics.get(request.instance_id or "")
        if request.instance_id is not None and request.member_id:
            return self._find(request.member_id, request.instance_id)
        if request.member_id in self.members:
            return self.members[request.member_id]
        if any(numbers for _, numbers in subscription.owned):
            # It was removed without noticing, and still reads what may be another's by now.
            raise UnknownMember(
                f"{request.member_id!r} is no member of the group (any more): join anew, owning nothing"
            )
        member_id = request.member_id or new_member_id(request, turn.rng)
        if holder is not None:
            return self._succeed(self.members[holder], member_id, turn)
        if len(self.members) >= turn.config.consumer_members_max:
            raise GroupFull(f"group {self.group_id!r} is full: raise group.consumer.max.size")
        if request.instance_id is None and request.requires_known_id and not request.member_id:
            raise MemberIdRequired(f"join group {self.group_id!r} again as {member_id!r}", member_id=member_id)
        member = Consumer(member_id, classic_wishes(request, subscription))
        self._read_topics(member, turn)
        self._seat(member)
        return member

    # --- living on
    def sync(self, request: Sync, ticket: object, turn: Turn) -> None:
        member = self._classic(request.member_id, request.instance_id, request.generation)
        if request.protocol_type not in (None, CONSUMER) or request.protocol not in (None, _protocol(member)):
            raise InconsistentGroupProtocol(f"group {self.group_id!r} uses {CONSUMER}/{_protocol(member)}: join again")
        if member.current.epoch < self.assignment_epoch and member.current.state is not MemberState.UNREVOKED:
            self._ask_to_rejoin(member, turn)
        turn.timers.cancel(self._timer(Alarm.SYNC, member.member_id))
        self._heard(member, turn)
        assignment = write_assignment(named(member.current.assigned, turn))
        turn.reply(ticket, Synced(CONSUMER, _protocol(member), assignment))

    def heartbeat(self, request: Heartbeat, ticket: object, turn: Turn) -> None:
        member = self._classic(request.member_id, request.instance_id, request.generation)
        self._heard(member, turn)
        if self._notice_topics(turn):
            self._bump(turn)
        self._assign_if_due(turn)
        if self._has_to_rejoin(member):
            self._ask_to_rejoin(member, turn)
        turn.reply(ticket, Done())

    def _has_to_rejoin(self, member: Consumer) -> bool:
        """A new assignment, something to give up, or something that has become free."""
        current = member.current
        if current.epoch < self.assignment_epoch or current.state is MemberState.UNREVOKED:
            return True
        return any(partition not in self._holders for partition in member.target - current.assigned)

    def _ask_to_rejoin(self, member: Consumer, turn: Turn) -> None:
        self._heard(member, turn)
        self._expect(Alarm.JOIN, member, turn)
        raise RebalanceInProgress(f"group {self.group_id!r} rebalances: join again")

    def _expect(self, alarm: Alarm, member: Consumer, turn: Turn) -> None:
        """It has its rebalance timeout for the next step, counted from the first time it is told."""
        timer = self._timer(alarm, member.member_id)
        if turn.timers.deadline(timer) is None:
            turn.timers.set(timer, turn.now_ms + member.record.rebalance_timeout_ms)

    def _classic(self, member_id: str, instance_id: str | None, generation: int) -> Consumer:
        member = self._find(member_id, instance_id)
        if not member.is_classic:
            raise UnknownMember(f"{member_id!r} does not speak the classic protocol: use ConsumerGroupHeartbeat")
        if generation != member.current.epoch:
            raise IllegalGeneration(f"generation {generation} is over, now is {member.current.epoch}: join again")
        return member

    # --- leaving
    def leave(self, request: Leave, ticket: object, turn: Turn) -> None:
        turn.reply(ticket, Left(tuple((leaver, self._leave_one(leaver, turn)) for leaver in request.members)))

    def _leave_one(self, leaver: Leaver, turn: Turn) -> RunnelError | None:
        member_id = leaver.member_id or self.statics.get(leaver.instance_id or "", "")
        try:
            member = self._find(member_id, leaver.instance_id)
        except RunnelError as error:
            return as_value(error)
        if leaver.member_id and not member.is_classic:
            return UnknownMember(f"{member_id!r} does not speak the classic protocol: use ConsumerGroupHeartbeat")
        self._dismiss(member, turn)
        return None


def classic_wishes(request: Join, subscription: Subscription) -> ConsumerMemberRecord:
    protocols = tuple((each.name, each.metadata) for each in request.protocols)
    return ConsumerMemberRecord(
        request.instance_id, subscription.rack_id, request.client_id, request.client_host,
        request.rebalance_timeout_ms, tuple(sorted(set(subscription.topics))), "", "",
        ClassicTerms(request.session_timeout_ms, protocols),
    )  # fmt: skip


def partitions_of(topics: TopicPartitions, turn: Turn) -> Partitions:
    """Those that there can be: a member may say anything."""
    ids = ((turn.topics.id_of(name), numbers) for name, numbers in topics)
    return frozenset(
        PartitionKey(topic_id, number) for topic_id, numbers in ids if topic_id for number in numbers if number >= 0
    )


def named(partitions: Partitions, turn: Turn) -> TopicPartitions:
    """With names for ids, in order; without topics that are gone."""
    topics: dict[str, list[int]] = {}
    for topic_id, number in sorted(partitions):
        name = turn.topics.name_of(topic_id)
        if name is not None:
            topics.setdefault(name, []).append(number)
    return tuple((name, tuple(numbers)) for name, numbers in sorted(topics.items()))


def _protocol(member: Consumer) -> str:
    return next(iter(_protocols(member)))


def _protocols(member: Consumer) -> dict[str, bytes]:
    return dict(member.record.classic.protocols) if member.record.classic else {}
