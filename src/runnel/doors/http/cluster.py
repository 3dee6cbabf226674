"""The cluster: its brokers, and how its partitions are."""

from runnel.cluster.image import NO_LEADER, Broker
from runnel.doors.http.call import Call
from runnel.doors.http.operation import View, operation


class BrokerView(View, omit_defaults=False):
    broker: int
    state: str
    kafka: str | None  # HOST:PORT
    http: str | None
    rack: str | None
    leads: int  # partitions
    holds: int  # replicas
    in_sync: int  # of those


class ClusterView(View, omit_defaults=False):
    cluster: str
    controller: int | None
    brokers: list[BrokerView]
    topics: int
    partitions: int
    under_replicated: int
    offline: int  # without a leader


@operation("GET /v1/cluster")
async def describe_cluster(call: Call) -> ClusterView:
    """Describe the cluster: its brokers, what each leads and holds, and what is not as it should be.

    GET /v1/cluster
    """
    image = call.broker.image
    partitions = [partition for topic in image.topics.values() for partition in topic.partitions]
    leads, holds, in_sync = _shares([(each.leader, each.replicas, each.isr) for each in partitions])
    return ClusterView(
        cluster=image.cluster_id,
        controller=None if image.controller.broker == NO_LEADER else image.controller.broker,
        brokers=[
            _broker(each, leads.get(each.id, 0), holds.get(each.id, 0), in_sync.get(each.id, 0))
            for each in sorted(image.brokers.values(), key=lambda each: each.id)
        ],
        topics=len(image.topics),
        partitions=len(partitions),
        under_replicated=sum(len(each.isr) < len(each.replicas) for each in partitions),
        offline=sum(each.leader == NO_LEADER for each in partitions),
    )


def _shares(
    partitions: "list[tuple[int, tuple[int, ...], tuple[int, ...]]]",
) -> tuple[dict[int, int], dict[int, int], dict[int, int]]:
    leads: dict[int, int] = {}
    holds: dict[int, int] = {}
    in_sync: dict[int, int] = {}
    for leader, replicas, isr in partitions:
        leads[leader] = leads.get(leader, 0) + 1
        for replica in replicas:
            holds[replica] = holds.get(replica, 0) + 1
        for replica in isr:
            in_sync[replica] = in_sync.get(replica, 0) + 1
    return leads, holds, in_sync


def _broker(broker: Broker, leads: int, holds: int, in_sync: int) -> BrokerView:
    return BrokerView(
        broker=broker.id, state=broker.state.value, kafka=_address(broker, "kafka"), http=_address(broker, "http"),
        rack=broker.rack, leads=leads, holds=holds, in_sync=in_sync,
    )  # fmt: skip


def _address(broker: Broker, listener: str) -> str | None:
    endpoint = broker.listeners.get(listener)
    return None if endpoint is None else f"{endpoint.host}:{endpoint.port}"
