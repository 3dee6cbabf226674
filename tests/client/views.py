"""Views of clusters, written short: who holds what, and who leads."""

from collections.abc import Mapping, Sequence
from uuid import UUID

from runnel.client.metadata import BrokerAddress, ClusterView, Partition, Topic, TopicPartition

Written = tuple[int, Sequence[int], Sequence[int]]  # leader, replicas, in sync


def view(
    brokers: Sequence[int] | Mapping[int, str], topics: Mapping[str, Sequence[Written]], controller: int = 1
) -> ClusterView:
    racks = brokers if isinstance(brokers, Mapping) else dict.fromkeys(brokers)
    return ClusterView(
        cluster_id="c",
        controller_id=controller,
        brokers={n: BrokerAddress(n, "127.0.0.1", 9000 + n, rack) for n, rack in racks.items()},
        topics={name: topic(name, partitions) for name, partitions in topics.items()},
    )


def topic(name: str, written: Sequence[Written]) -> Topic:
    partitions = {
        n: Partition(n, leader, 0, tuple(replicas), tuple(in_sync))
        for n, (leader, replicas, in_sync) in enumerate(written)
    }
    return Topic(
        name, UUID(int=1), False, partitions, tuple(partitions), {n: TopicPartition(name, n) for n in partitions}
    )
