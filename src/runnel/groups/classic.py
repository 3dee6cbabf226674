"""A group of the classic protocol: members join, one of them assigns, all fetch their part.

Rule 1: a member speaks for its generation alone; any other generation is refused (heartbeat, sync, commit).
Rule 2: a static member comes back under a new id without a rebalance, and fences whoever held its instance id.
Rule 3: a member that a broker runs (over HTTP) leaves with the broker's life; no timer decides that.
Rule 4: metadata and assignments are the members' business; only of consumers do we read the topics' names.
"""

from runnel.groups.orphans import is_orphan
from runnel.groups.rebalance import Rebalance
from runnel.groups.records import ClassicGroupRecord, GroupDetails, Kind
from runnel.groups.roster import Member
from runnel.groups.seats import new_member_id
from runnel.groups.store import Stored
from runnel.groups.subscription import CONSUMER, Subscription
from runnel.groups.timers import Alarm
from runnel.groups.turn import Turn
from runnel.groups.values import (
    CommitInTransaction,
    CommitOffsets,
    DescribedGroup,
    Done,
    FetchOffsets,
    GroupState,
    GroupType,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Leaver,
    Left,
    ListedGroup,
    Sync,
    Synced,
    check_timeouts,
)
from runnel.model.errors import (
    FencedInstance,
    GroupFull,
    GroupNotEmpty,
    IllegalGeneration,
    InconsistentGroupProtocol,
    MemberIdRequired,
    RebalanceInProgress,
    RunnelError,
    UnknownMember,
    as_value,
)
from runnel.model.ids import PartitionKey


class ClassicGroup(Rebalance):
    type = GroupType.CLASSIC

    # --- loading
    @classmethod
    def restored(cls, group_id: str, stored: Stored) -> "ClassicGroup":
        """The group as the log has it. A rebalance that was under way begins anew when the members notice."""
        group = cls(group_id)
        record: ClassicGroupRecord | None = stored.group(Kind.CLASSIC_GROUP)
        if record is None:
            return group  # offsets alone: nobody ever joined
        assigned = any(each.assignment for each in record.members)
        details: GroupDetails = stored.group(Kind.DETAILS) or GroupDetails(stable=assigned)
        offers = dict(details.protocols)
        for member in record.members:
            group.roster.add(Member.of_record(member, offers.get(member.member_id), record.protocol))
        group.generation, group.since_ms = record.generation, record.since_ms
        group.protocol_type, group.protocol = record.protocol_type, record.protocol
        group.roster.leader = record.leader
        if group.roster.members:
            group.state = GroupState.STABLE if details.stable else GroupState.COMPLETING_REBALANCE
            group._read_topics()
        return group

    def wake(self, turn: Turn) -> None:
        """Start the timers after loading: every session begins anew."""
        for member in self.roster.members.values():
            self._heard(member, turn)
        if self.state is GroupState.COMPLETING_REBALANCE:
            self._unsynced = set(self.roster.members)
            turn.timers.set(self._timer(Alarm.SYNC), turn.now_ms + self.roster.rebalance_timeout_ms)

    # --- joining
    def join(self, request: Join, ticket: object, turn: Turn) -> None:
        self._admit(request, turn)
        if not self.roster.members:
            self.protocol_type = request.protocol_type
        if not request.member_id:
            self._join_new(request, ticket, turn)
        elif request.member_id in self._known_ids and request.instance_id is None:
            self._add(Member.of_join(request.member_id, request), ticket, turn)
        else:
            self._rejoin(request, ticket, turn)

    def _admit(self, request: Join, turn: Turn) -> None:
        check_timeouts(request.session_timeout_ms, request.rebalance_timeout_ms, turn.config)
        if not self._compatible(request):
            raise InconsistentGroupProtocol(
                f"group {self.group_id!r} can't take this member: it shares no protocol with all the others"
            )
        if self._full(request, turn.config.members_max):
            self._forget_id(request.member_id, turn)
            raise GroupFull(f"group {self.group_id!r} has its {turn.config.members_max} members: raise group.max.size")

    def _compatible(self, request: Join) -> bool:
        if not request.protocol_type or not request.protocols:
            return False
        if not self.roster.members:
            return True
        candidates = self.roster.candidates()
        return request.protocol_type == self.protocol_type and any(
            each.name in candidates for each in request.protocols
        )

    def _full(self, request: Join, members_max: int) -> bool:
        member_id = self.roster.statics.get(request.instance_id or "", request.member_id)
        member = self.roster.members.get(member_id)
        if self.state is GroupState.PREPARING_REBALANCE:
            joining = [each for each in self.roster.members.values() if each.joining is not None]
            return len(joining) >= members_max and (member is None or member.joining is None)
        return len(self.roster) >= members_max and member is None

    def _join_new(self, request: Join, ticket: object, turn: Turn) -> None:
        member_id = new_member_id(request, turn.rng)
        if request.instance_id is not None and request.instance_id in self.roster.statics:
            self._return_static(member_id, request, ticket, turn)
        elif request.instance_id is None and request.requires_known_id:
            self._known_ids.add(member_id)
            turn.timers.set(self._timer(Alarm.SESSION, member_id), turn.now_ms + request.session_timeout_ms)
            raise MemberIdRequired(f"join group {self.group_id!r} again as {member_id!r}", member_id=member_id)
        else:
            self._add(Member.of_join(member_id, request), ticket, turn)

    def _add(self, member: Member, ticket: object, turn: Turn) -> None:
        self._known_ids.discard(member.member_id)
        self.roster.add(member)
        self._grown = True
        self._await_join(member, ticket, turn)
        turn.timers.set(self._timer(Alarm.SESSION, member.member_id), turn.now_ms + turn.config.new_member_timeout_ms)
        self._rebalance(turn)

    def _rejoin(self, request: Join, ticket: object, turn: Turn) -> None:
        member = self.roster.find(request.member_id, request.instance_id)
        same = member.protocols == request.protocols
        leads = self.roster.leader == member.member_id
        completing, stable = self.state is GroupState.COMPLETING_REBALANCE, self.state is GroupState.STABLE
        if same and (completing or (stable and not leads)):  # the first answer got lost
            turn.reply(ticket, self._joined(member))
            self._heard(member, turn)
        else:  # a leader that joins a stable group again wants to assign again
            member.update(request)
            self._await_join(member, ticket, turn)
            self._rebalance(turn)

    def _return_static(self, member_id: str, request: Join, ticket: object, turn: Turn) -> None:
        assert request.instance_id is not None
        old_id, old_leader = self.roster.statics[request.instance_id], self.roster.leader
        member = self.roster.members[old_id]
        before = member.subscription(self.protocol)
        self._answer(
            member, FencedInstance(f"instance {request.instance_id!r} joined again elsewhere: stop this one"), turn
        )
        self._rename(member, member_id, turn)
        member.update(request)
        if self.state is not GroupState.STABLE or self._changes_assignment(member, before):
            self._await_join(member, ticket, turn)
            self._rebalance(turn)
            return
        self._heard(member, turn)
        self.persist(turn)
        turn.reply(ticket, self._welcome_back(member, old_leader, request))

    def _changes_assignment(self, member: Member, before: Subscription | None) -> bool:
        """Whether a static member came back with other wishes. What it owned before does not count."""
        if self.roster.select_protocol() != self.protocol:
            return True
        after = member.subscription(self.protocol)
        if self.protocol_type != CONSUMER or before is None or after is None:
            return False
        return set(after.topics) != set(before.topics)

    def _welcome_back(self, member: Member, old_leader: str, request: Join) -> Joined:
        leads = self.roster.leader == member.member_id
        if request.can_skip_assignment:
            return self._joined(member, skip_assignment=leads)
        # An old client that hears it leads would assign, which nobody waits for: it hears its old id as the leader's.
        return Joined(member.member_id, self.generation, self.protocol_type, self.protocol, old_leader, ())

    def _rename(self, member: Member, member_id: str, turn: Turn) -> None:
        turn.timers.cancel(self._timer(Alarm.SESSION, member.member_id))
        if member.member_id in self._unsynced:
            self._unsynced.remove(member.member_id)
            self._unsynced.add(member_id)
        self.roster.replace(member, member_id)

    # --- syncing and living on
    def sync(self, request: Sync, ticket: object, turn: Turn) -> None:
        member = self._speaker(request.member_id, request.instance_id, request.generation)
        self._check_protocol(request)
        if self.state is GroupState.PREPARING_REBALANCE:
            raise RebalanceInProgress(f"group {self.group_id!r} rebalances: join again")
        self._synced(member, turn)
        if self.state is GroupState.STABLE:
            turn.reply(ticket, self._assignment(member))
            self._heard(member, turn)
            return
        self._answer_sync(member, RebalanceInProgress("a newer sync of this member took its place"), turn)
        member.syncing = ticket
        turn.timers.cancel(self._timer(Alarm.SESSION, member.member_id))
        if member.member_id == self.roster.leader:
            self._assign(dict(request.assignments), turn)

    def _check_protocol(self, request: Sync) -> None:
        type_differs = request.protocol_type not in (None, self.protocol_type)
        if type_differs or request.protocol not in (None, self.protocol):
            raise InconsistentGroupProtocol(
                f"group {self.group_id!r} uses {self.protocol_type}/{self.protocol}: join again to learn it"
            )

    def _assign(self, assignments: dict[str, bytes], turn: Turn) -> None:
        for member in self.roster.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        self._enter(GroupState.STABLE, turn)
        for member in self.roster.members.values():
            self._answer_sync(member, self._assignment(member), turn)

    def _assignment(self, member: Member) -> Synced:
        return Synced(self.protocol_type, self.protocol, member.assignment)

    def _synced(self, member: Member, turn: Turn) -> None:
        self._unsynced.discard(member.member_id)
        if not self._unsynced:
            turn.timers.cancel(self._timer(Alarm.SYNC))

    def heartbeat(self, request: Heartbeat, ticket: object, turn: Turn) -> None:
        member = self._speaker(request.member_id, request.instance_id, request.generation)
        self._heard(member, turn)
        if self.state is GroupState.PREPARING_REBALANCE:
            raise RebalanceInProgress(f"group {self.group_id!r} rebalances: join again")
        turn.reply(ticket, Done())

    def leave(self, request: Leave, ticket: object, turn: Turn) -> None:
        count = len(self.roster)
        turn.reply(ticket, Left(tuple((leaver, self._leave_one(leaver, turn)) for leaver in request.members)))
        self._after_loss(turn, of_member=len(self.roster) < count)

    def _leave_one(self, leaver: Leaver, turn: Turn) -> RunnelError | None:
        if leaver.member_id in self._known_ids and leaver.instance_id is None:
            self._forget_id(leaver.member_id, turn)
            return None
        member_id = leaver.member_id or self.roster.statics.get(leaver.instance_id or "", "")
        try:
            self._dismiss(self.roster.find(member_id, leaver.instance_id), turn)
        except RunnelError as error:
            return as_value(error)
        return None

    def remove_orphans(self, turn: Turn) -> bool:
        """Members leave whose broker's life is over, and those that it was about to make; True if there were any."""
        gone = [each for each in self.roster.members.values() if is_orphan(each.client_id, turn)]
        ids = [member_id for member_id in self._known_ids if is_orphan(member_id, turn)]
        for member in gone:
            self._dismiss(member, turn)
        for member_id in ids:
            self._forget_id(member_id, turn)
        if gone or ids:
            self._after_loss(turn, of_member=bool(gone))
        return bool(gone or ids)

    # --- offsets
    def check_commit(self, request: CommitOffsets, turn: Turn) -> None:
        """Raise unless this request may commit. A commit also shows that its member is alive."""
        if request.generation < 0 and self.state is GroupState.EMPTY:
            return
        if request.from_outside:
            raise UnknownMember(f"group {self.group_id!r} has members: stop them before committing from outside")
        member = self._speaker(request.member_id, request.instance_id, request.generation)
        if self.state is GroupState.COMPLETING_REBALANCE:  # its partitions may be another's by now (KAFKA-8421)
            raise RebalanceInProgress(f"group {self.group_id!r} rebalances: sync before committing")
        self._heard(member, turn)

    def check_transaction(self, request: CommitInTransaction) -> None:
        """Raise unless this request may hold offsets for a transaction (KIP-447).

        A producer that names no member is fenced by its transactional id alone. A rebalance does not stand in the way:
        whoever gets the partitions waits for the end of the transaction.
        """
        if request.from_outside or (request.generation < 0 and self.state is GroupState.EMPTY):
            return
        self._speaker(request.member_id, request.instance_id, request.generation)

    def check_partition(self, request: CommitOffsets, partition: PartitionKey) -> RunnelError | None:
        """Whoever may commit may commit everything: what its members have, the broker does not know."""
        return None

    check_transaction_partition = check_partition

    def check_fetch(self, request: FetchOffsets) -> None:
        """Anybody may read the offsets of a classic group."""

    def check_delete_offsets(self) -> None:
        if self.state is not GroupState.EMPTY and self.protocol_type != CONSUMER:
            raise GroupNotEmpty(f"group {self.group_id!r} has members: stop them before deleting its offsets")

    def subscribes(self, topic: str) -> bool:
        return self.state is not GroupState.EMPTY and (self.topics is None or topic in self.topics)

    def unused_since_ms(self, committed_ms: int, topic: str | None) -> int | None:
        """Since when an offset is of no use to the group; None: it may be needed."""
        if not self.protocol_type:
            return committed_ms
        if self.state is GroupState.EMPTY:
            return max(committed_ms, self.since_ms)
        if self.protocol_type != CONSUMER or (topic is not None and self.subscribes(topic)):
            return None
        return committed_ms

    def retire(self, turn: Turn) -> None:
        """The group is about to be deleted: leave no timer behind."""
        for member_id in list(self._known_ids):
            self._forget_id(member_id, turn)

    # --- moving to another protocol
    def disband(self, answer: RunnelError, turn: Turn) -> None:
        """Answer everybody who waits, and stop all timers: the members go on in a group of the other protocol."""
        for member in self.roster.members.values():
            self._answer(member, answer, turn)
            turn.timers.cancel(self._timer(Alarm.SESSION, member.member_id))
        turn.timers.cancel(self._timer(Alarm.JOIN))
        turn.timers.cancel(self._timer(Alarm.SYNC))
        self.retire(turn)

    def resume(self, turn: Turn) -> None:
        """Begin as a stable group with members taken over, and rebalance: nobody has led it so far."""
        self.protocol = self.roster.select_protocol()
        self._read_topics()
        self._enter(GroupState.STABLE, turn)
        for member in self.roster.members.values():
            self._heard(member, turn)
        self._rebalance(turn)

    # --- looking
    @property
    def empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def idle(self) -> bool:
        """Nobody is in it, and nobody is about to come."""
        return self.empty and not self._known_ids

    def listed(self) -> ListedGroup:
        return ListedGroup(self.group_id, self.protocol_type, self.state, self.type)

    def describe(self) -> DescribedGroup:
        stable = self.state is GroupState.STABLE
        members = tuple(member.described(self.protocol, stable) for member in self.roster.members.values())
        return DescribedGroup(self.group_id, self.state, self.protocol_type, self.protocol if stable else "", members)

    def _speaker(self, member_id: str, instance_id: str | None, generation: int) -> Member:
        member = self.roster.find(member_id, instance_id)
        if generation != self.generation:
            raise IllegalGeneration(
                f"generation {generation} of {self.group_id!r} is over, now is {self.generation}: rejoin"
            )
        return member
