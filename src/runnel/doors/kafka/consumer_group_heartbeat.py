# ConsumerGroupHeartbeat (key 68), v0-v1.  v0: the broker may choose the member id; v1: regular expressions
"""ConsumerGroupHeartbeat (KIP-848): join, stay, own and leave in one request."""

from collections.abc import Iterable

from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of, text_of
from runnel.groups.values import ConsumerHeartbeat
from runnel.model.errors import RunnelError
from runnel.model.ids import PartitionKey, TopicId
from runnel.wire.kafka import messages as m

UNCHANGED = -1  # the rebalance timeout that means "as before"
Response = m.ConsumerGroupHeartbeatResponse


async def consumer_group_heartbeat(
    request: m.ConsumerGroupHeartbeatRequest, call: Call
) -> m.ConsumerGroupHeartbeatResponse:
    names = request.subscribed_topic_names
    asked = ConsumerHeartbeat(
        group_id=request.group_id,
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        client_id=call.client_id,
        client_host=call.client_host,
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=None if request.rebalance_timeout_ms == UNCHANGED else request.rebalance_timeout_ms,
        topic_names=None if names is None else tuple(names),
        topic_regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=_owned(request),
    )
    try:
        alive = await call.broker.groups.consumer_heartbeat(asked)
    except RunnelError as error:
        return Response(error_code=code_of(error), error_message=text_of(error))
    return Response(
        member_id=alive.member_id,
        member_epoch=alive.member_epoch,
        heartbeat_interval_ms=alive.heartbeat_interval_ms,
        assignment=None if alive.assigned is None else Response.Assignment(topic_partitions=_by_topic(alive.assigned)),
    )


def _owned(request: m.ConsumerGroupHeartbeatRequest) -> tuple[PartitionKey, ...] | None:
    if request.topic_partitions is None:
        return None
    return tuple(
        PartitionKey(TopicId(topic.topic_id), number)
        for topic in request.topic_partitions
        for number in topic.partitions
    )


def _by_topic(keys: Iterable[PartitionKey]) -> list[m.ConsumerGroupHeartbeatResponse.TopicPartitions]:
    grouped: dict[TopicId, list[int]] = {}
    for key in keys:
        grouped.setdefault(key.topic_id, []).append(key.number)
    return [Response.TopicPartitions(topic_id=topic_id, partitions=numbers) for topic_id, numbers in grouped.items()]
