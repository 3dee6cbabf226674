"""Finding brokers, leaders and coordinators, and trying again."""

import asyncio
from pathlib import Path

import pytest
from tests.client.talk import OnCluster, talk

from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster, ClusterSettings, parse_address
from runnel.client.errors import BrokerUnreachable, Closed, TopicMissing
from runnel.client.metadata import TopicPartition
from runnel.model.errors import InvalidConfig, InvalidPartitions, LeaderNotAvailable, NotLeader
from runnel.shell.clock import SystemClock
from runnel.testing.process import BrokerProcess
from runnel.wire.kafka.error_codes import ErrorCode


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("localhost:9093", "localhost", 9093),
        ("localhost", "localhost", 9092),
        ("[::1]:9093", "::1", 9093),
        ("[::1]", "::1", 9092),
        ("::1", "::1", 9092),
    ],
)
def test_addresses(text: str, host: str, port: int) -> None:
    assert parse_address(text)[1:3] == (host, port)


@pytest.mark.parametrize("text", ["", ":9092", "host:port", "host:0", "host:70000"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(InvalidConfig, match="is not the address of a broker: use HOST:PORT"):
        parse_address(text)


def test_a_topic_its_partitions_and_its_leader(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await Admin(cluster).create_topics([NewTopic(name, partitions=2)])
        topic = await cluster.topic(name)
        assert (list(topic.partitions), topic.has_id) == ([0, 1], True)
        assert cluster.known_topic(name) == topic
        assert cluster.topic_name(topic.id) == name
        leader = await cluster.leader(TopicPartition(name, 1))
        assert cluster.knows(leader.broker)
        with pytest.raises(InvalidPartitions, match="has no partition 2"):
            await cluster.leader(TopicPartition(name, 2))

    on_cluster(work)


def test_a_topic_that_does_not_exist(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        with pytest.raises(TopicMissing, match=f"topic '{name}' does not exist on {cluster}"):
            await cluster.topic(name)

    on_cluster(work)


def test_an_answer_can_make_knowledge_stale(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await Admin(cluster).create_topics([NewTopic(name, partitions=1)])
        await cluster.topic(name)
        with pytest.raises(NotLeader, match="can't append: broker b answered NOT_LEADER_OR_FOLLOWER"):
            cluster.raise_for(ErrorCode.NOT_LEADER_OR_FOLLOWER, action="append", broker="b", topics=[name])
        assert cluster.known_topic(name) is None
        await cluster.topic(name)
        assert cluster.known_topic(name) is not None
        await cluster.coordinator("g")
        cluster.doubt()
        assert cluster.known_topic(name) is None

    on_cluster(work)


def test_without_any_broker_the_first_failure_counts() -> None:
    async def work() -> None:
        async with Cluster(["127.0.0.1:1"], clock=SystemClock()) as cluster:
            with pytest.raises(BrokerUnreachable, match=r"127\.0\.0\.1:1 can't be reached"):
                await cluster.persist(lambda: cluster.topic("t"))

    asyncio.run(work())


def test_any_of_several_brokers_will_do(broker: BrokerProcess) -> None:
    async def work() -> None:
        async with Cluster(["127.0.0.1:1", broker.kafka], clock=SystemClock()) as cluster:
            assert (await cluster.view([])).brokers

    asyncio.run(work())


def test_at_least_one_broker_is_needed() -> None:
    async def work() -> None:
        Cluster([], clock=SystemClock())

    with pytest.raises(InvalidConfig, match="no broker was named"):
        asyncio.run(work())


def test_attempts_end_with_the_deadline(on_cluster: OnCluster) -> None:
    async def work(cluster: Cluster) -> None:
        attempts = 0

        async def attempt() -> None:
            nonlocal attempts
            attempts += 1
            raise LeaderNotAvailable("none yet")

        with pytest.raises(LeaderNotAvailable, match="none yet"):
            await cluster.persist(attempt, timeout_ms=200)
        assert attempts >= 2

    on_cluster(work)


def test_a_broker_that_comes_back_is_found_again(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as process:

        async def work(cluster: Cluster) -> None:
            await Admin(cluster).create_topics([NewTopic("t", partitions=1)])
            loop = asyncio.get_running_loop()
            await loop.run_in_executor(None, process.kill)
            restart = loop.run_in_executor(None, process.start)
            view = await cluster.persist(lambda: cluster.view(["t"]))
            await restart
            assert list(view.topics) == ["t"]

        talk(process.kafka, work, ClusterSettings(backoff_ms_max=200))


def test_after_closing_nothing_is_asked(on_cluster: OnCluster) -> None:
    async def work(cluster: Cluster) -> None:
        await cluster.close()
        with pytest.raises(Closed, match="make a new one"):
            await cluster.view([])

    on_cluster(work)
