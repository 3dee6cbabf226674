# DescribeCluster (key 60), v0-v2.  v1 endpoint types, v2 fenced brokers
"""DescribeCluster: its id, its controller, its brokers.

Fenced are brokers that do not serve yet, and those that are away (KIP-1073); the latter have no address.
"""

from runnel.cluster.image import NO_LEADER, Broker, Image
from runnel.doors.kafka.authorized_operations import ON_CLUSTER, operations
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of, text_of
from runnel.model.errors import InvalidRequest
from runnel.wire.kafka import messages as m

BROKERS = 1
NO_PORT = -1

Described = m.DescribeClusterResponse.DescribeClusterBroker


async def describe_cluster(request: m.DescribeClusterRequest, call: Call) -> m.DescribeClusterResponse:
    if request.endpoint_type != BROKERS:
        error = InvalidRequest("controllers have no endpoints of their own here: ask for the brokers'")
        return m.DescribeClusterResponse(error_code=code_of(error), error_message=text_of(error))
    image = call.broker.image
    return m.DescribeClusterResponse(
        endpoint_type=BROKERS,
        cluster_id=image.cluster_id,
        controller_id=image.controller.broker if image.controller else NO_LEADER,
        brokers=_alive(image) + (_fenced(image) if request.include_fenced_brokers else []),
        cluster_authorized_operations=operations(ON_CLUSTER, asked=request.include_cluster_authorized_operations),
    )


def _alive(image: Image) -> list[Described]:
    return [_described(broker, fenced=False) for broker in image.brokers.values() if broker.alive]


def _fenced(image: Image) -> list[Described]:
    starting = [_described(broker, fenced=True) for broker in image.brokers.values() if not broker.alive]
    away = [each for each in image.admitted.values() if each.broker not in image.brokers]
    return [
        *starting,
        *(Described(broker_id=each.broker, host="", port=NO_PORT, rack=each.rack, is_fenced=True) for each in away),
    ]


def _described(broker: Broker, *, fenced: bool) -> Described:
    host, port = broker.listeners["kafka"]
    return Described(broker_id=broker.id, host=host, port=port, rack=broker.rack, is_fenced=fenced)
