"""Transactions that sinks hold: who can end them, what time and other producers can do, what handles mean."""

from typing import Any

import pytest
from tests.transactions.rig import ID, TIMEOUT_MS, Rig, shown, who

from runnel.model.calls import Nothing
from runnel.model.errors import ConcurrentTransactions, InvalidProducerMapping, InvalidTransactionState, ProducerFenced
from runnel.model.ids import ProducerId
from runnel.model.partition_sets import grouped
from runnel.model.sinks import Finish, Finished, Handle, Hold
from runnel.transactions.records import Transaction
from runnel.transactions.values import EPOCH_LAST, Cause, Identity, State

SINK = "clicks"


def handle_of(producer: str) -> Handle:
    return Handle(ID, *who(producer))


def hold(rig: Rig, producer: str, sink: str = SINK) -> Any:
    return rig.ask("hold", Hold(sink, handle_of(producer)))


def finish(rig: Rig, producer: str, *, commit: bool, sink: str = SINK, held: bool = True) -> Any:
    return rig.ask("finish", Finish(sink, handle_of(producer), commit, held))


def written(rig: Rig) -> str:
    """A producer whose transaction has written to t/0, and is left open."""
    producer = shown(rig.init())
    assert rig.add(producer, "t/0") is None
    return producer


def held(rig: Rig) -> str:
    producer = written(rig)
    assert hold(rig, producer) == Nothing()
    return producer


def state_of(rig: Rig) -> Transaction:
    found = rig.state()
    assert found is not None
    return found


def test_time_does_not_end_what_a_sink_holds_whoever_coordinates() -> None:
    rig = Rig()
    held(rig)
    rig.wait(10 * TIMEOUT_MS)
    rig.restart()
    rig.wait(10 * TIMEOUT_MS)
    assert (state_of(rig).state, state_of(rig).holder) == (State.ONGOING, SINK)
    assert rig.orders == []


def test_no_other_producer_of_the_id_takes_over_what_a_sink_holds() -> None:
    rig = Rig()
    producer = held(rig)
    refused = rig.init()
    assert isinstance(refused, ConcurrentTransactions)
    assert "runnel sink describe clicks" in str(refused)
    assert isinstance(rig.init(producer), ConcurrentTransactions)
    assert state_of(rig).state is State.ONGOING


def test_nothing_is_added_to_what_a_sink_holds_and_its_producer_does_not_end_it() -> None:
    rig = Rig()
    producer = held(rig)
    for answer in (
        rig.add(producer, "t/0"),
        rig.add(producer, "t/1"),
        rig.add(producer, "t/0", verify=True),
        *(rig.end(producer, commit=commit, bumps=bumps) for commit in (True, False) for bumps in (True, False)),
    ):
        assert isinstance(answer, InvalidTransactionState)
        assert "handed over to the sink 'clicks'" in str(answer)
    assert state_of(rig).state is State.ONGOING


@pytest.mark.parametrize("commit", [True, False])
def test_the_sink_ends_what_it_holds_under_the_next_epoch(commit: bool) -> None:
    rig = Rig()
    producer = held(rig)
    assert finish(rig, producer, commit=commit) == Finished(complete=False, committed=commit)
    [verdict] = rig.orders
    assert (verdict.commit, verdict.version, verdict.cause) == (commit, 2, Cause.SINK)
    assert verdict.producer == Identity(who(producer).producer_id, who(producer).epoch + 1)
    assert finish(rig, producer, commit=commit) == Finished(complete=False, committed=commit)
    rig.restart()
    rig.mark()
    assert finish(rig, producer, commit=commit) == Finished(complete=True, committed=commit)
    assert (state_of(rig).holder, len(rig.orders)) == ("", 0)


def test_who_wrote_what_a_sink_ended_is_fenced() -> None:
    rig = Rig()
    producer = held(rig)
    finish(rig, producer, commit=True)
    rig.mark()
    assert isinstance(rig.add(producer, "t/0"), ProducerFenced)
    assert isinstance(rig.end(producer, commit=True, bumps=True), ProducerFenced)
    assert isinstance(rig.init(producer), ProducerFenced)
    assert rig.init().epoch == who(producer).epoch + 2


def test_a_sink_commits_only_what_it_holds() -> None:
    rig = Rig()
    producer = written(rig)
    assert isinstance(finish(rig, producer, commit=True), InvalidTransactionState)
    hold(rig, producer)
    assert isinstance(finish(rig, producer, commit=True, sink="other"), InvalidTransactionState)
    assert isinstance(finish(rig, producer, commit=False, sink="other"), ConcurrentTransactions)
    assert isinstance(hold(rig, producer, sink="other"), InvalidTransactionState)
    assert hold(rig, producer) == Nothing()
    assert state_of(rig).state is State.ONGOING


def test_what_a_sink_holds_is_not_dropped_by_an_order_that_comes_late() -> None:
    """Whoever led the sink before may have ordered it; it was chosen since then."""
    rig = Rig()
    producer = held(rig)
    assert isinstance(finish(rig, producer, commit=False, held=False), ConcurrentTransactions)
    assert state_of(rig).state is State.ONGOING


def test_what_nobody_holds_is_aborted_for_its_sink() -> None:
    rig = Rig()
    producer = written(rig)
    assert finish(rig, producer, commit=False, held=False) == Finished(complete=False)
    rig.mark()
    assert finish(rig, producer, commit=False, held=False) == Finished(complete=True)
    assert isinstance(hold(rig, producer), ProducerFenced)


def test_one_that_has_written_nothing_is_closed_and_can_not_begin_later() -> None:
    rig = Rig()
    producer = shown(rig.init())
    assert isinstance(hold(rig, producer), InvalidTransactionState)
    assert isinstance(finish(rig, producer, commit=True), InvalidTransactionState)
    assert finish(rig, producer, commit=False) == Finished(complete=True)
    assert isinstance(rig.add(producer, "t/0"), ProducerFenced)
    assert rig.orders == []


def test_a_handle_that_was_replaced_or_timed_out_holds_and_ends_nothing() -> None:
    rig = Rig()
    old = written(rig)
    rig.wait(TIMEOUT_MS)
    assert finish(rig, old, commit=False) == Finished(complete=False)
    rig.mark()
    assert isinstance(hold(rig, old), ProducerFenced)
    new = written(rig)
    assert isinstance(hold(rig, old), ProducerFenced)
    assert finish(rig, old, commit=False) == Finished(complete=True)
    assert (state_of(rig).state, shown(state_of(rig).identity)) == (State.ONGOING, new)


def test_a_handle_of_an_id_that_nobody_knows_any_more() -> None:
    rig = Rig()
    assert isinstance(hold(rig, "1:0"), InvalidProducerMapping)
    assert finish(rig, "1:0", commit=True) == Finished(complete=True)


def test_a_sink_ends_what_was_written_in_the_last_epoch_and_another_producer_id_follows() -> None:
    old = Transaction(
        State.ONGOING, ProducerId(1), EPOCH_LAST, TIMEOUT_MS, 1_000_000, partitions=grouped([]), began_ms=1_000_000
    )
    rig = Rig(old)
    producer = f"1:{EPOCH_LAST}"
    assert hold(rig, producer) == Nothing()
    assert finish(rig, producer, commit=True) == Finished(complete=False, committed=True)
    rig.mark()
    assert finish(rig, producer, commit=True) == Finished(complete=True, committed=True)
    assert rig.init() == Identity(ProducerId(101), 0)
