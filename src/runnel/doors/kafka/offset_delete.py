# OffsetDelete (key 47), v0
"""OffsetDelete: forget how far a group has come in some partitions."""

from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of
from runnel.groups.values import DeleteOffsets
from runnel.model.errors import RunnelError
from runnel.model.ids import PartitionKey
from runnel.wire.kafka import messages as m

Response = m.OffsetDeleteResponse


async def offset_delete(request: m.OffsetDeleteRequest, call: Call) -> m.OffsetDeleteResponse:
    keys: dict[tuple[str, int], PartitionKey] = {}
    codes: dict[tuple[str, int], int] = {}
    for topic in request.topics:
        for partition in topic.partitions:
            place = (topic.name, partition.partition_index)
            try:
                keys[place] = call.broker.topics.partition_key(*place)
            except RunnelError as error:
                codes[place] = code_of(error)
    try:
        deleted = await call.broker.groups.delete_offsets(DeleteOffsets(request.group_id, tuple(keys.values())))
    except RunnelError as error:
        return Response(error_code=code_of(error))
    codes |= {place: code_of(error) for place, error in zip(keys, deleted.errors, strict=True)}
    return Response(
        topics=[
            Response.OffsetDeleteResponseTopic(
                name=topic.name,
                partitions=[
                    Response.OffsetDeleteResponsePartition(
                        partition_index=p.partition_index, error_code=codes[topic.name, p.partition_index]
                    )
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
