# Heartbeat (key 12), v0-v4.  v3 static members, v4 flexible
"""Heartbeat: a member of the classic protocol is alive."""

from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of
from runnel.groups.values import Heartbeat
from runnel.model.errors import RunnelError
from runnel.wire.kafka import messages as m


async def heartbeat(request: m.HeartbeatRequest, call: Call) -> m.HeartbeatResponse:
    asked = Heartbeat(request.group_id, request.generation_id, request.member_id, request.group_instance_id)
    try:
        await call.broker.groups.heartbeat(asked)
    except RunnelError as error:
        return m.HeartbeatResponse(error_code=code_of(error))
    return m.HeartbeatResponse()
