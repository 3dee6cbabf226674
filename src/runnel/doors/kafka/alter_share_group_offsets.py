# AlterShareGroupOffsets (key 91), v0
"""AlterShareGroupOffsets: let a share group go on from other offsets."""

from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of, text_of
from runnel.model.errors import RunnelError, as_value
from runnel.model.ids import NO_TOPIC_ID, PartitionKey
from runnel.wire.kafka import messages as m

Response = m.AlterShareGroupOffsetsResponse
Topic = m.AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponseTopic
Partition = m.AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition


async def alter_share_group_offsets(
    request: m.AlterShareGroupOffsetsRequest, call: Call
) -> m.AlterShareGroupOffsetsResponse:
    keys: dict[tuple[str, int], PartitionKey | RunnelError] = {}
    offsets: dict[PartitionKey, int] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            place = topic.topic_name, partition.partition_index
            try:
                key = keys[place] = call.broker.topics.partition_key(*place)
                offsets[key] = partition.start_offset
            except RunnelError as error:
                keys[place] = as_value(error)
    try:
        altered = await call.broker.share_offsets.alter(request.group_id, offsets)
    except RunnelError as error:
        return Response(error_code=code_of(error), error_message=text_of(error))
    names = call.broker.image.names
    return Response(
        responses=[
            Topic(
                topic_name=topic.topic_name,
                topic_id=names.get(topic.topic_name, NO_TOPIC_ID),
                partitions=[
                    _answer_of(each.partition_index, keys[topic.topic_name, each.partition_index], altered)
                    for each in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _answer_of(
    number: int, key: PartitionKey | RunnelError, altered: dict[PartitionKey, RunnelError | None]
) -> m.AlterShareGroupOffsetsResponse.AlterShareGroupOffsetsResponsePartition:
    error = key if isinstance(key, RunnelError) else altered[key]
    return Partition(partition_index=number, error_code=code_of(error), error_message=text_of(error))
