"""What is said to those who can't be served: what happened, and what to do next.

A producer whose transaction took too long hears just that, and not that another took its place.
"""

from runnel.model.errors import (
    ConcurrentTransactions,
    InvalidTransactionState,
    OperationNotAttempted,
    ProducerFenced,
    RunnelError,
    TransactionAbortable,
    UnknownTopic,
)
from runnel.transactions.records import Transaction
from runnel.transactions.values import AddPartitions, Cause, EndTransaction, Identity, NamedPartition


def fenced(transactional_id: str, producer: Identity, was: Transaction) -> ProducerFenced:
    if was.cause is Cause.TIMED_OUT and producer == was.previous:
        return ProducerFenced(
            f"the transaction of {transactional_id!r} took longer than its {was.timeout_ms} ms and was aborted:"
            " initialise the producer again, and give it more time"
        )
    return ProducerFenced(
        f"producer {producer.producer_id} of epoch {producer.epoch} does not write for transactional id"
        f" {transactional_id!r} any more, that of epoch {was.epoch} does: only one can"
    )


def still_ending(transactional_id: str) -> ConcurrentTransactions:
    return ConcurrentTransactions(f"a transaction of {transactional_id!r} is being ended: try again")


def held(transactional_id: str, was: Transaction) -> InvalidTransactionState:
    return InvalidTransactionState(
        f"the transaction of {transactional_id!r} was handed over to the sink {was.holder!r}, which alone ends it:"
        " nothing can be added to it, and its producer is done"
    )


def held_by_sink(transactional_id: str, was: Transaction) -> ConcurrentTransactions:
    """To whoever wants to begin under the id: it can't, until the sink is done."""
    return ConcurrentTransactions(
        f"the open transaction of {transactional_id!r} is held by the sink {was.holder!r}, which publishes or drops it:"
        f" try again, and if it stays so, see 'runnel sink describe {was.holder}'"
    )


def other_outcome(request: EndTransaction, was: Transaction) -> RunnelError:
    if was.cause is Cause.TIMED_OUT:
        return TransactionAbortable(
            f"the transaction of {request.transactional_id!r} took longer than its {was.timeout_ms} ms and was aborted:"
            " abort it, then begin another, and give it more time"
        )
    ended = "aborted" if request.commit else "committed"
    return InvalidTransactionState(f"the transaction of {request.transactional_id!r} was {ended} already")


def verified(request: AddPartitions, named: NamedPartition, is_member: bool) -> RunnelError | None:
    if is_member:
        return None
    return TransactionAbortable(
        f"{named[0]}-{named[1]} does not take part in the transaction of {request.transactional_id!r}: abort it"
    )


def not_added(named: NamedPartition, missing: list[NamedPartition]) -> RunnelError:
    if named in missing:
        return UnknownTopic(f"there is no partition {named[1]} of a topic {named[0]!r}")
    return OperationNotAttempted("other partitions of the same request do not exist: nothing was added")
