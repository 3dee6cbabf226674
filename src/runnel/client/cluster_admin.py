"""Administration of a whole cluster: its brokers, who leads, and where replicas lie.

What moves is decided in `balancing`; this asks the cluster to do it, and how far it is.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from runnel.client.admin import BROKER_RESOURCE, Admin, Disk
from runnel.client.cluster import Cluster, Node
from runnel.client.each import of_each
from runnel.client.errors import check, error_of
from runnel.client.metadata import BrokerAddress, TopicPartition
from runnel.client.offsets import by_topic
from runnel.model.errors import RunnelError
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api
from runnel.wire.kafka.error_codes import ErrorCode

T = TypeVar("T")

PREFERRED, UNCLEAN = 0, 1  # kinds of elections
MIN_IN_SYNC = "min.insync.replicas"
VIEW_OF = "view.of"
COPY_RATE = "follower.replication.throttled.rate"  # of a broker
THROTTLED = "follower.replication.throttled.replicas"  # of a topic
UNLIMITED = 2**63 - 1


class BrokerDescription(NamedTuple):
    address: BrokerAddress
    fenced: bool  # registered, but it does not serve

    @property
    def away(self) -> bool:
        """Whether it has no address now: it was admitted once, and is not alive."""
        return self.address.port < 0


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    id: str
    controller: int  # -1: none
    brokers: Mapping[int, BrokerDescription]


class Reassignment(NamedTuple):
    """A partition whose replicas are moving: all that it has now, those on their way in, those on their way out."""

    replicas: tuple[int, ...]
    adding: tuple[int, ...]
    removing: tuple[int, ...]

    @property
    def target(self) -> tuple[int, ...]:
        return tuple(broker for broker in self.replicas if broker not in self.removing)


class ClusterAdmin:
    """Administrative calls that concern brokers and replicas."""

    def __init__(self, cluster: Cluster, *, timeout_ms: int = 30_000) -> None:
        self.cluster = cluster
        self.timeout_ms = timeout_ms
        self.admin = Admin(cluster, timeout_ms=timeout_ms)

    # --- looking
    async def describe(self) -> ClusterDescription:
        """The brokers that are registered, also those that do not serve now."""
        request = m.DescribeClusterRequest(include_fenced_brokers=True)
        answer = await self._ask_any(Api.DESCRIBE_CLUSTER, request, m.DescribeClusterResponse)
        check(answer.error_code, action="describe the cluster", broker=str(self.cluster), message=answer.error_message)
        brokers = {
            b.broker_id: BrokerDescription(BrokerAddress(b.broker_id, b.host, b.port, b.rack), b.is_fenced)
            for b in answer.brokers
        }
        return ClusterDescription(answer.cluster_id, answer.controller_id, dict(sorted(brokers.items())))

    async def minimums(self, topics: Iterable[str]) -> dict[str, int]:
        """min.insync.replicas of each topic."""
        return {
            topic: int(entry.value)
            for topic, entries in (await self.admin.configs(topics, [MIN_IN_SYNC])).items()
            for entry in entries
            if entry.value is not None
        }

    async def views(self, topics: Iterable[str]) -> set[str]:
        """Those of these topics that are views: their partitions are those of another topic."""
        found = await self.admin.configs(topics, [VIEW_OF])
        return {topic for topic, entries in found.items() if any(entry.value for entry in entries)}

    async def disks(self) -> dict[int, Disk | None]:
        """What each broker has on its disk; None for one that does not answer."""
        await self.admin.view([])
        return await of_each(self.cluster, self.admin.disk)

    async def reassignments(self) -> dict[TopicPartition, Reassignment]:
        """Every partition whose replicas are moving."""
        request = m.ListPartitionReassignmentsRequest(topics=None, timeout_ms=self.timeout_ms)
        reply = m.ListPartitionReassignmentsResponse
        answer = await self._ask_any(Api.LIST_PARTITION_REASSIGNMENTS, request, reply)
        check(answer.error_code, action="list reassignments", broker=str(self.cluster), message=answer.error_message)
        return {
            TopicPartition(topic.name, p.partition_index): Reassignment(
                tuple(p.replicas), tuple(p.adding_replicas), tuple(p.removing_replicas)
            )
            for topic in answer.topics
            for p in topic.partitions
        }

    async def _ask_any(self, api: Api, request: object, reply: type[T]) -> T:
        return await self.cluster.persist(lambda: self.cluster.ask_any(api, request, reply))

    # --- moving replicas
    async def reassign(
        self, targets: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, RunnelError]:
        """Let partitions have these replicas; None takes a move back. Returns why some can't."""
        R = m.AlterPartitionReassignmentsRequest
        topics = [
            R.ReassignableTopic(
                name=topic,
                partitions=[
                    R.ReassignablePartition(partition_index=n, replicas=_listed(targets[TopicPartition(topic, n)]))
                    for n in numbers
                ],
            )
            for topic, numbers in by_topic(targets).items()
        ]
        request = R(topics=topics, timeout_ms=self.timeout_ms)

        async def change(node: Node) -> dict[TopicPartition, RunnelError]:
            answer = await node.ask(Api.ALTER_PARTITION_REASSIGNMENTS, request, m.AlterPartitionReassignmentsResponse)
            check(answer.error_code, action="reassign partitions", broker=str(node), message=answer.error_message)
            results = {
                TopicPartition(t.name, p.partition_index): (p.error_code, p.error_message)
                for t in answer.responses
                for p in t.partitions
            }
            return _failures(results, "reassign", str(node))

        return await self.admin.on_controller(change)

    # --- leaders
    async def elect(
        self, partitions: Iterable[TopicPartition] | None = None, *, unclean: bool = False
    ) -> dict[TopicPartition, RunnelError | None]:
        """Let the preferred replicas lead (unclean: any that serves) these partitions, or all; what became of each.

        Of all partitions, those are left out that are led as they should be.
        """
        R = m.ElectLeadersRequest
        wanted = None if partitions is None else by_topic(partitions)
        listed = (
            None
            if wanted is None
            else [R.TopicPartitions(topic=t, partitions=numbers) for t, numbers in wanted.items()]
        )
        kind = UNCLEAN if unclean else PREFERRED
        request = R(election_type=kind, topic_partitions=listed, timeout_ms=self.timeout_ms)

        async def change(node: Node) -> dict[TopicPartition, RunnelError | None]:
            answer = await node.ask(Api.ELECT_LEADERS, request, m.ElectLeadersResponse)
            check(answer.error_code, action="elect leaders", broker=str(node))
            results = {
                TopicPartition(t.topic, p.partition_id): (p.error_code, p.error_message)
                for t in answer.replica_election_results
                for p in t.partition_result
            }
            failures = _failures(results, "elect a leader of", str(node))
            return {where: failures.get(where) for where in results}

        return await self.admin.on_controller(change)

    # --- who belongs to the cluster
    async def unregister(self, broker: int) -> None:
        """Let a broker that is gone for good count no longer; refused while it is alive or holds replicas."""
        request = m.UnregisterBrokerRequest(broker_id=broker)

        async def change(node: Node) -> None:
            answer = await node.ask(Api.UNREGISTER_BROKER, request, m.UnregisterBrokerResponse)
            check(
                answer.error_code, action=f"unregister broker {broker}", broker=str(node), message=answer.error_message
            )

        await self.admin.on_controller(change)

    # --- how fast replicas are copied
    async def copy_rates(self) -> dict[int, int]:
        """Bytes a second with which brokers copy throttled replicas; those without a limit are left out."""
        await self.admin.view([])
        rates = await of_each(self.cluster, self._copy_rate)
        return {broker: rate for broker, rate in rates.items() if rate is not None and rate != UNLIMITED}

    async def _copy_rate(self, broker: int) -> int:
        R = m.DescribeConfigsRequest
        resource = R.DescribeConfigsResource(
            resource_type=BROKER_RESOURCE, resource_name=str(broker), configuration_keys=[COPY_RATE]
        )
        node = self.cluster.broker(broker)
        answer = await node.ask(Api.DESCRIBE_CONFIGS, R(resources=[resource]), m.DescribeConfigsResponse)
        values = [entry.value for result in answer.results for entry in result.configs]
        return int(values[0]) if values and values[0] is not None else UNLIMITED

    async def throttle(self, adding: Mapping[TopicPartition, Sequence[int]], rate: int) -> None:
        """Copy these new replicas with at most so many bytes a second on each broker."""
        for broker in sorted({broker for brokers in adding.values() for broker in brokers}):
            await self.admin.alter_broker_config(broker, set_={COPY_RATE: str(rate)})
        for topic, numbers in by_topic(adding).items():
            replicas = [f"{n}:{broker}" for n in numbers for broker in adding[TopicPartition(topic, n)]]
            await self.admin.alter_config(topic, set_={THROTTLED: ",".join(replicas)})

    async def throttled_topics(self) -> list[str]:
        """Topics of which some replicas are copied no faster than their brokers' rate."""
        names = (await self.admin.view()).topics
        configs = await self.admin.configs(names, [THROTTLED]) if names else {}
        return [topic for topic, entries in configs.items() if any(entry.value for entry in entries)]

    async def unthrottle(self, topics: Iterable[str] = (), brokers: Iterable[int] = ()) -> None:
        """Let every replica be copied as fast as it can be again.

        Topics and brokers that were throttled a moment ago are named: not every broker may have heard of it yet.
        """
        for topic in sorted({*topics, *await self.throttled_topics()}):
            await self.admin.alter_config(topic, set_={}, reset=[THROTTLED])
        for broker in sorted({*brokers, *await self.copy_rates()}):
            await self.admin.alter_broker_config(broker, set_={}, reset=[COPY_RATE])


def _listed(replicas: Sequence[int] | None) -> list[int] | None:
    return None if replicas is None else list(replicas)


def _failures(
    results: Mapping[TopicPartition, tuple[int, str | None]], verb: str, broker: str
) -> dict[TopicPartition, RunnelError]:
    """What went wrong, for each partition; raises if it was the controller that was not meant."""
    failures = {}
    for where, (code, message) in results.items():
        if code:
            failures[where] = error_of(code, action=f"{verb} {where}", broker=broker, message=message)
        if code == ErrorCode.NOT_CONTROLLER:
            raise failures[where]
    return failures
