# Produce (key 0), v3-v13.  v3 record batches, v7 zstd, v8 bad records (KIP-467), v9 flexible, v10 hints (KIP-951),
# v11 TRANSACTION_ABORTABLE, v12 partitions join a transaction by being written to (KIP-890), v13 topic ids (KIP-516)
"""Produce: append batches."""

from itertools import islice

from runnel.broker.internal import internal_error
from runnel.broker.produce import Append, Produced
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of, text_of
from runnel.model.errors import (
    BadRecords,
    InvalidRequest,
    InvalidTransactionState,
    RunnelError,
    TransactionAbortable,
    UnsupportedCompression,
)
from runnel.model.ids import TopicId
from runnel.record.compression import Compression
from runnel.replica.partition import Partition
from runnel.wire.kafka import messages as m

ZSTD_SINCE = 7
ABORTABLE_SINCE = 11
ADDS_SINCE = 12
TOPIC_IDS_SINCE = 13
COMPRESSION_BYTE = 22  # the low byte of a batch's attributes
COMPRESSION_MASK = 0x07
BLAMED_MAX = 1_000  # records of one batch: a producer that sends the others again is told of the rest


async def produce(request: m.ProduceRequest, call: Call) -> m.ProduceResponse | None:
    appends = [_append_of(topic, partition, call) for topic in request.topic_data for partition in topic.partition_data]
    results = await call.broker.produce(
        appends, request.acks, request.timeout_ms, call.let_pass, request.transactional_id, call.version >= ADDS_SINCE
    )
    if request.acks == 0:
        _close_on_failure(results)
        return None
    if call.version < ABORTABLE_SINCE and request.transactional_id is not None:
        results = [_told_before(result) for result in results]
    answers = iter(results)
    return m.ProduceResponse(
        responses=[
            m.ProduceResponse.TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[_answer_of(partition.index, next(answers)) for partition in topic.partition_data],
            )
            for topic in request.topic_data
        ]
    )


def _append_of(
    topic: m.ProduceRequest.TopicProduceData, data: m.ProduceRequest.PartitionProduceData, call: Call
) -> Append:
    if call.version >= TOPIC_IDS_SINCE:
        partition = call.partition_by_id(TopicId(topic.topic_id), data.index)
    else:
        partition = call.partition(topic.name, data.index)
    if isinstance(partition, Partition) and partition.internal:
        partition = internal_error(partition.topic)
    batch = data.records
    assert batch is None or isinstance(batch, memoryview)
    if call.version < ZSTD_SINCE and batch is not None and _is_zstd(batch):
        return Append(UnsupportedCompression(f"zstd needs Produce v{ZSTD_SINCE}, this is v{call.version}"), batch)
    return Append(partition, batch)


def _told_before(result: Produced | RunnelError) -> Produced | RunnelError:
    """In words that older clients know."""
    return InvalidTransactionState(str(result)) if isinstance(result, TransactionAbortable) else result


def _is_zstd(batch: memoryview) -> bool:
    return len(batch) > COMPRESSION_BYTE and batch[COMPRESSION_BYTE] & COMPRESSION_MASK == Compression.ZSTD


def _answer_of(index: int, result: Produced | RunnelError) -> m.ProduceResponse.PartitionProduceResponse:
    if isinstance(result, RunnelError):
        reasons = result.reasons if isinstance(result, BadRecords) else {}
        return m.ProduceResponse.PartitionProduceResponse(
            index=index,
            error_code=code_of(result),
            base_offset=-1,
            record_errors=[
                m.ProduceResponse.BatchIndexAndErrorMessage(batch_index=place, batch_index_error_message=reason)
                for place, reason in islice(reasons.items(), BLAMED_MAX)
            ],
            error_message=text_of(result),
        )
    return m.ProduceResponse.PartitionProduceResponse(
        index=index,
        base_offset=result.base_offset,
        log_append_time_ms=result.append_time_ms,
        log_start_offset=result.start_offset,
    )


def _close_on_failure(results: list[Produced | RunnelError]) -> None:
    """acks=0 has no answer: a failure closes the connection, so that the client looks for the leader again."""
    for result in results:
        if isinstance(result, RunnelError):
            raise InvalidRequest(f"a produce request with acks=0 failed: {result}")
