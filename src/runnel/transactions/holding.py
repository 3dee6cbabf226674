"""Transactions that sinks end: who may hold one and end it, decided by the handle that its producer handed over.

Rule 1: a handle names one transaction: one producer in one epoch. It counts as long as that is the present one of its
        transactional id, and is open; once it has ended, in whatever way, it never counts again.
Rule 2: a transaction is committed for a sink only if that sink holds it. It is aborted for a sink that holds it, or if
        nobody does; what a sink drops (`held=False`) it does not hold.
Rule 3: to end what has ended is done. Whether partitions know yet is told.
"""

from runnel.model.errors import ConcurrentTransactions, InvalidTransactionState
from runnel.model.ids import ProducerId
from runnel.model.sinks import Finish, Finished, Handle, Hold
from runnel.transactions import refusals
from runnel.transactions.records import Transaction
from runnel.transactions.values import EPOCH_LAST, Cause, Identity, State


def is_meant(was: Transaction, handle: Handle) -> bool:
    """Whether the handle is of the present producer, which has not ended what it began."""
    is_present = was.identity == (handle.producer_id, handle.epoch)
    return is_present and not was.state.ending and handle.epoch <= EPOCH_LAST


def check_hold(was: Transaction, request: Hold) -> bool:
    """Whether a sink is to hold a transaction from now on; False: it does already. Raises if it can't."""
    handle = request.handle
    if not is_meant(was, handle):
        raise refusals.fenced(handle.transactional_id, Identity(ProducerId(handle.producer_id), handle.epoch), was)
    if was.state is not State.ONGOING:
        raise InvalidTransactionState(f"{handle.transactional_id!r} has no open transaction: nothing was written to it")
    if was.holder not in ("", request.sink):
        raise refusals.held(handle.transactional_id, was)
    return not was.holder


def check_finish(was: Transaction, request: Finish) -> None:
    """Rule 2, of an open transaction."""
    if was.holder == request.sink and request.held:
        return
    if request.commit:
        raise InvalidTransactionState(
            f"the sink {request.sink!r} does not hold the transaction of {request.handle.transactional_id!r}: it can't"
            " commit it"
        )
    if was.holder:
        raise ConcurrentTransactions(
            f"the transaction of {request.handle.transactional_id!r} is held by the sink {was.holder!r}: it is not"
            " dropped"
        )


def check_nothing_to_commit(request: Finish) -> None:
    if request.commit:
        raise InvalidTransactionState(f"{request.handle.transactional_id!r} has no open transaction to commit")


def fate(was: Transaction | None, handle: Handle) -> Finished:
    """What became of a transaction that has ended."""
    if was is None:
        return Finished(complete=True)
    by_sink = was.cause is Cause.SINK and was.identity == (handle.producer_id, handle.epoch + 1)
    committed = by_sink and was.state in (State.PREPARE_COMMIT, State.COMPLETE_COMMIT)
    return Finished(complete=not was.state.ending, committed=committed)
