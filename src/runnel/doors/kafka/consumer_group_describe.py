# ConsumerGroupDescribe (key 69), v0-v1.  v1 member types
"""ConsumerGroupDescribe: the members of KIP-848 groups, what they have and what they will have."""

from collections.abc import Iterable

from runnel.doors.kafka.authorized_operations import ON_GROUP, UNASKED, operations
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of, text_of
from runnel.groups.values import DescribedConsumer, GroupType
from runnel.model.errors import RunnelError
from runnel.model.ids import PartitionKey, TopicId
from runnel.model.partition_sets import grouped
from runnel.wire.kafka import messages as m

MEMBER_TYPES = {GroupType.CLASSIC: 0, GroupType.CONSUMER: 1}
Response = m.ConsumerGroupDescribeResponse


async def consumer_group_describe(
    request: m.ConsumerGroupDescribeRequest, call: Call
) -> m.ConsumerGroupDescribeResponse:
    asked = request.include_authorized_operations
    return Response(groups=[await _described(group_id, call, asked=asked) for group_id in request.group_ids])


async def _described(group_id: str, call: Call, *, asked: bool) -> m.ConsumerGroupDescribeResponse.DescribedGroup:
    try:
        group = await call.broker.groups.describe_consumer(group_id)
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


def _member(member: DescribedConsumer, call: Call) -> m.ConsumerGroupDescribeResponse.Member:
    return Response.Member(
        member_id=member.member_id,
        instance_id=member.instance_id,
        rack_id=member.rack_id,
        member_epoch=member.member_epoch,
        client_id=member.client_id,
        client_host=member.client_host,
        subscribed_topic_names=list(member.topic_names),
        subscribed_topic_regex=member.topic_regex,
        assignment=_assignment(member.assigned, call),
        target_assignment=_assignment(member.target, call),
        member_type=MEMBER_TYPES[member.type],
    )


def _assignment(keys: Iterable[PartitionKey], call: Call) -> m.ConsumerGroupDescribeResponse.Assignment:
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
