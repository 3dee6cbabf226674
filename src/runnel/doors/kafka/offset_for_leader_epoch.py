# OffsetForLeaderEpoch (key 23), v2-v4.  v3 replica ids, v4 flexible
"""OffsetForLeaderEpoch (KIP-101, KIP-320): where a leader's time ended."""

from runnel.broker.fetch import check_epoch
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of
from runnel.model.errors import RunnelError
from runnel.model.ids import Epoch
from runnel.wire.kafka import messages as m

Answer = m.OffsetForLeaderEpochResponse.EpochEndOffset


async def offset_for_leader_epoch(request: m.OffsetForLeaderEpochRequest, call: Call) -> m.OffsetForLeaderEpochResponse:
    return m.OffsetForLeaderEpochResponse(
        topics=[
            m.OffsetForLeaderEpochResponse.OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=[_answer_of(topic.topic, asked, call) for asked in topic.partitions]
            )
            for topic in request.topics
        ]
    )


def _answer_of(
    topic: str, asked: m.OffsetForLeaderEpochRequest.OffsetForLeaderPartition, call: Call
) -> m.OffsetForLeaderEpochResponse.EpochEndOffset:
    try:
        partition, _ = call.broker.views.find(topic, asked.partition)
        check_epoch(partition, Epoch(asked.current_leader_epoch))
        epoch, end_offset = partition.epoch_end(Epoch(asked.leader_epoch))
    except RunnelError as error:
        return Answer(partition=asked.partition, error_code=code_of(error))
    return Answer(partition=asked.partition, leader_epoch=epoch, end_offset=end_offset)
