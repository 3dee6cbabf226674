# FindCoordinator (key 10), v0-v6.  v1 key types, v3 flexible, v4 many keys at once, v6 share groups
"""FindCoordinator: which broker keeps a group, or a transactional id."""

from runnel.broker.forwarding import GROUP, TRANSACTION
from runnel.cluster.image import Broker
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of, text_of
from runnel.model.errors import InvalidRequest, RunnelError
from runnel.wire.kafka import messages as m

MANY_SINCE = 4
Coordinator = m.FindCoordinatorResponse.Coordinator


async def find_coordinator(request: m.FindCoordinatorRequest, call: Call) -> m.FindCoordinatorResponse:
    if call.version >= MANY_SINCE:
        found = [await _find(key, request.key_type, call) for key in request.coordinator_keys]
        return m.FindCoordinatorResponse(coordinators=found)
    one = await _find(request.key, request.key_type, call)
    return m.FindCoordinatorResponse(
        error_code=one.error_code, error_message=one.error_message, node_id=one.node_id, host=one.host, port=one.port
    )


async def _find(key: str, key_type: int, call: Call) -> m.FindCoordinatorResponse.Coordinator:
    try:
        broker = await _coordinator(key, key_type, call)
    except RunnelError as error:
        return Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=code_of(error), error_message=text_of(error)
        )
    endpoint = broker.listeners["kafka"]
    return Coordinator(key=key, node_id=broker.id, host=endpoint.host, port=endpoint.port)


async def _coordinator(key: str, key_type: int, call: Call) -> Broker:
    if key_type == GROUP:
        return await call.broker.find_coordinator(key)
    if key_type == TRANSACTION:
        return await call.broker.transactions.find_coordinator(key)
    raise InvalidRequest(f"coordinator type {key_type} is not known: 0 is for groups, 1 for transactions")
