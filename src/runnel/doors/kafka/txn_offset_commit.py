# TxnOffsetCommit (key 28), v0-v5.  v2 leader epochs, v3 flexible and KIP-447, v4 TRANSACTION_ABORTABLE, v5 KIP-890
"""TxnOffsetCommit: keep how far a group has come, if a transaction is committed."""

from typing import TypeAlias

from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of
from runnel.groups.values import CommitInTransaction, OffsetToCommit
from runnel.model.errors import (
    ConcurrentTransactions,
    CoordinatorLoading,
    InvalidTransactionState,
    RunnelError,
    TransactionAbortable,
    UnknownTopic,
    UnknownTopicId,
)
from runnel.model.ids import Epoch, Offset
from runnel.wire.kafka import messages as m

ABORTABLE_SINCE = 4
ADDS_SINCE = 5  # the group's partition is added to the transaction by the broker, not by the client
Place: TypeAlias = tuple[str, int]
Response = m.TxnOffsetCommitResponse


async def txn_offset_commit(request: m.TxnOffsetCommitRequest, call: Call) -> m.TxnOffsetCommitResponse:
    known: dict[Place, OffsetToCommit] = {}
    codes: dict[Place, int] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            place = (topic.name, partition.partition_index)
            try:
                known[place] = _offset_of(topic.name, partition, call)
            except RunnelError as error:
                codes[place] = code_of(error)
    codes |= await _commit(request, known, call)
    return Response(
        topics=[
            Response.TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    Response.TxnOffsetCommitResponsePartition(
                        partition_index=p.partition_index, error_code=codes[topic.name, p.partition_index]
                    )
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _commit(
    request: m.TxnOffsetCommitRequest, known: dict[Place, OffsetToCommit], call: Call
) -> dict[Place, int]:
    asked = CommitInTransaction(
        request.group_id, request.member_id, request.generation_id, tuple(known.values()), request.group_instance_id,
        producer_id=request.producer_id, producer_epoch=request.producer_epoch,
    )  # fmt: skip
    adds = call.version >= ADDS_SINCE
    try:
        committed = await call.broker.groups.txn_commit(asked, request.transactional_id, adds=adds)
    except RunnelError as error:
        return dict.fromkeys(known, code_of(in_words_of(call.version, error)))
    return {
        place: code_of(error and in_words_of(call.version, error))
        for place, error in zip(known, committed.errors, strict=True)
    }


def _offset_of(
    topic: str, partition: m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition, call: Call
) -> OffsetToCommit:
    return OffsetToCommit(
        call.broker.topics.partition_key(topic, partition.partition_index),
        Offset(partition.committed_offset),
        Epoch(partition.committed_leader_epoch),
        partition.committed_metadata or "",
    )


def in_words_of(version: int, error: RunnelError) -> RunnelError:
    """An error as clients of a version understand it."""
    if isinstance(error, UnknownTopicId):  # asked for by name, and deleted since
        return UnknownTopic(str(error))
    if isinstance(error, TransactionAbortable) and version < ABORTABLE_SINCE:
        return InvalidTransactionState(str(error))
    if isinstance(error, ConcurrentTransactions) and version < ADDS_SINCE:
        return CoordinatorLoading(str(error))  # what makes it ask again
    return error
