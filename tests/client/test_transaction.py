"""Where a transactional producer stands, and what follows from every failure: without a broker."""

import pytest

from runnel.client.errors import Refused
from runnel.client.line import Identity
from runnel.client.transaction import State, Transaction
from runnel.model import errors as e
from runnel.wire.kafka.error_codes import ErrorCode


def opened(*, modern: bool = True) -> Transaction:
    transaction = Transaction("tid", 60_000)
    transaction.identified(Identity(7, 0))
    transaction.check_can_begin()
    transaction.opened(modern=modern)
    transaction.started = True
    return transaction


def test_one_at_a_time() -> None:
    transaction = opened()
    with pytest.raises(e.InvalidTransactionState, match="commit or abort it before another begins"):
        transaction.check_can_begin()
    transaction.committing()
    transaction.ended(Identity(7, 1))
    transaction.check_can_begin()
    assert (transaction.identity, transaction.started) == (Identity(7, 1), False)


def test_an_abort_comes_before_the_next() -> None:
    transaction = opened()
    transaction.aborting()
    with pytest.raises(e.InvalidTransactionState, match="not aborted yet"):
        transaction.check_can_begin()
    with pytest.raises(e.InvalidTransactionState, match="no transaction"):
        transaction.check_open()
    transaction.aborting()


def test_nothing_is_sent_or_ended_outside() -> None:
    transaction = Transaction("tid", 60_000)
    transaction.identified(Identity(7, 0))
    for forbidden in (transaction.check_open, transaction.committing, transaction.aborting):
        with pytest.raises(e.InvalidTransactionState, match="no transaction of 'tid' is open"):
            forbidden()


def test_a_doomed_transaction_can_only_be_aborted() -> None:
    transaction = opened()
    raised = transaction.fail(e.BatchTooLarge("far too large"))
    assert isinstance(raised, e.TransactionAbortable)
    for forbidden in (transaction.check_open, transaction.committing):
        with pytest.raises(e.TransactionAbortable, match=r"far too large\. Abort it"):
            forbidden()
    transaction.aborting()
    transaction.ended(Identity(7, 1))
    transaction.opened(modern=True)
    transaction.check_open()


def test_the_first_failure_is_the_one_that_is_told() -> None:
    transaction = opened()
    transaction.fail(e.BatchTooLarge("first"))
    assert "first" in str(transaction.fail(e.RequestTimedOut("second")))


def test_an_asked_commit_can_be_asked_again_but_not_aborted() -> None:
    transaction = opened()
    transaction.committing()
    with pytest.raises(e.InvalidTransactionState, match="can't be aborted, since its commit was asked for"):
        transaction.aborting()
    with pytest.raises(e.InvalidTransactionState, match="nobody knows yet whether"):
        transaction.check_can_begin()
    transaction.committing()
    assert transaction.state is State.COMMITTING


@pytest.mark.parametrize(
    ("error", "coordinator", "dead"),
    [
        (e.ProducerFenced("x"), True, True),
        (e.ProducerFenced("x"), False, True),
        (e.InvalidProducerEpoch("x"), True, True),
        (e.InvalidProducerEpoch("x"), False, False),  # a leader's word: our own transaction may have timed out
        (e.UnsupportedVersion("x"), True, True),
        (e.InvalidTransactionState("x"), True, True),
        (e.InvalidTransactionState("x"), False, False),
        (Refused("x", code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED), True, True),
        (Refused("x", code=ErrorCode.TOPIC_AUTHORIZATION_FAILED), False, False),
        (e.TransactionAbortable("x"), False, False),
        (e.IllegalGeneration("x"), True, False),
        (e.OutOfOrderSequence("x"), False, False),
        (e.RequestTimedOut("x"), False, False),
        (e.InvalidProducerMapping("x"), True, False),
    ],
)
def test_what_ends_a_producer_and_what_only_a_transaction(error: e.RunnelError, coordinator: bool, dead: bool) -> None:
    transaction = opened()
    transaction.fail(error, coordinator=coordinator)
    assert (transaction.state is State.DEAD) == dead
    with pytest.raises(type(transaction.doom or error)):
        transaction.check_open()
    if dead:
        for forbidden in (transaction.check_can_begin, transaction.aborting, transaction.committing):
            with pytest.raises(type(transaction.doom or error)):
                forbidden()
    else:
        transaction.aborting()


def test_fenced_outdoes_doomed() -> None:
    transaction = opened()
    transaction.fail(e.InvalidProducerEpoch("said by a leader"))
    transaction.aborting()
    raised = transaction.fail(e.ProducerFenced("said by the coordinator"), coordinator=True)
    assert isinstance(raised, e.ProducerFenced)
    assert "another one has the transactional id 'tid' now, or its transaction was open for more than" in str(raised)


@pytest.mark.parametrize(("doubtful", "fate"), [(False, "nothing of it was committed"), (True, "may or may not")])
def test_who_is_fenced_hears_what_became_of_the_transaction(doubtful: bool, fate: str) -> None:
    transaction = opened()
    transaction.committing()
    transaction.doubtful = doubtful
    assert fate in str(transaction.fail(e.ProducerFenced("x"), coordinator=True))


def test_a_refused_commit_may_be_aborted() -> None:
    transaction = opened()
    transaction.committing()
    transaction.fail(e.TransactionAbortable("x"), coordinator=True)
    transaction.aborting()


@pytest.mark.parametrize(
    ("said", "modern", "dead"),
    [
        (e.InvalidTransactionState("x"), True, False),  # Kafka's word for it
        (e.TransactionAbortable("x"), True, False),
        (e.InvalidTransactionState("x"), False, True),
    ],
)
def test_a_commit_of_what_was_aborted_meanwhile(said: e.RunnelError, modern: bool, dead: bool) -> None:
    """With an epoch for each transaction, an abort brings the next one; without, the epoch is somebody else's."""
    transaction = opened(modern=modern)
    transaction.committing()
    raised = transaction.fail(said, coordinator=True)
    assert (transaction.state is State.DEAD) == dead
    assert dead or "was open for more than 60000 ms" in str(raised)


@pytest.mark.parametrize("modern", [True, False])
def test_doubtful_numbers_need_a_new_epoch(modern: bool) -> None:
    """KIP-360: where the end of a transaction brings none, it is asked for."""
    failed, given_up = opened(modern=modern), opened(modern=modern)
    failed.fail(e.RequestTimedOut("x"))
    given_up.give_up()
    assert failed.renew == given_up.renew == (not modern)


def test_a_coordinator_that_forgot_us_can_end_nothing() -> None:
    transaction = opened()
    transaction.fail(e.InvalidProducerMapping("x"), coordinator=True)
    assert (transaction.renew, transaction.must_end) == (True, False)


def test_nothing_sent_is_nothing_to_end() -> None:
    transaction = opened()
    transaction.started = False
    assert not transaction.must_end
