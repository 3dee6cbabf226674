"""What a schedule's shard does when; and that through crashes each message is sent once, and never early."""

from dataclasses import dataclass, field
from uuid import UUID

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.helpers.examples import EXAMPLES

from runnel.model.errors import NotPending
from runnel.model.ids import PartitionKey, TopicId
from runnel.model.schedule import Front, Row
from runnel.queues.schedule import ANY, LEAD_MS, PACE_MS, PAUSE_MS, PAUSE_MS_MAX, UNBURIED_MAX, Agenda, Fire, KeepFront

ONE, TWO = PartitionKey(TopicId(UUID(int=1)), 0), PartitionKey(TopicId(UUID(int=2)), 7)


def row(id: str, due_ms: int, offset: int = 100, target: PartitionKey = ONE) -> Row:
    return Row(target, id, due_ms, offset, b"")


def agenda(due_ms: int | None = 1_000, front: Front | None = None) -> Agenda:
    made = Agenda(50)
    made.restore(ONE, due_ms, front)
    return made


def test_the_front_is_kept_before_a_message_is_due_and_the_message_is_sent_when_it_is() -> None:
    one = agenda()
    assert one.wake_ms() == 1_000 - LEAD_MS
    assert one.orders(1_000 - LEAD_MS - 1, 9) == []
    assert one.orders(1_000 - LEAD_MS, 9) == [KeepFront(ONE, 1_000 + LEAD_MS, ANY)]
    assert one.wake_ms() is None
    one.fronted(ONE, Front(1_000 + LEAD_MS, 42))
    assert one.wake_ms() == 1_000
    assert one.orders(999, 9) == []
    assert one.orders(1_000, 9) == [Fire(ONE, 1_000, 42)]
    one.take(ONE, [row("a", 1_000)])
    one.fired(ONE, {"a": 42}, 1_100, 1_000)
    assert one.wake_ms() == 1_100, "the front reaches that far"
    assert one.orders(1_500, 9) == [Fire(ONE, 1_000 + LEAD_MS, 42)], "never beyond the front"
    one.fired(ONE, {}, None, 1_500)
    assert one.wake_ms() is None


def test_no_floor_is_above_what_is_not_buried() -> None:
    one = agenda(front=Front(1_200, 0))
    one.orders(1_000, 9)
    one.fired(ONE, {"a": 30, "b": 20, "c": 40}, 5_000, 1_000)
    one.buried(ONE, ["a"])
    assert one.orders(5_000 - LEAD_MS, 9) == [KeepFront(ONE, 5_000 + LEAD_MS, 20)]


def test_what_comes_due_within_a_pause_is_sent_together() -> None:
    one = agenda(front=Front(9_000, 0))
    one.orders(1_000, 9)
    one.fired(ONE, {}, 1_001, 1_000)
    assert one.wake_ms() == 1_000 + PACE_MS


def test_what_is_parked_while_the_target_is_busy_is_not_forgotten() -> None:
    one = agenda(front=Front(9_000, 0))
    one.orders(1_000, 9)
    one.parked(ONE, 3_000)
    one.parked(ONE, 2_000)
    one.fired(ONE, {}, 5_000, 1_000)  # the index had not seen them yet
    assert one.wake_ms() == 2_000
    one.orders(2_000, 9)
    one.fired(ONE, {}, None, 2_000)
    assert one.wake_ms() is None


def test_a_clock_that_is_set_back_makes_no_pause_longer() -> None:
    one = agenda(front=Front(9_000_000, 0))
    one.orders(5_000_000, 9)
    one.fired(ONE, {}, 2_000, 5_000_000)
    assert one.wake_ms() == 5_000_000 + PACE_MS
    assert one.orders(1_990, 9) == [], "it is not due by the new time"
    assert one.wake_ms() == 1_990 + PACE_MS
    assert one.orders(1_990 + PACE_MS, 9) == [Fire(ONE, 1_990 + PACE_MS, 0)]
    one.failed(ONE, 3_000_000, 0.5)
    assert one.orders(4_000, 9) == []
    assert one.orders(4_000 + PACE_MS, 9) != []


def test_what_was_sent_is_neither_sent_nor_changed_again_until_it_is_buried() -> None:
    one = agenda(front=Front(9_000, 0))
    rows = [row(f"m{number}", 1_000) for number in range(UNBURIED_MAX)]
    one.orders(1_000, 9)
    one.take(ONE, rows)
    one.fired(ONE, dict.fromkeys((each.id for each in rows), 7), 1_000, 1_000)
    assert one.unburied(ONE) == UNBURIED_MAX
    assert one.wake_ms() is None, "there are too many of them"
    with pytest.raises(NotPending):
        one.change(rows[0])
    one.buried(ONE, ["m0"])
    assert one.orders(1_000 + PACE_MS, 9) == [Fire(ONE, 1_000 + PACE_MS, 0)]
    assert one.take(ONE, rows[:2]) == rows[:1]


def test_what_is_long_due_gets_a_front_beyond_now() -> None:
    one = agenda()
    assert one.orders(90_000, 9) == [KeepFront(ONE, 90_000 + LEAD_MS, ANY)]


def test_a_target_that_fails_waits_longer_and_longer_and_holds_up_no_other() -> None:
    one = agenda(front=Front(9_000, 0))
    one.restore(TWO, 2_000, Front(9_000, 0))
    now, pauses = 1_000, []
    for _ in range(12):
        assert one.orders(now, 9)[0] == Fire(ONE, now, 0)
        one.failed(ONE, now, 1.0)
        at = one._targets[ONE].not_before_ms
        pauses.append(at - now)
        now = min(at, 1_999) if at < 2_000 else at
        if at >= 2_000:
            break
    assert pauses[:3] == [PAUSE_MS, 2 * PAUSE_MS, 4 * PAUSE_MS]
    assert {order.target for order in one.orders(60_000, 9)} == {ONE, TWO}
    for _ in range(20):
        one.failed(ONE, 100_000, 0.999)
    assert one._targets[ONE].not_before_ms <= 100_000 + PAUSE_MS_MAX


def test_only_so_many_targets_are_busy() -> None:
    one = agenda()
    one.restore(TWO, 1_000, None)
    assert len(one.orders(5_000, 1)) == 1
    assert len(one.orders(5_000, 9)) == 1
    assert one.orders(5_000, 9) == []


def test_what_is_being_sent_is_not_changed_and_what_is_being_changed_is_not_sent() -> None:
    one = agenda(front=Front(9_000, 0))
    a, b = row("a", 1_000), row("b", 1_000)
    one.change(a)
    with pytest.raises(NotPending):
        one.change(a)
    assert one.take(ONE, [a, b]) == [b]
    with pytest.raises(NotPending):
        one.change(b)
    one.fired(ONE, {"b": 1}, 1_000, 1_000)
    one.changed(a, 1_000)
    assert one.take(ONE, [a]) == [a]


def test_what_was_sent_with_an_outcome_unknown_stays_untouchable() -> None:
    one = agenda(front=Front(9_000, 0))
    a, b = row("a", 1_000), row("b", 1_000)
    one.orders(1_000, 9)
    one.take(ONE, [a, b])
    one.failed(ONE, 1_000, 0.0)
    one.orders(9_000, 9)
    one.take(ONE, [b])
    one.fired(ONE, {"b": 1}, 1_000, 9_000)
    with pytest.raises(NotPending):
        one.change(a)


def test_what_an_earlier_leader_may_have_sent_is_not_changed() -> None:
    one = agenda(front=Front(1_200, 0))
    with pytest.raises(NotPending):
        one.change(row("a", 1_200, offset=49))
    one.change(row("b", 1_201, offset=49))
    one.change(row("c", 1_200, offset=50))  # parked in this epoch
    one.fired(ONE, {"a": 1}, 5_000, 1_200)
    one.change(row("d", 1_200, offset=49))


def test_the_times_that_are_kept_do_not_pile_up() -> None:
    one = agenda(due_ms=10**9)
    for number in range(1_000):
        one.parked(ONE, number)
        one.orders(number, 9)
        one.fronted(ONE, Front(number, 0))
        one.orders(number, 9)
        one.fired(ONE, {}, 10**9, number)
    assert len(one._wakes) < 10


@dataclass
class _World:
    """The log of a shard and of two targets; a message is its id."""

    now: int = 0
    offset: int = 0
    pending: dict[tuple[PartitionKey, str], tuple[int, int]] = field(default_factory=dict)  # due, offset
    fronts: dict[PartitionKey, Front] = field(default_factory=dict)
    targets: dict[PartitionKey, list[str]] = field(default_factory=lambda: {ONE: [], TWO: []})

    def due(self, target: PartitionKey, upto: int, limit: int) -> list[Row]:
        found = [
            Row(where, id, due, offset, b"")
            for (where, id), (due, offset) in self.pending.items()
            if where == target and due <= upto
        ]
        return sorted(found, key=lambda one: (one.due_ms, one.offset))[:limit]

    def next_due(self, target: PartitionKey, after: Row | None = None) -> int | None:
        bound = (after.due_ms, after.offset) if after else (-1, -1)
        return min(
            (due for (where, _), (due, at) in self.pending.items() if where == target and (due, at) > bound),
            default=None,
        )

    def place(self, target: PartitionKey, id: str, floor: int) -> int:
        return self.targets[target].index(id, floor)

    def append_once(self, target: PartitionKey, id: str, floor: int) -> None:
        log = self.targets[target]
        if id not in log[floor:]:
            log.append(id)


class Crashes(RuleBasedStateMachine):
    """Leaders come and go between any two steps; what they sent may arrive late, or its answer never."""

    @initialize()
    def begin(self) -> None:
        self.world = _World()
        self.number = 0
        self.sent_at: dict[str, int] = {}
        self.due: dict[str, int] = {}
        self.cancelled: set[str] = set()
        self.zombies: list[tuple[PartitionKey, list[str], int]] = []
        self.taken: list[tuple[PartitionKey, list[Row], int]] = []
        self.next_due: dict[PartitionKey, int | None] = {}
        self.lead()

    def lead(self) -> None:
        """A new leader epoch: what it knows is what is kept."""
        self.zombies += [(target, [one.id for one in rows], floor) for target, rows, floor in self.taken]
        self.taken = []
        self.graves: list[tuple[PartitionKey, str]] = []
        self.agenda = Agenda(self.world.offset + 1)  # where the log ends
        for target in (ONE, TWO):
            self.agenda.restore(target, self.world.next_due(target), self.world.fronts.get(target))

    @rule(to=st.sampled_from([ONE, TWO]), delay=st.integers(0, 1_000))
    def park(self, to: PartitionKey, delay: int) -> None:
        self.number += 1
        self.world.offset += 1
        id = f"m{self.number}"
        self.due[id] = self.world.now + delay
        self.world.pending[to, id] = self.due[id], self.world.offset
        self.agenda.parked(to, self.due[id])

    @rule(ms=st.integers(0, 400))
    def wait(self, ms: int) -> None:
        self.world.now += ms

    @precondition(lambda self: self.graves)
    @rule()
    def bury(self) -> None:
        target, id = self.graves.pop(0)
        self.world.pending.pop((target, id), None)
        self.world.offset += 1
        self.agenda.buried(target, [id])

    @rule(limit=st.integers(1, 3))
    def work(self, limit: int) -> None:
        for order in self.agenda.orders(self.world.now, 9):
            if isinstance(order, KeepFront):
                front = Front(order.upto_ms, min(order.floor_max, len(self.world.targets[order.target])))
                self.world.fronts[order.target] = front
                self.world.offset += 1
                self.agenda.fronted(order.target, front)
            else:
                found = self.world.due(order.target, order.upto_ms, limit + self.agenda.unburied(order.target))
                self.taken.append((order.target, self.agenda.take(order.target, found), order.floor))
                self.next_due[order.target] = self.world.next_due(order.target, found[-1] if found else None)

    @precondition(lambda self: self.taken)
    @rule(arrives=st.booleans(), answered=st.booleans())
    def send(self, arrives: bool, answered: bool) -> None:
        target, rows, floor = self.taken.pop(0)
        if arrives or answered:
            self._arrive(target, [one.id for one in rows], floor)
        if not answered:
            self.zombies.append((target, [one.id for one in rows], floor))
            self.agenda.failed(target, self.world.now, 0.0)
            return
        self.graves += [(target, one.id) for one in rows]
        sent = {one.id: self.world.place(target, one.id, floor) for one in rows}
        self.agenda.fired(target, sent, self.next_due[target], self.world.now)

    @rule(ms=st.integers(0, 1_000))
    def go_on(self, ms: int) -> None:
        """All goes well for a while, but for burials."""
        self.wait(ms)
        for _ in range(3):
            self.work(3)
            while self.taken:
                self.send(True, True)

    @precondition(lambda self: self.zombies)
    @rule(data=st.data())
    def arrive_late(self, data: st.DataObject) -> None:
        """What nobody waits for any more reaches its target all the same."""
        at = data.draw(st.integers(0, len(self.zombies) - 1))
        self._arrive(*self.zombies.pop(at))

    def _arrive(self, target: PartitionKey, ids: list[str], floor: int) -> None:
        for id in ids:
            self.world.append_once(target, id, floor)
            self.sent_at.setdefault(id, self.world.now)

    @rule()
    def fail_over(self) -> None:
        self.lead()

    @precondition(lambda self: self.world.pending)
    @rule(data=st.data(), later=st.none() | st.integers(0, 1_000))
    def change(self, data: st.DataObject, later: int | None) -> None:
        """Cancel a message, or move it."""
        (target, id), (due, offset) = data.draw(st.sampled_from(sorted(self.world.pending.items(), key=str)))
        found = Row(target, id, due, offset, b"")
        try:
            self.agenda.change(found)
        except NotPending:
            return
        self.world.offset += 1
        if later is None:
            del self.world.pending[target, id]
            self.cancelled.add(id)
            self.agenda.changed(found, None)
        else:
            self.due[id] = self.world.now + later
            self.world.pending[target, id] = self.due[id], self.world.offset
            self.agenda.changed(found, self.due[id])

    @invariant()
    def nothing_is_doubled_early_or_cancelled_in_vain(self) -> None:
        if not hasattr(self, "world"):
            return
        for log in self.world.targets.values():
            assert len(log) == len(set(log)), "a message came twice"
            assert not self.cancelled & set(log), "a message came that was cancelled"
            for id in log:
                assert self.sent_at[id] >= self.due[id], "a message came early"

    def teardown(self) -> None:
        """In the end everything that was not cancelled has come."""
        if not hasattr(self, "world"):
            return
        for _ in range(10_000):
            if not self.world.pending and not self.taken:
                break
            self.wait(500)
            self.work(3)
            while self.taken:
                self.send(True, True)
            while self.graves:
                self.bury()
        while self.zombies:
            self._arrive(*self.zombies.pop())
        self.nothing_is_doubled_early_or_cancelled_in_vain()
        came = {id for log in self.world.targets.values() for id in log}
        assert came == self.due.keys() - self.cancelled, "a message was lost"


TestCrashes = Crashes.TestCase
TestCrashes.settings = settings(max_examples=EXAMPLES, stateful_step_count=40, suppress_health_check=list(HealthCheck))
