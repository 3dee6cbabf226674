"""The life of a transactional id: from one state to the next. Who may ask for it is decided in `shard`.

Rule 1: whoever begins under a transactional id gets an epoch that nobody had; without one left, another producer id.
Rule 2: the end of a transaction is decided once. Its markers carry the epoch that `prepared` or `fenced` leaves.
Rule 3: what is ended against the will of its producer is aborted under the next epoch, so that it can't go on; the
        epoch goes up once for that (KAFKA-19367).
Rule 4: a transaction that a sink holds stays as it is until that sink ends it, under the next epoch too.
Rule 5: `previous` is who the present producer was before, as long as it may ask again without having heard of the
        change; whoever begins anew has no past.

    EMPTY --added--> ONGOING --prepared--> PREPARE_COMMIT, PREPARE_ABORT --completed--> COMPLETE_*
      ^                 |  fenced                ^                                        |
      |                 +-----> PREPARE_ABORT ---+                added: ONGOING again <--+
      |            held: ONGOING, until finished: PREPARE_COMMIT, PREPARE_ABORT
      +--- renewed (from EMPTY and COMPLETE_*)
"""

from collections.abc import Iterable

from msgspec.structs import replace

from runnel.model.ids import NO_PRODUCER, Millis, PartitionKey, ProducerId
from runnel.model.partition_sets import grouped
from runnel.transactions.records import Transaction
from runnel.transactions.values import EPOCH_LAST, NOBODY, Cause, Identity, State


def created(producer_id: ProducerId, timeout_ms: int, wall_ms: Millis) -> Transaction:
    return Transaction(State.EMPTY, producer_id, 0, timeout_ms, wall_ms)


def exhausted(transaction: Transaction) -> bool:
    """Whether the producer id has no epoch left for another producer."""
    return transaction.epoch >= EPOCH_LAST


def renewed(was: Transaction, past: Identity, new_id: ProducerId, timeout_ms: int, wall_ms: Millis) -> Transaction:
    """Another producer, or the same one under another epoch; with a new id if the epochs of the old one are used up."""
    identity = _next(was, new_id)
    return Transaction(
        State.EMPTY, identity.producer_id, identity.epoch, timeout_ms, wall_ms, past.producer_id, past.epoch
    )


def added(was: Transaction, partitions: Iterable[PartitionKey], wall_ms: Millis) -> Transaction:
    """The partitions take part; the first ones begin the transaction."""
    return replace(
        was,
        state=State.ONGOING,
        partitions=grouped(was.partition_set.union(partitions)),
        began_ms=was.began_ms if was.state is State.ONGOING else wall_ms,
        changed_ms=wall_ms,
    )


def prepared(
    was: Transaction, commit: bool, wall_ms: Millis, *, bumps: bool, new_id: ProducerId = NO_PRODUCER
) -> Transaction:
    """The producer ended its transaction: decided, partitions do not know yet."""
    state = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
    past = was.identity if bumps else NOBODY
    return replace(
        was,
        state=state,
        epoch=was.epoch + bumps,
        previous_id=past.producer_id,
        previous_epoch=past.epoch,
        next_id=new_id,
        changed_ms=wall_ms,
        version=2 if bumps else 1,
        cause=Cause.CLIENT,
    )


def fenced(was: Transaction, cause: Cause, wall_ms: Millis, *, may_return: bool) -> Transaction:
    """Rule 3. Nobody took the place of a producer that may return."""
    past = was.identity if may_return else NOBODY
    return replace(
        was,
        state=State.PREPARE_ABORT,
        epoch=was.epoch + 1,
        previous_id=past.producer_id,
        previous_epoch=past.epoch,
        changed_ms=wall_ms,
        version=2,
        cause=cause,
    )


def held(was: Transaction, sink: str, wall_ms: Millis) -> Transaction:
    """Rule 4, from now on."""
    return replace(was, holder=sink, changed_ms=wall_ms)


def finished(was: Transaction, commit: bool, wall_ms: Millis) -> Transaction:
    """A sink ended it. Whoever wrote it can't go on, and need not hear of it."""
    state = State.PREPARE_COMMIT if commit else State.PREPARE_ABORT
    return replace(fenced(was, Cause.SINK, wall_ms, may_return=False), state=state, holder="")


def closed(was: Transaction, wall_ms: Millis) -> Transaction:
    """Nothing was written, and nothing will be: a sink gave its producer up. No partition has to be told."""
    return replace(finished(was, False, wall_ms), state=State.COMPLETE_ABORT)


def completed(was: Transaction, wall_ms: Millis) -> Transaction:
    """Every partition knows."""
    return replace(
        was,
        state=State.COMPLETE_COMMIT if was.state is State.PREPARE_COMMIT else State.COMPLETE_ABORT,
        producer_id=was.successor.producer_id,
        epoch=was.successor.epoch,
        next_id=NO_PRODUCER,
        partitions=(),
        changed_ms=wall_ms,
    )


def aborted_empty(was: Transaction, past: Identity, new_id: ProducerId, wall_ms: Millis) -> Transaction:
    """A transaction in which nothing was written: the epoch goes up all the same, and nobody has to be told."""
    identity = _next(was, new_id)
    return replace(
        was,
        state=State.COMPLETE_ABORT,
        producer_id=identity.producer_id,
        epoch=identity.epoch,
        previous_id=past.producer_id,
        previous_epoch=past.epoch,
        began_ms=-1,
        changed_ms=wall_ms,
        version=2,
        cause=Cause.CLIENT,
    )


def _next(was: Transaction, new_id: ProducerId) -> Identity:
    return Identity(new_id, 0) if exhausted(was) else Identity(was.producer_id, was.epoch + 1)
