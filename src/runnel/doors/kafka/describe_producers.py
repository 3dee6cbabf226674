# DescribeProducers (key 61), v0
"""DescribeProducers: the idempotent producers that a partition remembers, and what their transactions began with."""

from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of, text_of
from runnel.model.errors import RunnelError
from runnel.wire.kafka import messages as m

Response = m.DescribeProducersResponse


async def describe_producers(request: m.DescribeProducersRequest, call: Call) -> m.DescribeProducersResponse:
    return Response(
        topics=[
            Response.TopicResponse(
                name=topic.name, partitions=[_described(topic.name, number, call) for number in topic.partition_indexes]
            )
            for topic in request.topics
        ]
    )


def _described(topic: str, number: int, call: Call) -> m.DescribeProducersResponse.PartitionResponse:
    try:
        partition = call.broker.partitions.find(topic, number)
    except RunnelError as error:
        return Response.PartitionResponse(
            partition_index=number, error_code=code_of(error), error_message=text_of(error)
        )
    return Response.PartitionResponse(
        partition_index=number,
        active_producers=[
            Response.ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.txn_first_offset,
            )
            for producer in partition.log.producers
        ],
    )
