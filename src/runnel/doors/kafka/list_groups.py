# ListGroups (key 16), v0-v5.  v3 flexible, v4 filter by state, v5 filter by type
"""ListGroups: all groups this broker coordinates."""

from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of
from runnel.groups.values import ListGroups
from runnel.model.errors import RunnelError
from runnel.wire.kafka import messages as m


async def list_groups(request: m.ListGroupsRequest, call: Call) -> m.ListGroupsResponse:
    try:
        groups = await call.broker.groups.list(ListGroups(tuple(request.states_filter), tuple(request.types_filter)))
    except RunnelError as error:
        return m.ListGroupsResponse(error_code=code_of(error))
    return m.ListGroupsResponse(
        groups=[
            m.ListGroupsResponse.ListedGroup(
                group_id=group.group_id,
                protocol_type=group.protocol_type,
                group_state=group.state.value,
                group_type=group.type.value,
            )
            for group in groups
        ]
    )
