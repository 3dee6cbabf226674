# DescribeGroups (key 15), v0-v6.  v4 static members, v5 flexible, v6 says that a group is not there
"""DescribeGroups: state and members of groups of the classic protocol."""

from runnel.doors.kafka.authorized_operations import ON_GROUP, UNASKED, operations
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of, text_of
from runnel.groups.values import GroupState
from runnel.model.errors import GroupNotFound, RunnelError
from runnel.wire.kafka import messages as m

ABSENCE_IS_AN_ERROR_SINCE = 6
Response = m.DescribeGroupsResponse


async def describe_groups(request: m.DescribeGroupsRequest, call: Call) -> m.DescribeGroupsResponse:
    asked = request.include_authorized_operations
    return Response(groups=[await _described(group_id, call, asked=asked) for group_id in request.groups])


async def _described(group_id: str, call: Call, *, asked: bool) -> m.DescribeGroupsResponse.DescribedGroup:
    try:
        group = await call.broker.groups.describe(group_id)
    except RunnelError as error:
        absent = isinstance(error, GroupNotFound)
        quiet = absent and call.version < ABSENCE_IS_AN_ERROR_SINCE
        return Response.DescribedGroup(
            error_code=0 if quiet else code_of(error),
            error_message=text_of(error),
            group_id=group_id,
            group_state=GroupState.DEAD.value if absent else "",
            authorized_operations=UNASKED,
        )
    return Response.DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type,
        protocol_data=group.protocol,
        members=[
            Response.DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata,
                member_assignment=member.assignment,
            )
            for member in group.members
        ],
        authorized_operations=operations(ON_GROUP, asked=asked),
    )
