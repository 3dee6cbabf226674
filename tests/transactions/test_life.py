"""Whole lives of transactional ids: time, fencing, epochs that run out, coordinators that change, late retries."""

from uuid import UUID

import pytest
from tests.transactions.rig import CONFIG, ID, T0, T1, TIMEOUT_MS, Rig, who

from runnel.model.errors import (
    ConcurrentTransactions,
    InvalidRequest,
    InvalidTransactionTimeout,
    OperationNotAttempted,
    ProducerFenced,
    TransactionAbortable,
    TransactionalIdNotFound,
    UnknownTopic,
)
from runnel.model.ids import ProducerId, TopicId
from runnel.model.partition_sets import grouped
from runnel.transactions.records import Transaction
from runnel.transactions.values import EPOCH_LAST, Cause, Identity, State


def state_of(rig: Rig) -> Transaction:
    found = rig.state()
    assert found is not None
    return found


def begun(rig: Rig) -> str:
    """A producer whose transaction has written to t/0."""
    producer = rig.init()
    text = f"{producer.producer_id}:{producer.epoch}"
    assert rig.add(text, "t/0") is None
    return text


# --- markers


def test_partitions_hear_of_an_end_once_it_is_decided_and_the_id_waits_until_all_of_them_have() -> None:
    rig = Rig()
    producer = begun(rig)
    rig.add(producer, "t/1")
    assert rig.orders == []
    rig.end(producer, commit=True, bumps=False)
    [verdict] = rig.orders
    assert (verdict.commit, verdict.version, verdict.partitions) == (True, 1, frozenset((T0, T1)))
    assert verdict.producer == who(producer)
    rig.mark()
    assert (state_of(rig).state, state_of(rig).partitions) == (State.COMPLETE_COMMIT, ())


def test_markers_of_a_client_that_knows_kip_890_carry_the_next_epoch() -> None:
    rig = Rig()
    producer = begun(rig)
    following = rig.end(producer, commit=False, bumps=True)
    [verdict] = rig.orders
    assert (verdict.producer, verdict.version) == (following, 2)
    assert following == Identity(who(producer).producer_id, who(producer).epoch + 1)


def test_news_of_an_older_end_completes_nothing() -> None:
    rig = Rig()
    producer = begun(rig)
    rig.end(producer, commit=True, bumps=True)
    [first] = rig.orders
    rig.mark()
    rig.add("101:1", "t/0")
    rig.end("101:1", commit=True, bumps=True)
    rig.orders = [first]
    rig.mark()
    assert state_of(rig).state is State.PREPARE_COMMIT


# --- another coordinator


@pytest.mark.parametrize("commit", [True, False])
def test_a_coordinator_that_finds_a_decision_goes_on_with_the_markers(commit: bool) -> None:
    rig = Rig()
    producer = begun(rig)
    rig.end(producer, commit=commit, bumps=True)
    decided = list(rig.orders)
    rig.restart()
    assert rig.orders == decided
    rig.mark()
    assert state_of(rig).state is (State.COMPLETE_COMMIT if commit else State.COMPLETE_ABORT)


def test_a_coordinator_that_finds_a_running_transaction_gives_it_the_time_that_it_has_left() -> None:
    rig = Rig()
    begun(rig)
    rig.wait(TIMEOUT_MS - 1_000)
    rig.restart()
    rig.wait(999)
    assert state_of(rig).state is State.ONGOING
    rig.wait(1)
    assert state_of(rig).state is State.PREPARE_ABORT


def test_a_clock_that_was_set_back_gives_no_transaction_more_than_its_whole_time() -> None:
    rig = Rig()
    begun(rig)
    rig.wall_ms -= 1_000_000
    rig.restart()
    rig.wait(TIMEOUT_MS)
    assert state_of(rig).state is State.PREPARE_ABORT


# --- time


def test_a_transaction_that_takes_too_long_is_aborted_under_the_next_epoch() -> None:
    rig = Rig()
    producer = begun(rig)
    rig.wait(TIMEOUT_MS - 1)
    assert rig.orders == []
    rig.wait(1)
    [verdict] = rig.orders
    assert (verdict.commit, verdict.version, verdict.cause) == (False, 2, Cause.TIMED_OUT)
    assert verdict.producer.epoch == who(producer).epoch + 1
    assert verdict.ran_ms == TIMEOUT_MS


def test_time_counts_from_the_first_partition_and_ends_with_the_transaction() -> None:
    rig = Rig()
    producer = begun(rig)
    rig.wait(TIMEOUT_MS - 1)
    rig.add(producer, "t/1")
    rig.end(producer, commit=True, bumps=False)
    rig.mark()
    rig.wait(TIMEOUT_MS)
    assert state_of(rig).state is State.COMPLETE_COMMIT
    rig.add(producer, "t/0")
    rig.wait(TIMEOUT_MS - 1)
    assert state_of(rig).state is State.ONGOING


def test_a_producer_whose_transaction_took_too_long_hears_just_that() -> None:
    rig = Rig()
    producer = begun(rig)
    rig.wait(TIMEOUT_MS)
    refused = rig.end(producer, commit=True, bumps=False)
    assert isinstance(refused, ProducerFenced)
    assert f"longer than its {TIMEOUT_MS} ms" in str(refused)
    told = rig.end(producer, commit=True, bumps=True)
    assert isinstance(told, TransactionAbortable)
    assert f"longer than its {TIMEOUT_MS} ms" in str(told)


def test_a_producer_whose_transaction_took_too_long_can_go_on() -> None:
    rig = Rig()
    producer = begun(rig)
    rig.wait(TIMEOUT_MS)
    assert isinstance(rig.end(producer, commit=False, bumps=True), ConcurrentTransactions)
    rig.mark()
    aborted = rig.end(producer, commit=False, bumps=True)
    assert aborted == rig.init(producer) == Identity(who(producer).producer_id, who(producer).epoch + 1)


def test_a_producer_whose_transaction_took_too_long_can_not_go_on_once_another_has_begun() -> None:
    rig = Rig()
    producer = begun(rig)
    rig.wait(TIMEOUT_MS)
    rig.mark()
    rig.init()
    assert isinstance(rig.init(producer), ProducerFenced)
    assert isinstance(rig.end(producer, commit=False, bumps=True), ProducerFenced)


def test_timeouts_beyond_what_is_allowed_are_refused() -> None:
    rig = Rig()
    for timeout_ms in (0, -1, CONFIG.timeout_max_ms + 1):
        assert isinstance(rig.init(timeout_ms=timeout_ms), InvalidTransactionTimeout)
    assert rig.init(timeout_ms=CONFIG.timeout_max_ms) == Identity(ProducerId(101), 0)


def test_an_id_that_nobody_uses_is_forgotten_and_one_in_a_transaction_is_not() -> None:
    rig = Rig(Transaction(State.ONGOING, ProducerId(1), 0, 10**9, 1_000_000, partitions=grouped([T0]), began_ms=0))
    rig.init(transactional_id="idle")
    rig.wait(CONFIG.expiration_ms - 1)
    assert rig.state("idle") is not None
    rig.wait(CONFIG.expiration_check_ms)
    assert rig.state("idle") is None
    assert rig.log[-1][1] is None
    assert rig.state() is not None
    assert rig.list() == [ID]


# --- fencing


def test_a_new_producer_fences_the_old_one_and_the_epoch_goes_up_once_for_that() -> None:
    """KAFKA-19367: fencing and ending each took an epoch."""
    rig = Rig()
    producer = begun(rig)
    assert isinstance(rig.init(), ConcurrentTransactions)
    assert isinstance(rig.init(), ConcurrentTransactions)
    [verdict] = rig.orders
    assert (verdict.producer.epoch, verdict.commit, verdict.cause) == (1, False, Cause.FENCED)
    assert isinstance(rig.end(producer, commit=True, bumps=True), ProducerFenced)
    rig.mark()
    assert rig.init().epoch == 2
    assert isinstance(rig.add(producer, "t/0"), ProducerFenced)
    assert isinstance(rig.init(producer), ProducerFenced)


def test_a_producer_that_gives_up_its_own_transaction_goes_on_under_the_epoch_that_ended_it() -> None:
    rig = Rig()
    producer = begun(rig)
    assert isinstance(rig.init(producer), ConcurrentTransactions)
    rig.mark()
    assert rig.init(producer) == rig.init(producer) == Identity(ProducerId(101), 1)


def test_a_late_request_for_an_epoch_does_not_end_what_began_under_it() -> None:
    rig = Rig()
    rig.init()
    assert rig.init("101:0") == Identity(ProducerId(101), 1)
    rig.add("101:1", "t/0")
    assert isinstance(rig.init("101:0"), ProducerFenced)
    assert state_of(rig).state is State.ONGOING


@pytest.mark.parametrize("commit", [True, False])
def test_a_late_end_does_not_touch_the_next_transaction(commit: bool) -> None:
    """Before KIP-890 it ended whatever ran: the hole in which messages were lost and torn apart."""
    rig = Rig()
    producer = begun(rig)
    following = rig.end(producer, commit=True, bumps=True)
    rig.mark()
    rig.add(f"{following.producer_id}:{following.epoch}", "t/1")
    assert isinstance(rig.end(producer, commit=commit, bumps=True), ProducerFenced)
    assert state_of(rig).state is State.ONGOING


def test_the_next_transaction_waits_until_the_last_one_has_ended_everywhere() -> None:
    """KAFKA-18575."""
    rig = Rig()
    producer = begun(rig)
    rig.end(producer, commit=True, bumps=True)
    for verify in (False, True):
        assert isinstance(rig.add("101:1", "t/0", verify=verify), ConcurrentTransactions)
    rig.mark()
    assert rig.add("101:1", "t/0") is None


# --- epochs run out


def test_the_last_epoch_leads_to_another_producer_id() -> None:
    last = Transaction(State.EMPTY, ProducerId(1), EPOCH_LAST, TIMEOUT_MS, 0)
    rig = Rig(last)
    assert rig.init() == Identity(ProducerId(101), 0)


def test_a_transaction_in_the_last_epoch_ends_under_the_one_that_is_left_and_the_next_has_another_id() -> None:
    rig = Rig(Transaction(State.EMPTY, ProducerId(1), EPOCH_LAST, TIMEOUT_MS, 0))
    rig.add(f"1:{EPOCH_LAST}", "t/0")
    assert rig.end(f"1:{EPOCH_LAST}", commit=True, bumps=True) == Identity(ProducerId(101), 0)
    [verdict] = rig.orders
    assert verdict.producer == Identity(ProducerId(1), EPOCH_LAST + 1)
    assert isinstance(rig.add("101:0", "t/0"), ConcurrentTransactions)
    rig.mark()
    assert rig.end(f"1:{EPOCH_LAST}", commit=True, bumps=True) == Identity(ProducerId(101), 0)
    assert rig.add("101:0", "t/0") is None


def test_whoever_times_out_in_the_last_epoch_gets_another_id_and_the_same_one_when_it_asks_again() -> None:
    rig = Rig(Transaction(State.EMPTY, ProducerId(1), EPOCH_LAST, TIMEOUT_MS, 0))
    rig.add(f"1:{EPOCH_LAST}", "t/0")
    rig.wait(TIMEOUT_MS)
    rig.mark()
    assert rig.init(f"1:{EPOCH_LAST}") == Identity(ProducerId(101), 0)
    assert rig.init(f"1:{EPOCH_LAST}") == Identity(ProducerId(101), 0)


# --- partitions


def test_partitions_that_do_not_exist_keep_the_others_out() -> None:
    rig = Rig()
    rig.init()
    missing, kept_out, beyond = rig.add("101:0", "no/0", "t/0", "u/3")
    assert isinstance(missing, UnknownTopic)
    assert isinstance(kept_out, OperationNotAttempted)
    assert isinstance(beyond, UnknownTopic)
    assert state_of(rig).state is State.EMPTY


def test_partitions_are_kept_by_the_ids_of_their_topics() -> None:
    rig = Rig()
    producer = begun(rig)
    rig.topics.there["t"] = TopicId(UUID(int=99))
    assert isinstance(rig.add(producer, "t/0", verify=True), TransactionAbortable)
    rig.add(producer, "t/0")
    assert len(state_of(rig).partition_set) == 2


def test_adding_what_takes_part_already_writes_nothing() -> None:
    rig = Rig()
    producer = begun(rig)
    known = len(rig.log)
    assert rig.add(producer, "t/0") is None
    assert len(rig.log) == known


# --- administration


def test_a_transaction_is_described_with_the_partitions_that_are_still_there() -> None:
    rig = Rig()
    begun(rig)
    rig.add("101:0", "u/1")
    del rig.topics.there["t"]
    found = rig.ask("describe", ID)
    assert (found.state.label, found.producer, found.timeout_ms) == ("Ongoing", who("101:0"), TIMEOUT_MS)
    assert (found.began_ms, found.partitions) == (1_000_000, (("u", 1),))
    assert isinstance(rig.ask("describe", "no"), TransactionalIdNotFound)
    assert isinstance(rig.ask("describe", ""), InvalidRequest)


def test_transactions_are_listed_by_state_producer_and_how_long_they_run() -> None:
    rig = Rig()
    rig.init(transactional_id="idle")
    rig.init(transactional_id="runs")
    rig.add("102:0", "t/0", transactional_id="runs")
    rig.wait(500)
    assert rig.list() == ["idle", "runs"]
    assert rig.list("Empty", "NoState") == ["idle"]
    assert rig.list("NoState") == []
    assert rig.list(producer_ids=(102,)) == ["runs"]
    assert (rig.list(duration_ms=499), rig.list(duration_ms=500)) == (["runs"], [])


@pytest.mark.parametrize("verb", ["init", "add", "end"])
def test_a_transactional_id_has_a_name(verb: str) -> None:
    rig = Rig()
    match verb:
        case "init":
            answer = rig.init(transactional_id="")
        case "add":
            answer = rig.add("1:0", "t/0", transactional_id="")
        case _:
            answer = rig.end("1:0", commit=True, bumps=True, transactional_id="")
    assert isinstance(answer, InvalidRequest)
