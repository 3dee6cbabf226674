"""How a classic group gets from one generation to the next.

    Empty --join--> PreparingRebalance --all joined, or time is up--> CompletingRebalance --leader syncs--> Stable
      ^                 ^   |                                                |                                |
      +--nobody joined--+---+                  <--join, leave, expiry--------+--------------------------------+

Rule 1: the log has a generation before any member hears of it, so none is ever given out twice.
Rule 2: a member that waits for us can't send heartbeats, so its session stands still until it is answered.
"""

from typing import Final

from runnel.groups.records import ClassicGroupRecord, GroupDetails, Key, Kind
from runnel.groups.roster import Member, Roster
from runnel.groups.subscription import CONSUMER
from runnel.groups.timers import Alarm, Timer
from runnel.groups.turn import Turn
from runnel.groups.values import GroupState, Joined
from runnel.model.errors import RebalanceInProgress, UnknownMember

SILENT_MS_MIN: Final = 1_000  # between two looks at members who may never come back


class Rebalance:
    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol = ""
        self.roster = Roster()
        self.since_ms = 0
        self.topics: frozenset[str] | None = frozenset()  # subscribed to; None: its bytes could not be read
        self._known_ids: set[str] = set()  # given out, but not yet joined with (KIP-394)
        self._unsynced: set[str] = set()  # have not fetched their assignment of this generation
        self._initial = False  # the first rebalance of an empty group waits for more members to come
        self._grown = False  # ... and somebody did come since the last look
        self._grace_ms = 0  # ... and so long it may still be put off

    def _rebalance(self, turn: Turn) -> None:
        """Begin a rebalance, or see whether the one under way is complete."""
        if self.state is GroupState.PREPARING_REBALANCE:
            self._complete_if_all_joined(turn)
            return
        for member in self.roster.members.values():
            if member.syncing is not None:
                self._answer_sync(member, RebalanceInProgress("the group rebalances: join again"), turn)
        self._unsynced.clear()
        turn.timers.cancel(self._timer(Alarm.SYNC))
        self._initial = self.state is GroupState.EMPTY
        self.state = GroupState.PREPARING_REBALANCE
        if self._initial:
            self._wait_for_more(turn)
        else:
            turn.timers.set(self._timer(Alarm.JOIN), turn.now_ms + self.roster.rebalance_timeout_ms)
            self._complete_if_all_joined(turn)

    def _after_loss(self, turn: Turn, *, of_member: bool) -> None:
        """Somebody is gone: a member is missed, an id that nobody joined with yet only stands in the way."""
        if of_member and self.state is not GroupState.EMPTY:
            self._rebalance(turn)
        elif self.state is GroupState.PREPARING_REBALANCE:
            self._complete_if_all_joined(turn)

    def _wait_for_more(self, turn: Turn) -> None:
        delay = turn.config.initial_rebalance_delay_ms
        self._grace_ms = max(self.roster.rebalance_timeout_ms - delay, 0)
        self._grown = False
        if delay:
            turn.timers.set(self._timer(Alarm.JOIN), turn.now_ms + delay)
        else:
            self._complete_join(turn)

    def _join_time_is_up(self, turn: Turn) -> None:
        delay = min(turn.config.initial_rebalance_delay_ms, self._grace_ms)
        if self._initial and self._grown and delay:
            self._grown = False
            self._grace_ms -= delay
            turn.timers.set(self._timer(Alarm.JOIN), turn.now_ms + delay)
        else:
            self._complete_join(turn)

    def _complete_if_all_joined(self, turn: Turn) -> None:
        waits_for = self._known_ids or any(member.joining is None for member in self.roster.members.values())
        if not self._initial and not waits_for:
            self._complete_join(turn)

    def _complete_join(self, turn: Turn) -> None:
        for member in list(self.roster.members.values()):
            if member.joining is None and member.instance_id is None:
                self._dismiss(member, turn)
        if self.roster.members and not self.roster.elect_joined():
            # Static members alone, all silent: their sessions decide who is still there.
            again_ms = max(self.roster.rebalance_timeout_ms, SILENT_MS_MIN)
            turn.timers.set(self._timer(Alarm.JOIN), turn.now_ms + again_ms)
            return
        turn.timers.cancel(self._timer(Alarm.JOIN))
        self._next_generation(turn)

    def _next_generation(self, turn: Turn) -> None:
        self.generation += 1
        self._initial = False
        if not self.roster.members:
            self._enter(GroupState.EMPTY, turn)
            return
        self.protocol = self.roster.select_protocol()
        self._read_topics()
        for member in self.roster.members.values():
            member.assignment = b""
        self._enter(GroupState.COMPLETING_REBALANCE, turn)
        self._unsynced = set(self.roster.members)
        turn.timers.set(self._timer(Alarm.SYNC), turn.now_ms + self.roster.rebalance_timeout_ms)
        for member in self.roster.members.values():
            if member.joining is not None:
                ticket, member.joining, member.is_new = member.joining, None, False
                turn.reply(ticket, self._joined(member))
                self._heard(member, turn)

    def _joined(self, member: Member, skip_assignment: bool = False) -> Joined:
        leads = self.roster.leader == member.member_id and (
            self.state is GroupState.COMPLETING_REBALANCE or skip_assignment
        )
        members = self.roster.joined(self.protocol) if leads else ()
        return Joined(
            member.member_id, self.generation, self.protocol_type, self.protocol, self.roster.leader, members,
            skip_assignment,
        )  # fmt: skip

    # --- time
    def expire(self, timer: Timer, turn: Turn) -> None:
        match timer.alarm:
            case Alarm.SESSION if timer.member_id in self._known_ids:
                self._forget_id(timer.member_id, turn)
                self._after_loss(turn, of_member=False)
            case Alarm.SESSION:
                self._dismiss(self.roster.members[timer.member_id], turn)
                self._after_loss(turn, of_member=True)
            case Alarm.JOIN:
                self._join_time_is_up(turn)
            case Alarm.SYNC:
                for member_id in list(self._unsynced):
                    self._dismiss(self.roster.members[member_id], turn)
                self._after_loss(turn, of_member=True)

    def _heard(self, member: Member, turn: Turn) -> None:
        """A session begins anew; not while the member waits for us, since then it can't send heartbeats."""
        if not member.waiting:
            turn.timers.set(self._timer(Alarm.SESSION, member.member_id), turn.now_ms + member.session_timeout_ms)

    def _timer(self, alarm: Alarm, member_id: str = "") -> Timer:
        return Timer(alarm, self.group_id, member_id)

    # --- members coming and going
    def _dismiss(self, member: Member, turn: Turn) -> None:
        self._answer(member, UnknownMember(f"{member.member_id!r} was removed from the group: join again"), turn)
        self._unsynced.discard(member.member_id)
        turn.timers.cancel(self._timer(Alarm.SESSION, member.member_id))
        self.roster.remove(member)

    def _forget_id(self, member_id: str, turn: Turn) -> None:
        if member_id in self._known_ids:
            self._known_ids.remove(member_id)
            turn.timers.cancel(self._timer(Alarm.SESSION, member_id))

    def _answer(self, member: Member, result: object, turn: Turn) -> None:
        """Answer whatever this member waits for."""
        if member.joining is not None:
            turn.reply(member.joining, result)
            member.joining = None
        self._answer_sync(member, result, turn)

    def _answer_sync(self, member: Member, result: object, turn: Turn) -> None:
        if member.syncing is not None:
            turn.reply(member.syncing, result)
            member.syncing = None
            self._heard(member, turn)

    def _await_join(self, member: Member, ticket: object, turn: Turn) -> None:
        if member.joining is not None:
            turn.reply(member.joining, RebalanceInProgress("a newer join of this member took its place"))
        member.joining = ticket
        if not member.is_new:
            turn.timers.cancel(self._timer(Alarm.SESSION, member.member_id))

    # --- what is kept
    def _read_topics(self) -> None:
        self.topics = self.roster.subscribed_topics(self.protocol) if self.protocol_type == CONSUMER else None

    def _enter(self, state: GroupState, turn: Turn) -> None:
        self.state = state
        self.since_ms = turn.wall_ms
        if state is GroupState.EMPTY:
            self.protocol, self.topics = "", frozenset()
        self.persist(turn)

    def persist(self, turn: Turn) -> None:
        members = self.roster.members.values()
        record = ClassicGroupRecord(
            self.protocol_type, self.generation, self.protocol, self.roster.leader, self.since_ms,
            tuple(member.record(self.protocol) for member in members),
        )  # fmt: skip
        offers = tuple((member.member_id, member.offers()) for member in members)
        turn.store.put(Key(Kind.CLASSIC_GROUP, self.group_id), record)
        details = GroupDetails(stable=self.state is GroupState.STABLE, protocols=offers)
        turn.store.put(Key(Kind.DETAILS, self.group_id), details)
