# LeaveGroup (key 13), v0-v5.  v3 many members at once, each echoed with its instance id
"""LeaveGroup: members go, or are sent away."""

from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of
from runnel.groups.values import Leave, Leaver
from runnel.model.errors import RunnelError
from runnel.wire.kafka import messages as m

MANY_SINCE = 3


async def leave_group(request: m.LeaveGroupRequest, call: Call) -> m.LeaveGroupResponse:
    if call.version >= MANY_SINCE:
        leavers = tuple(Leaver(member.member_id, member.group_instance_id) for member in request.members)
    else:
        leavers = (Leaver(request.member_id),)
    try:
        left = await call.broker.groups.leave(Leave(request.group_id, leavers))
    except RunnelError as error:
        return m.LeaveGroupResponse(error_code=code_of(error))
    if call.version < MANY_SINCE:
        return m.LeaveGroupResponse(error_code=code_of(left.members[0][1]))
    return m.LeaveGroupResponse(
        members=[
            m.LeaveGroupResponse.MemberResponse(
                member_id=leaver.member_id, group_instance_id=leaver.instance_id, error_code=code_of(error)
            )
            for leaver, error in left.members
        ]
    )
