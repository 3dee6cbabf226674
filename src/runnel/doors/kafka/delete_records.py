# DeleteRecords (key 21), v0-v2.  v2 flexible
"""DeleteRecords: cut off the old end of partitions."""

from runnel.broker.end_offsets import commit_written
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of
from runnel.model.errors import OffsetOutOfRange, PolicyViolation, RunnelError
from runnel.model.ids import Offset
from runnel.wire.kafka import messages as m

TO_THE_END = -1
Answer = m.DeleteRecordsResponse.DeleteRecordsPartitionResult


async def delete_records(request: m.DeleteRecordsRequest, call: Call) -> m.DeleteRecordsResponse:
    return m.DeleteRecordsResponse(
        topics=[
            m.DeleteRecordsResponse.DeleteRecordsTopicResult(
                name=topic.name, partitions=[await _answer_of(topic.name, asked, call) for asked in topic.partitions]
            )
            for topic in request.topics
        ]
    )


async def _answer_of(
    topic: str, asked: m.DeleteRecordsRequest.DeleteRecordsPartition, call: Call
) -> m.DeleteRecordsResponse.DeleteRecordsPartitionResult:
    try:
        start = await _delete(topic, asked.partition_index, asked.offset, call)
    except RunnelError as error:
        return Answer(partition_index=asked.partition_index, low_watermark=-1, error_code=code_of(error))
    return Answer(partition_index=asked.partition_index, low_watermark=start)


async def _delete(topic: str, number: int, offset: int, call: Call) -> Offset:
    partition = call.broker.partitions.find(topic, number)
    partition.must_be_open_to_clients()
    if not partition.config.deletes:
        raise PolicyViolation(f"{partition.name} is compacted: its records can't be deleted by offset")
    if offset == TO_THE_END or offset > partition.high_watermark:
        await commit_written(partition)
    upto = partition.high_watermark if offset == TO_THE_END else Offset(offset)
    if not 0 <= upto <= partition.high_watermark:
        raise OffsetOutOfRange(f"{partition.name} can be cut up to offset {partition.high_watermark}, not {offset}")
    await partition.log.advance_start(upto)
    return partition.log.start_offset
