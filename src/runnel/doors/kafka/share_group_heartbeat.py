# ShareGroupHeartbeat (key 76), v1
"""ShareGroupHeartbeat (KIP-932): join, stay and leave in one request."""

from collections.abc import Iterable

from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of, text_of
from runnel.groups.share_values import ShareHeartbeat
from runnel.model.errors import RunnelError
from runnel.model.ids import PartitionKey
from runnel.model.partition_sets import grouped
from runnel.wire.kafka import messages as m

Response = m.ShareGroupHeartbeatResponse


async def share_group_heartbeat(request: m.ShareGroupHeartbeatRequest, call: Call) -> m.ShareGroupHeartbeatResponse:
    names = request.subscribed_topic_names
    asked = ShareHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        client_id=call.client_id,
        client_host=call.client_host,
        rack_id=request.rack_id,
        topic_names=None if names is None else tuple(names),
    )
    try:
        alive = await call.broker.share_groups.heartbeat(asked)
    except RunnelError as error:
        return Response(error_code=code_of(error), error_message=text_of(error))
    return Response(
        member_id=alive.member_id,
        member_epoch=alive.member_epoch,
        heartbeat_interval_ms=alive.heartbeat_interval_ms,
        assignment=None if alive.assigned is None else Response.Assignment(topic_partitions=_by_topic(alive.assigned)),
    )


def _by_topic(keys: Iterable[PartitionKey]) -> list[m.ShareGroupHeartbeatResponse.TopicPartitions]:
    return [
        Response.TopicPartitions(topic_id=topic_id, partitions=list(numbers)) for topic_id, numbers in grouped(keys)
    ]
