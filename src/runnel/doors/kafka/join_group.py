# JoinGroup (key 11), v0-v9.  v1 rebalance timeout, v4 member id first (KIP-394), v5 static members, v9 skip assignment
"""JoinGroup: enter a group of the classic protocol, and wait for the others."""

from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of
from runnel.groups.values import Join, OfferedProtocol
from runnel.model.errors import MemberIdRequired, RunnelError
from runnel.wire.kafka import messages as m

REBALANCE_TIMEOUT_SINCE = 1
MEMBER_ID_FIRST_SINCE = 4
NULLABLE_PROTOCOL_SINCE = 7
SKIP_ASSIGNMENT_SINCE = 9


async def join_group(request: m.JoinGroupRequest, call: Call) -> m.JoinGroupResponse:
    asked = Join(
        group_id=request.group_id,
        member_id=request.member_id,
        instance_id=request.group_instance_id,
        client_id=call.client_id,
        client_host=call.client_host,
        session_timeout_ms=request.session_timeout_ms,
        rebalance_timeout_ms=(
            request.rebalance_timeout_ms if call.version >= REBALANCE_TIMEOUT_SINCE else request.session_timeout_ms
        ),
        protocol_type=request.protocol_type,
        protocols=tuple(OfferedProtocol(p.name, bytes(p.metadata)) for p in request.protocols),
        requires_known_id=call.version >= MEMBER_ID_FIRST_SINCE,
        can_skip_assignment=call.version >= SKIP_ASSIGNMENT_SINCE,
    )
    try:
        joined = await call.broker.groups.join(asked)
    except RunnelError as error:
        member_id = error.member_id if isinstance(error, MemberIdRequired) else request.member_id
        # Before v7 the protocol's name could not be null.
        name = None if call.version >= NULLABLE_PROTOCOL_SINCE else ""
        return m.JoinGroupResponse(
            error_code=code_of(error), generation_id=-1, protocol_name=name, leader="", member_id=member_id
        )
    return m.JoinGroupResponse(
        generation_id=joined.generation,
        protocol_type=joined.protocol_type,
        protocol_name=joined.protocol,
        leader=joined.leader,
        skip_assignment=joined.skip_assignment,
        member_id=joined.member_id,
        members=[
            m.JoinGroupResponse.JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.instance_id, metadata=member.metadata
            )
            for member in joined.members
        ],
    )
