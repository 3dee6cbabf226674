# ShareGroupDescribe (key 77), v1
"""ShareGroupDescribe: the members of share groups, and what they read."""

from collections.abc import Iterable

from runnel.doors.kafka.authorized_operations import ON_GROUP, UNASKED, operations
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of, text_of
from runnel.groups.share_values import DescribedSharer
from runnel.model.errors import RunnelError
from runnel.model.ids import PartitionKey, TopicId
from runnel.model.partition_sets import grouped
from runnel.wire.kafka import messages as m

Response = m.ShareGroupDescribeResponse


async def share_group_describe(request: m.ShareGroupDescribeRequest, call: Call) -> m.ShareGroupDescribeResponse:
    asked = request.include_authorized_operations
    return Response(groups=[await _described(group_id, call, asked=asked) for group_id in request.group_ids])


async def _described(group_id: str, call: Call, *, asked: bool) -> m.ShareGroupDescribeResponse.DescribedGroup:
    try:
        group = await call.broker.share_groups.describe(group_id)
    except RunnelError as error:
        return Response.DescribedGroup(
            error_code=code_of(error), error_message=text_of(error), group_id=group_id, authorized_operations=UNASKED
        )
    return Response.DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.assignor,
        members=[_member(member, call) for member in group.members],
        authorized_operations=operations(ON_GROUP, asked=asked),
    )


def _member(member: DescribedSharer, call: Call) -> m.ShareGroupDescribeResponse.Member:
    return Response.Member(
        member_id=member.member_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topic_names),
        assignment=_assignment(member.assigned, call),
    )


def _assignment(keys: Iterable[PartitionKey], call: Call) -> m.ShareGroupDescribeResponse.Assignment:
    topics = call.broker.image.topics
    return Response.Assignment(
        topic_partitions=[
            Response.TopicPartitions(
                topic_id=topic_id, topic_name=topics[TopicId(topic_id)].name, partitions=list(numbers)
            )
            for topic_id, numbers in grouped(keys)
            if topic_id in topics
        ]
    )
