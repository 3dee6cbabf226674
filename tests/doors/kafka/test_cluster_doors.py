"""Reassignments, elections and what is offline, as Kafka answers them."""

from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import ElectionType, KafkaError
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from tests.client.talk import talk
from tests.client.test_cluster_admin import LIMIT_S, eventually
from tests.conftest import cluster_broker

from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster
from runnel.testing.process import BrokerProcess
from runnel.testing.zookeeper import ZooKeeper
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api
from runnel.wire.kafka.error_codes import ErrorCode

T = TypeVar("T")
Alter, Elect, Listing = m.AlterPartitionReassignmentsRequest, m.ElectLeadersRequest, m.ListPartitionReassignmentsRequest


async def reassign(
    cluster: Cluster, topic: str, replicas: dict[int, list[int] | None], *, broker: int = 1, **more: Any
) -> dict[int, int]:
    """The error code of each partition."""
    parts = [Alter.ReassignablePartition(partition_index=n, replicas=r) for n, r in replicas.items()]
    request = Alter(topics=[Alter.ReassignableTopic(name=topic, partitions=parts)], timeout_ms=30_000, **more)
    reply = m.AlterPartitionReassignmentsResponse
    answer = await cluster.broker(broker).ask(Api.ALTER_PARTITION_REASSIGNMENTS, request, reply)
    assert answer.error_code == 0, answer.error_message
    return {p.partition_index: p.error_code for t in answer.responses for p in t.partitions}


async def elect(
    cluster: Cluster, topic: str | None, number: int = 0, kind: int = 0, version: int = 2
) -> tuple[int, dict[tuple[str, int], int]]:
    """The error code of the whole, and of each partition."""
    wanted = None if topic is None else [Elect.TopicPartitions(topic=topic, partitions=[number])]
    request = Elect(election_type=kind, topic_partitions=wanted, timeout_ms=30_000)
    node = cluster.broker(1)
    answer = await node.ask(Api.ELECT_LEADERS, request, m.ElectLeadersResponse, version_max=version)
    codes = {
        (t.topic, p.partition_id): p.error_code for t in answer.replica_election_results for p in t.partition_result
    }
    return answer.error_code, codes


async def listed(cluster: Cluster, topics: dict[str, list[int]] | None) -> dict[str, list[int]]:
    asked = (
        None
        if topics is None
        else [Listing.ListPartitionReassignmentsTopics(name=t, partition_indexes=n) for t, n in topics.items()]
    )
    request = Listing(topics=asked, timeout_ms=30_000)
    reply = m.ListPartitionReassignmentsResponse
    answer = await cluster.broker(1).ask(Api.LIST_PARTITION_REASSIGNMENTS, request, reply)
    return {t.name: [p.partition_index for p in t.partitions] for t in answer.topics}


def on(broker: BrokerProcess, work: Callable[[Cluster], Awaitable[T]]) -> T:
    return talk(broker.kafka, work)


def test_every_refusal_has_its_code(trio: list[BrokerProcess]) -> None:
    async def work(cluster: Cluster) -> None:
        await Admin(cluster).create_topics([NewTopic("refusals", partitions=1, replicas=2)])
        wrong = (ErrorCode.INVALID_REPLICA_ASSIGNMENT, [[], [1, 1], [1, 99], [-1]])
        for replicas in wrong[1]:
            assert await reassign(cluster, "refusals", {0: replicas}) == {0: wrong[0]}, replicas
        assert await reassign(cluster, "refusals", {0: None, 7: [1]}) == {
            0: ErrorCode.NO_REASSIGNMENT_IN_PROGRESS,
            7: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        }
        assert await reassign(cluster, "nowhere", {0: [1]}) == {0: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        fixed = await reassign(cluster, "refusals", {0: [1, 2, 3]}, allow_replication_factor_change=False)
        assert fixed == {0: ErrorCode.INVALID_REPLICATION_FACTOR}
        assert (await elect(cluster, "refusals"))[1] == {("refusals", 0): ErrorCode.ELECTION_NOT_NEEDED}
        assert (await elect(cluster, "refusals", 7))[1] == {("refusals", 7): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert (await elect(cluster, "nowhere"))[1] == {("nowhere", 0): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert (await elect(cluster, "refusals", kind=1))[1] == {("refusals", 0): ErrorCode.ELECTION_NOT_NEEDED}
        assert await elect(cluster, "refusals", kind=5) == (ErrorCode.INVALID_REQUEST, {})
        assert (await elect(cluster, None))[1].get(("refusals", 0)) is None

    on(trio[0], work)


def test_any_broker_takes_them(trio: list[BrokerProcess]) -> None:
    async def work(cluster: Cluster) -> None:
        await Admin(cluster).create_topics([NewTopic("anywhere", partitions=1, replicas=3)])
        first = (await cluster.topic("anywhere")).partitions[0].replicas
        for broker in (1, 2, 3):
            first = (*first[1:], first[0])
            assert await reassign(cluster, "anywhere", {0: list(first)}, broker=broker) == {0: 0}

    on(trio[0], work)


def test_who_is_alive_or_unknown_can_not_be_unregistered(trio: list[BrokerProcess]) -> None:
    async def work(cluster: Cluster) -> None:
        await Admin(cluster).view([])
        for asked in (1, 2, 3):  # by the controller, and through others
            for number, code in ((2, ErrorCode.INVALID_REQUEST), (9, ErrorCode.BROKER_ID_NOT_REGISTERED)):
                request = m.UnregisterBrokerRequest(broker_id=number)
                node = cluster.broker(asked)
                answer = await node.ask(Api.UNREGISTER_BROKER, request, m.UnregisterBrokerResponse)
                assert answer.error_code == code
                assert f"broker {number}" in (answer.error_message or "")

    on(trio[0], work)


def test_a_foreign_client_elects(trio: list[BrokerProcess]) -> None:
    on(trio[0], lambda cluster: Admin(cluster).create_topics([NewTopic("foreign", partitions=1, replicas=3)]))
    admin = AdminClient({"bootstrap.servers": trio[1].kafka, "log_level": 0})
    [error] = admin.elect_leaders(ElectionType.PREFERRED, [KafkaPartition("foreign", 0)]).result(LIMIT_S).values()
    assert error.code() == KafkaError.ELECTION_NOT_NEEDED


def test_moves_are_listed_for_all_or_for_those_named(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    """A replica that is added on a broker that then dies is never in sync, so the move stays."""
    with ExitStack() as stack:
        brokers = [stack.enter_context(cluster_broker(zookeeper, tmp_path, n)) for n in (1, 2, 3)]
        on(brokers[0], lambda cluster: _list_and_show_offline(cluster, brokers[1], brokers[2]))


async def _list_and_show_offline(cluster: Cluster, second: BrokerProcess, third: BrokerProcess) -> None:
    settings = {"min.insync.replicas": "2"}
    assigned = NewTopic("moving", partitions=1, replicas=1), NewTopic("copied", 1, 3, settings)
    await Admin(cluster).create_topics(assigned)
    await reassign(cluster, "moving", {0: [1]})

    async def on_first() -> bool:
        return (await cluster.view(["moving"])).topics["moving"].partitions[0].replicas == (1,)

    await eventually(on_first)
    third.process.kill()  # nobody has noticed yet: it can still be given a replica
    assert await reassign(cluster, "moving", {0: [3, 1]}) == {0: 0}
    assert await listed(cluster, None) == {"moving": [0]}
    assert await listed(cluster, {"moving": [0, 7], "copied": [0], "nowhere": [0]}) == {"moving": [0]}
    assert await listed(cluster, {"copied": [0]}) == {}

    await eventually(lambda: _is_offline(cluster))
    assert await reassign(cluster, "moving", {0: None}) == {0: 0}
    assert await listed(cluster, None) == {}
    second.process.kill()
    await eventually(lambda: _is_eligible(cluster, 2))


async def _described(cluster: Cluster) -> m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition:
    D = m.DescribeTopicPartitionsRequest
    request = D(topics=[D.TopicRequest(name="copied")], response_partition_limit=10)
    answer = await cluster.ask_any(Api.DESCRIBE_TOPIC_PARTITIONS, request, m.DescribeTopicPartitionsResponse)
    [described] = answer.topics[0].partitions
    return described


async def _is_eligible(cluster: Cluster, broker: int) -> bool:
    """Below min.insync.replicas, who left last may lead still (KIP-966)."""
    described = await _described(cluster)
    return described.eligible_leader_replicas == [broker] and set(described.offline_replicas) == {2, 3}


async def _is_offline(cluster: Cluster) -> bool:
    """Whether every broker that is asked says of broker 3 that it is dead."""
    copied = (await cluster.view(["copied"])).topics["copied"].partitions[0]
    described = await _described(cluster)
    seen = described.offline_replicas, described.error_code, described.eligible_leader_replicas
    alive = []
    for fenced in (False, True):
        asked = m.DescribeClusterRequest(include_fenced_brokers=fenced)
        brokers = (await cluster.ask_any(Api.DESCRIBE_CLUSTER, asked, m.DescribeClusterResponse)).brokers
        alive.append({b.broker_id: b.is_fenced for b in brokers})
    in_sync = copied.offline == (3,) and set(copied.in_sync) == {1, 2}
    return in_sync and seen == ([3], 0, []) and alive == [{1: False, 2: False}, {1: False, 2: False, 3: True}]
