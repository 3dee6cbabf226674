# DescribeCluster (key 60), v0-v2.  v1 endpoint types, v2 fenced brokers
"""DescribeCluster: its id, its controller, its brokers. Fenced are those that do not serve yet (KIP-1073)."""

from runnel.cluster.image import NO_LEADER
from runnel.doors.kafka.authorized_operations import ON_CLUSTER, operations
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of, text_of
from runnel.model.errors import InvalidRequest
from runnel.wire.kafka import messages as m

BROKERS = 1


async def describe_cluster(request: m.DescribeClusterRequest, call: Call) -> m.DescribeClusterResponse:
    if request.endpoint_type != BROKERS:
        error = InvalidRequest("controllers have no endpoints of their own here: ask for the brokers'")
        return m.DescribeClusterResponse(error_code=code_of(error), error_message=text_of(error))
    image = call.broker.image
    return m.DescribeClusterResponse(
        endpoint_type=BROKERS,
        cluster_id=image.cluster_id,
        controller_id=image.controller.broker if image.controller else NO_LEADER,
        brokers=[
            m.DescribeClusterResponse.DescribeClusterBroker(
                broker_id=broker.id,
                host=broker.listeners["kafka"].host,
                port=broker.listeners["kafka"].port,
                rack=broker.rack,
                is_fenced=not broker.alive,
            )
            for broker in image.brokers.values()
            if broker.alive or request.include_fenced_brokers
        ],
        cluster_authorized_operations=operations(ON_CLUSTER, asked=request.include_cluster_authorized_operations),
    )
