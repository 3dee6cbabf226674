"""One sink after the other: what is answered, ordered and kept, and what time does. All at once: test_sink_model."""

from typing import Any

import pytest

from runnel.model.calls import Nothing
from runnel.model.errors import (
    ConcurrentTransactions,
    InvalidRequest,
    InvalidTransactionState,
    PolicyViolation,
    ProducerFenced,
    RequestTimedOut,
    UnknownSink,
)
from runnel.model.ids import Millis
from runnel.model.sinks import (
    AbortBatch,
    BeginAttempt,
    Begun,
    CommitBatch,
    ForgottenSink,
    Handle,
    ListedSink,
    ListSinks,
    NamedSink,
    Published,
)
from runnel.model.step import Record, Step
from runnel.transactions.sink_records import Key, decode
from runnel.transactions.sink_slots import Slots
from runnel.transactions.sink_values import FinishSlot, HoldSlot, OpenSlot, SinkConfig, SlotHeld, SlotOpened
from runnel.transactions.sinks import NAME_CHARS_MAX, SinkShard

CONFIG = SinkConfig(attempt_ms_max=1_000, idle_ms_max=5_000, check_ms=500, attempts_max=3, waiters_max=2)
S = "s"


class Rig:
    """The shard, its log, and a coordinator that does what it is told."""

    def __init__(self) -> None:
        self.log: list[Record] = []
        self.now_ms = 0
        self.epoch = 0
        self.orders: list[Any] = []
        self.answers: dict[object, Any] = {}
        self.shard = SinkShard(CONFIG)
        self.restart()

    def restart(self) -> None:
        self.orders.clear()
        self.shard = SinkShard(CONFIG)
        for key, value in self.log:
            self.shard.replay(key, value)
        self._take(self.shard.wake(None, Millis(self.now_ms), Millis(self.now_ms)))

    def _take(self, step: Step) -> None:
        self.log += step.records
        self.orders += step.orders
        for reply in step.replies:
            assert reply.ticket not in self.answers, "answered twice"
            self.answers[reply.ticket] = reply.result

    def ask(self, verb: str, request: Any) -> object:
        """The ticket; its answer may come later."""
        ticket = object()
        self._take(getattr(self.shard, verb)(request, ticket, None, Millis(self.now_ms), Millis(self.now_ms)))
        return ticket

    def answer(self, verb: str, request: Any) -> Any:
        return self.answers.get(self.ask(verb, request))

    def tell(self, verb: str, news: Any) -> None:
        self._take(getattr(self.shard, verb)(news, None, Millis(self.now_ms), Millis(self.now_ms)))

    def take(self, kind: type[Any]) -> list[Any]:
        """The orders of a kind, out of those that were not carried out."""
        found = [order for order in self.orders if isinstance(order, kind)]
        self.orders = [order for order in self.orders if not isinstance(order, kind)]
        return found

    def open_all(self) -> None:
        for order in self.take(OpenSlot):
            self.epoch += 1
            self.tell("opened", SlotOpened(order, Handle(f"sink/{order.sink}/{order.slot}", 1, self.epoch), 60_000))

    def hold_all(self) -> None:
        for order in self.take(HoldSlot):
            self.tell("held", SlotHeld(order))

    def finish_all(self) -> None:
        for order in self.take(FinishSlot):
            self.tell("finished", order)

    def wait(self, ms: int) -> None:
        self.now_ms += ms
        self._take(self.shard.tick(Millis(self.now_ms), None, Millis(self.now_ms)))

    def written(self, batch: int = 0, partition: int = 0, attempt: int = 0, sink: str = S) -> Handle:
        ticket = self.ask("begin", BeginAttempt(sink, batch, partition, attempt))
        self.open_all()
        begun = self.answers[ticket]
        assert isinstance(begun, Begun)
        assert begun.handle is not None
        return begun.handle

    def published(self, batch: int, *handles: Handle, **more: Any) -> Any:
        ticket = self.ask("commit", CommitBatch(S, batch, list(handles), **more))
        self.hold_all()
        self.finish_all()
        return self.answers[ticket]

    @property
    def phase(self) -> str:
        return str(self.answer("describe", NamedSink(S)).phase)


# --- attempts
def test_an_attempt_gets_the_lowest_slot_that_is_free() -> None:
    rig = Rig()
    first, second = rig.written(partition=0), rig.written(partition=1)
    assert (first.transactional_id, second.transactional_id) == ("sink/s/0", "sink/s/1")
    rig.ask("abort", AbortBatch(S, 0, [first]))
    assert rig.written(partition=2).transactional_id == "sink/s/2"
    rig.finish_all()
    assert rig.written(partition=0).transactional_id == "sink/s/0"


def test_the_same_attempt_again_takes_the_place_of_the_earlier_one() -> None:
    rig = Rig()
    old = rig.written()
    new = rig.written()
    [order] = rig.orders
    assert (order.handle, order.commit, order.held) == (old, False, False)
    assert isinstance(rig.answer("commit", CommitBatch(S, 0, [old])), InvalidTransactionState)
    rig.finish_all()
    assert rig.published(0, new) == Published(repeated=False)


def test_the_same_attempt_again_while_the_earlier_one_is_being_opened() -> None:
    rig = Rig()
    first = rig.ask("begin", BeginAttempt(S, 0, 0, 0))
    second = rig.ask("begin", BeginAttempt(S, 0, 0, 0))
    assert isinstance(rig.answers[first], ConcurrentTransactions)
    rig.open_all()
    [order] = rig.orders
    assert isinstance(order, FinishSlot)
    assert order.handle.transactional_id == "sink/s/0"
    assert rig.answers[second].handle.transactional_id == "sink/s/1"


def test_a_transaction_that_can_not_be_opened_costs_no_slot() -> None:
    rig = Rig()
    ticket = rig.ask("begin", BeginAttempt(S, 0, 0, 0))
    [order] = rig.take(OpenSlot)
    rig.tell("opened", SlotOpened(order, RequestTimedOut("nobody answers")))
    assert isinstance(rig.answers[ticket], RequestTimedOut)
    rig.tell("opened", SlotOpened(order, Handle("sink/s/0", 1, 1)))  # late, and twice
    assert rig.written().transactional_id == "sink/s/0"


def test_an_attempt_that_is_opened_when_its_batch_is_published_has_nothing_to_write() -> None:
    rig = Rig()
    handle = rig.written(partition=0)
    late = rig.ask("begin", BeginAttempt(S, 0, 1, 7))
    orders = rig.take(OpenSlot)
    assert rig.published(0, handle) == Published(repeated=False)
    rig.orders = orders
    rig.open_all()
    assert rig.answers[late] == Begun(decided=True)
    [order] = rig.orders
    assert (order.commit, order.handle.transactional_id) == (False, "sink/s/1")


def test_no_sink_has_more_attempts_open_than_are_allowed() -> None:
    rig = Rig()
    for partition in range(3):
        rig.written(partition=partition)
    assert isinstance(rig.answer("begin", BeginAttempt(S, 0, 3, 0)), PolicyViolation)
    rig.written(sink="other")


@pytest.mark.parametrize(("sink", "batch"), [("", 0), ("x" * (NAME_CHARS_MAX + 1), 0), ("s", -1)])
def test_names_and_numbers_that_can_not_be(sink: str, batch: int) -> None:
    rig = Rig()
    assert isinstance(rig.answer("begin", BeginAttempt(sink, batch, 0, 0)), InvalidRequest)
    assert isinstance(rig.answer("commit", CommitBatch(sink, batch, [])), InvalidRequest)
    assert rig.log == []


# --- publishing
def test_nothing_is_committed_before_all_are_held_and_nothing_answered_before_all_are_committed() -> None:
    rig = Rig()
    handles = [rig.written(partition=partition) for partition in range(2)]
    zombie = rig.written(partition=0, attempt=9)
    ticket = rig.ask("commit", CommitBatch(S, 0, handles))
    first, second = rig.take(HoldSlot)
    rig.tell("held", SlotHeld(first))
    assert (rig.orders, rig.phase) == ([], "holding")
    rig.tell("held", SlotHeld(second))
    assert rig.phase == "publishing"
    orders = rig.take(FinishSlot)
    assert [(order.handle, order.commit, order.held) for order in orders] == [
        (handles[0], True, True), (handles[1], True, True), (zombie, False, False),
    ]  # fmt: skip
    rig.tell("finished", orders[0])
    assert ticket not in rig.answers
    rig.tell("finished", orders[1])
    assert rig.answers[ticket] == Published(repeated=False)
    assert (rig.phase, len(rig.answer("describe", NamedSink(S)).attempts)) == ("idle", 1)


def test_while_a_batch_is_held_nobody_begins_and_nobody_else_publishes() -> None:
    rig = Rig()
    handle, other = rig.written(partition=0), rig.written(partition=1)
    rig.ask("commit", CommitBatch(S, 0, [handle]))
    assert isinstance(rig.answer("begin", BeginAttempt(S, 0, 2, 0)), ConcurrentTransactions)
    assert isinstance(rig.answer("begin", BeginAttempt(S, 1, 0, 0)), ConcurrentTransactions)
    assert isinstance(rig.answer("commit", CommitBatch(S, 0, [other])), ConcurrentTransactions)
    assert isinstance(rig.answer("commit", CommitBatch(S, 1, [])), ConcurrentTransactions)


def test_who_asks_for_the_same_while_it_is_done_waits_too_and_not_too_many_do() -> None:
    rig = Rig()
    handle = rig.written()
    tickets = [rig.ask("commit", CommitBatch(S, 0, [handle])) for _ in range(3)]
    assert isinstance(rig.answers.pop(tickets[0]), ConcurrentTransactions)
    rig.hold_all()
    late = rig.ask("commit", CommitBatch(S, 0, []))
    assert isinstance(rig.answers.pop(tickets[1]), ConcurrentTransactions)
    rig.finish_all()
    assert (rig.answers[tickets[2]], rig.answers[late]) == (Published(repeated=False), Published(repeated=True))


def test_the_next_batch_is_written_while_the_last_one_is_committed() -> None:
    rig = Rig()
    ticket = rig.ask("commit", CommitBatch(S, 0, [rig.written()]))
    rig.hold_all()
    following = rig.written(batch=1)
    assert following.transactional_id == "sink/s/1"
    assert isinstance(rig.answer("commit", CommitBatch(S, 1, [following])), ConcurrentTransactions)
    rig.finish_all()
    assert rig.answers[ticket] == Published(repeated=False)
    assert rig.published(1, following) == Published(repeated=False)


def test_one_that_can_not_be_held_drops_all_and_says_why() -> None:
    rig = Rig()
    handles = [rig.written(partition=partition) for partition in range(2)]
    ticket = rig.ask("commit", CommitBatch(S, 0, handles))
    first, second = rig.take(HoldSlot)
    rig.tell("held", SlotHeld(first))
    rig.tell("held", SlotHeld(second, ProducerFenced("another has it")))
    assert isinstance(rig.answers[ticket], InvalidTransactionState)
    assert "another has it" in str(rig.answers[ticket])
    assert [(order.handle, order.commit, order.held) for order in rig.orders] == [
        (handle, False, True) for handle in handles
    ]
    rig.restart()
    assert rig.phase == "dropping"
    rig.finish_all()
    assert (rig.phase, rig.answer("describe", NamedSink(S)).last_batch) == ("idle", -1)
    assert rig.published(0, rig.written(attempt=1)) == Published(repeated=False)


def test_handles_that_are_not_of_this_batch_or_this_sink_are_refused() -> None:
    rig = Rig()
    handle = rig.written(batch=1)
    foreign = rig.written(batch=0, sink="other")
    for wrong in (handle, foreign, Handle("sink/s/x", 1, 1), Handle("tx", 1, 1), Handle("sink/s/0", 1, 99)):
        assert isinstance(rig.answer("commit", CommitBatch(S, 0, [wrong])), InvalidTransactionState)
    assert rig.phase == "idle"


def test_a_batch_that_is_aborted_while_it_is_held_is_dropped_unless_another_is_meant() -> None:
    rig = Rig()
    handle, other = rig.written(partition=0), rig.written(partition=0, attempt=1)
    ticket = rig.ask("commit", CommitBatch(S, 0, [handle]))
    assert rig.answer("abort", AbortBatch(S, 0, [other])) == Nothing()
    assert rig.phase == "holding"
    rig.ask("abort", AbortBatch(S, 0, [handle]))
    assert isinstance(rig.answers[ticket], InvalidTransactionState)
    assert rig.phase == "dropping"
    rig.hold_all()  # late
    rig.finish_all()
    assert rig.phase == "idle"


def test_what_is_published_can_not_be_aborted() -> None:
    rig = Rig()
    handle = rig.written()
    ticket = rig.ask("commit", CommitBatch(S, 0, [handle]))
    rig.hold_all()
    rig.ask("abort", AbortBatch(S, 0, [handle]))
    [order] = rig.orders
    assert order.commit
    rig.finish_all()
    assert rig.answers[ticket] == Published(repeated=False)
    assert rig.answer("abort", AbortBatch("never-used", 0, [handle])) == Nothing()


def test_another_leader_goes_on_from_the_phase_that_was_kept() -> None:
    rig = Rig()
    handles = [rig.written(partition=partition) for partition in range(2)]
    rig.ask("commit", CommitBatch(S, 0, handles))
    rig.restart()
    assert sorted(order.handle.transactional_id for order in rig.orders) == ["sink/s/0", "sink/s/1"]
    rig.hold_all()
    first, _ = rig.take(FinishSlot)
    rig.tell("finished", first)
    rig.restart()
    [order] = rig.orders
    assert (order.handle, order.commit) == (handles[1], True)
    again = rig.ask("commit", CommitBatch(S, 0, handles))
    rig.finish_all()
    assert rig.answers[again] == Published(repeated=False)


# --- forgetting
def test_a_sink_that_is_forgotten_ends_what_is_open_and_leaves_no_record() -> None:
    rig = Rig()
    handle = rig.written(partition=0)
    opening = rig.ask("begin", BeginAttempt(S, 0, 1, 0))
    waiting = rig.ask("commit", CommitBatch(S, 0, [handle]))
    ticket = rig.ask("forget", NamedSink(S))
    assert isinstance(rig.answers[waiting], InvalidTransactionState)
    assert isinstance(rig.answer("begin", BeginAttempt(S, 0, 2, 0)), ConcurrentTransactions)
    assert isinstance(rig.answer("commit", CommitBatch(S, 0, [handle])), ConcurrentTransactions)
    rig.open_all()
    assert isinstance(rig.answers[opening], ConcurrentTransactions)
    assert all(order.held and not order.commit for order in rig.take(FinishSlot))
    rig.restart()
    rig.finish_all()
    assert ticket not in rig.answers  # it was asked of who led before
    assert isinstance(rig.answer("forget", NamedSink(S)), UnknownSink)
    left = dict(rig.log)
    assert set(left.values()) == {None}


def test_a_sink_is_forgotten_when_its_decided_batch_is_published() -> None:
    rig = Rig()
    committed = rig.ask("commit", CommitBatch(S, 0, [rig.written()]))
    rig.hold_all()
    ticket = rig.ask("forget", NamedSink(S))
    rig.finish_all()
    assert rig.answers[committed] == Published(repeated=False)
    assert rig.answers[ticket] == ForgottenSink(1)
    assert isinstance(rig.answer("describe", NamedSink(S)), UnknownSink)


def test_time_drops_what_nobody_publishes_and_forgets_sinks_that_nobody_needs() -> None:
    rig = Rig()
    rig.written(sink="never")
    rig.published(0, final=True)
    for sink in ("s", "kept"):
        rig.ask("commit", CommitBatch(sink, 1, []))
    rig.wait(999)
    assert rig.orders == []
    rig.wait(500)
    rig.finish_all()
    assert [each.attempts for each in rig.answer("list", ListSinks("never"))] == [0]
    rig.wait(5_000)
    assert [each.sink for each in rig.answer("list", ListSinks())] == ["kept"]
    rig.wait(10**9)
    assert rig.answer("list", ListSinks()) == [ListedSink("kept", 1, "idle", 0, 0)]


def test_time_does_not_drop_what_is_being_published() -> None:
    rig = Rig()
    handle = rig.written()
    rig.ask("commit", CommitBatch(S, 0, [handle]))
    rig.take(HoldSlot)
    rig.wait(10**6)
    assert (rig.orders, rig.phase) == ([], "holding")


# --- the rest
def test_a_replay_gives_the_same() -> None:
    rig = Rig()
    rig.written(partition=0)
    rig.ask("commit", CommitBatch(S, 0, [rig.written(partition=1)], query="q"))
    before = rig.answer("describe", NamedSink(S))
    rig.restart()
    assert rig.answer("describe", NamedSink(S)) == before
    compacted = dict(rig.log)
    rig.log = sorted(compacted.items(), key=lambda record: decode(*record)[0] == Key(S), reverse=False)  # type: ignore[index]
    rig.restart()
    assert rig.answer("describe", NamedSink(S)) == before


def test_the_first_query_that_names_itself_has_the_sink() -> None:
    rig = Rig()
    rig.written()
    rig.ask("begin", BeginAttempt(S, 0, 1, 0, query="first"))
    rig.restart()
    for query, refused in (("first", False), ("second", True), ("", False)):
        answer = rig.answer("commit", CommitBatch(S, 0, [], query=query))
        assert isinstance(answer, InvalidRequest) == refused
    assert isinstance(rig.answer("begin", BeginAttempt(S, 1, 1, 0, query="second")), InvalidRequest)


def test_slots_are_given_out_the_lowest_first() -> None:
    slots = Slots()
    slots.load([1, 3])
    assert [slots.take() for _ in range(4)] == [0, 2, 4, 5]
    slots.give(3)
    slots.give(1)
    assert [slots.take() for _ in range(3)] == [1, 3, 6]
