# AlterPartition (key 56), v3.  v2 topic ids, v3 broker epochs of the members (KIP-903)
"""AlterPartition: a leader asks the controller for another ISR."""

from runnel.cluster.image import Partition
from runnel.cluster.isr_changes import IsrChange
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of
from runnel.model.errors import RunnelError
from runnel.model.ids import BrokerId, Epoch, PartitionKey, TopicId
from runnel.wire.kafka import messages as m

Answer = m.AlterPartitionResponse.PartitionData


async def alter_partition(request: m.AlterPartitionRequest, call: Call) -> m.AlterPartitionResponse:
    changes = [_change_of(TopicId(topic.topic_id), asked) for topic in request.topics for asked in topic.partitions]
    try:
        results = await call.broker.metadata.alter_partitions(
            BrokerId(request.broker_id), Epoch(request.broker_epoch), changes
        )
    except RunnelError as error:
        return m.AlterPartitionResponse(error_code=code_of(error))
    answers = iter(results)
    return m.AlterPartitionResponse(
        topics=[
            m.AlterPartitionResponse.TopicData(
                topic_id=topic.topic_id,
                partitions=[_answer_of(asked.partition_index, next(answers)) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _change_of(topic_id: TopicId, asked: m.AlterPartitionRequest.PartitionData) -> IsrChange:
    return IsrChange(
        PartitionKey(topic_id, asked.partition_index),
        Epoch(asked.leader_epoch),
        Epoch(asked.partition_epoch),
        tuple((BrokerId(each.broker_id), Epoch(each.broker_epoch)) for each in asked.new_isr_with_epochs),
    )


def _answer_of(number: int, result: Partition | RunnelError) -> m.AlterPartitionResponse.PartitionData:
    if isinstance(result, RunnelError):
        return Answer(partition_index=number, error_code=code_of(result))
    return Answer(
        partition_index=number,
        leader_id=result.leader,
        leader_epoch=result.leader_epoch,
        isr=list(result.isr),
        partition_epoch=result.epoch,
    )
