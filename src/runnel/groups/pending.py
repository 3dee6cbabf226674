"""Offsets in transactions: what a group's offsets will be if a producer's transaction is committed.

Rule 1: nobody sees a pending offset. When its transaction ends it becomes the group's, or goes, in one step.
Rule 2: all that is pending of one producer in a shard belongs to one transaction: an older epoch is fenced, and a newer
        one has to wait for the end of the older.
Rule 3: an end that comes again, or late, ends nothing else: not the producer's next transaction, nor what a newer
        coordinator let in.
Rule 4: of several offsets of one partition the one that came last counts, in whatever order their transactions end.
"""

from collections.abc import Callable, Iterable

from runnel.groups.records import OffsetRecord, PendingKey, PendingOffset, PendingRecord
from runnel.groups.store import Stored
from runnel.groups.turn import Turn
from runnel.groups.values import CommitInTransaction, EndTransaction, OffsetToCommit
from runnel.model.errors import ConcurrentTransactions, InvalidProducerEpoch, TransactionCoordinatorFenced
from runnel.model.partition_sets import Partitions


def partitions(stored: Stored) -> Partitions:
    """Those of which an open transaction holds an offset."""
    return frozenset(each.partition for record in stored.pending.values() for each in record.offsets)


def check_epoch(request: CommitInTransaction, turn: Turn) -> None:
    """Raise unless the request belongs to the transaction of which the producer holds offsets, if there is one."""
    for group_id, record in turn.store.pending_of(request.producer_id):
        if request.producer_epoch < record.epoch:
            raise InvalidProducerEpoch(
                f"producer {request.producer_id} is in epoch {record.epoch}, not {request.producer_epoch}: start anew"
            )
        if request.producer_epoch > record.epoch:
            raise ConcurrentTransactions(
                f"a transaction of producer {request.producer_id} on group {group_id!r} is being ended: try again"
            )


def hold(request: CommitInTransaction, offsets: Iterable[OffsetToCommit], turn: Turn) -> None:
    """Keep offsets until the transaction ends."""
    stored = turn.store.groups.get(request.group_id) or Stored()
    before = stored.pending.get(request.producer_id)
    order = 1 + max((each.order for record in stored.pending.values() for each in record.offsets), default=0)
    held = {each.partition: each for each in before.offsets} if before else {}
    for each in offsets:
        held[each.partition] = PendingOffset(*each.partition, order, each.offset, each.leader_epoch, each.metadata)
    if held:
        coordinator_epoch = max(request.coordinator_epoch, before.coordinator_epoch if before else -1)
        record = PendingRecord(request.producer_epoch, coordinator_epoch, tuple(held.values()))
        turn.store.put(PendingKey(request.group_id, request.producer_id), record)


def end(request: EndTransaction, turn: Turn) -> list[str]:
    """Let what the transaction holds count, or drop it; gives the groups that it held offsets of."""
    ended = [each for each in turn.store.pending_of(request.producer_id) if _is_meant(request, each[1])]
    for group_id, record in ended:
        if request.commit:
            _keep(group_id, record, turn)
        turn.store.drop(PendingKey(group_id, request.producer_id))
    return [group_id for group_id, _ in ended]


def _is_meant(request: EndTransaction, record: PendingRecord) -> bool:
    if request.coordinator_epoch < record.coordinator_epoch:
        raise TransactionCoordinatorFenced(
            f"the coordinator of producer {request.producer_id} is in epoch {record.coordinator_epoch} by now,"
            f" not {request.coordinator_epoch}"
        )
    if request.producer_epoch < record.epoch:
        raise InvalidProducerEpoch(
            f"producer {request.producer_id} is in epoch {record.epoch} by now, not {request.producer_epoch}"
        )
    return request.ends(record.epoch)


def _keep(group_id: str, record: PendingRecord, turn: Turn) -> None:
    for each in record.offsets:
        name = turn.topics.name_of(each.partition.topic_id)
        if name is not None and each.number < turn.topics.partition_count(each.partition.topic_id):
            kept = OffsetRecord(each.offset, each.leader_epoch, each.metadata, turn.wall_ms)
            turn.store.put_offset(group_id, name, each.partition, kept)
    orders = {each.partition: each.order for each in record.offsets}
    forget(group_id, lambda each: each.order < orders.get(each.partition, 0), turn)


def forget(group_id: str, is_gone: Callable[[PendingOffset], bool], turn: Turn) -> None:
    """Take out of all transactions what does not matter any more, however they end."""
    stored = turn.store.groups.get(group_id)
    for producer_id, record in list(stored.pending.items()) if stored else ():
        left = tuple(each for each in record.offsets if not is_gone(each))
        key = PendingKey(group_id, producer_id)
        if not left:
            turn.store.drop(key)
        elif len(left) < len(record.offsets):
            turn.store.put(key, PendingRecord(record.epoch, record.coordinator_epoch, left))
