# SyncGroup (key 14), v0-v5.  v3 static members, v4 flexible, v5 protocol type and name
"""SyncGroup: the leader hands out the assignment, everyone fetches its own."""

from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of
from runnel.groups.values import Sync
from runnel.model.errors import RunnelError
from runnel.wire.kafka import messages as m


async def sync_group(request: m.SyncGroupRequest, call: Call) -> m.SyncGroupResponse:
    asked = Sync(
        group_id=request.group_id,
        generation=request.generation_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        protocol_type=request.protocol_type,
        protocol=request.protocol_name,
        assignments=tuple((a.member_id, bytes(a.assignment)) for a in request.assignments),
    )
    try:
        synced = await call.broker.groups.sync(asked)
    except RunnelError as error:
        return m.SyncGroupResponse(error_code=code_of(error), assignment=b"")
    return m.SyncGroupResponse(
        protocol_type=synced.protocol_type, protocol_name=synced.protocol, assignment=synced.assignment
    )
