# DeleteGroups (key 42), v0-v2.  v2 flexible
"""DeleteGroups: forget empty groups and their offsets."""

from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of
from runnel.model.errors import RunnelError
from runnel.wire.kafka import messages as m


async def delete_groups(request: m.DeleteGroupsRequest, call: Call) -> m.DeleteGroupsResponse:
    return m.DeleteGroupsResponse(results=[await _delete(group_id, call) for group_id in request.groups_names])


async def _delete(group_id: str, call: Call) -> m.DeleteGroupsResponse.DeletableGroupResult:
    try:
        await call.broker.share_offsets.delete_group(group_id)
    except RunnelError as error:
        return m.DeleteGroupsResponse.DeletableGroupResult(group_id=group_id, error_code=code_of(error))
    return m.DeleteGroupsResponse.DeletableGroupResult(group_id=group_id)
