"""Views in a cluster: on every broker, over the change of a leader, and to the end of their source."""

from pathlib import Path

import pytest
from tests.test_replication import Brokers, cluster_of, create, eventually, run

from runnel.cli.cluster_survey import survey
from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster
from runnel.client.consumer import Consumer
from runnel.client.metadata import TopicPartition
from runnel.client.producer import Producer
from runnel.client.sender import ProducerSettings
from runnel.model.errors import InvalidConfig, InvalidTopicName, RunnelError

WAIT_MS = 200


async def make_view(brokers: Brokers, chosen: str, name: str = "v") -> None:
    async with brokers.client() as cluster:
        await Admin(cluster).create_topics([NewTopic(name, config={"view.of": "t", "view.filter": chosen})])
    await eventually(lambda: all(name in server.broker.image.names for server in brokers.up.values()))


async def send(brokers: Brokers, partition: int, *keys: str) -> None:
    async with brokers.client() as cluster, Producer(cluster) as producer:
        for delivery in [await producer.send("t", b"x", key=key.encode(), partition=partition) for key in keys]:
            await delivery


async def got(consumer: Consumer, count: int) -> list[tuple[int, str]]:
    found: list[tuple[int, str]] = []
    while len(found) < count:
        found += [(each.partition, (each.key or b"").decode()) for each in await consumer.poll(timeout_ms=WAIT_MS)]
    return found


async def refusal(cluster: Cluster, name: str, **config: str) -> RunnelError:
    settings = {key.replace("_", "."): value for key, value in config.items()}
    with pytest.raises(RunnelError) as refused:
        await Admin(cluster).create_topics([NewTopic(name, config=settings)])
    return refused.value


def test_a_view_is_read_from_the_leaders_of_its_source(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path) as brokers:
            await create(brokers, partitions=3)
            await make_view(brokers, "key LIKE 'b%'")
            for partition in range(3):
                await send(brokers, partition, "a", f"b{partition}", "c")
            async with brokers.client() as cluster, Consumer(cluster) as consumer:
                await consumer.assign({TopicPartition("v", number): 0 for number in range(3)})
                assert sorted(await got(consumer, 3)) == [(0, "b0"), (1, "b1"), (2, "b2")]
                found = (await Admin(cluster).topics(["v", "t"])).values()
                [shown, source] = [[each.partitions[number].leader for number in range(3)] for each in found]
                assert shown == source

    run(scenario())


def test_reading_goes_on_with_another_leader(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path) as brokers:
            await create(brokers)
            await make_view(brokers, "key = 'b'")
            async with brokers.client() as cluster, Consumer(cluster) as consumer:
                await consumer.assign({TopicPartition("v", 0): 0})
                await send(brokers, 0, "a", "b", "a")
                assert await got(consumer, 1) == [(0, "b")]
                await brokers.kill(brokers.image().leader)
                await eventually(lambda: brokers.image().leader in brokers.up)
                await send(brokers, 0, "a", "b", "a")
                assert await got(consumer, 1) == [(0, "b")]
                assert await consumer.poll(timeout_ms=WAIT_MS) == []

    run(scenario())


def test_a_view_follows_what_becomes_of_its_source_and_of_its_filter(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, 2) as brokers:
            await create(brokers, replicas=2)
            await make_view(brokers, "key = 'b'")
            async with brokers.client() as cluster:
                admin = Admin(cluster)
                await admin.create_partitions("t", 2)
                await eventually(lambda: len(brokers.up[1].broker.image.topic_named("t").partitions) == 2)
                assert len((await admin.topics(["v"]))["v"].partitions) == 2
                await admin.alter_config("v", set_={"view.filter": "key = 'a'"})
                await send(brokers, 1, "a", "b")
                async with Consumer(cluster) as consumer:
                    await consumer.assign({TopicPartition("v", 1): 0})
                    assert await got(consumer, 1) == [(1, "a")]
                await admin.delete_topics(["t"])
                await eventually(lambda: all("t" not in each.broker.image.names for each in brokers.up.values()))
                with pytest.raises(InvalidTopicName, match="only while its source is there"):
                    await admin.topics(["v"])
                await admin.delete_topics(["v"])
                await eventually(lambda: all("v" not in each.broker.image.names for each in brokers.up.values()))

    run(scenario())


def test_what_no_view_can_be_is_said_by_every_broker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, 2) as brokers:
            await create(brokers, replicas=2)
            await make_view(brokers, "TRUE")
            async with brokers.client() as cluster:
                problem = await refusal(cluster, "w", view_of="t", view_filter="key =")
                assert isinstance(problem, InvalidConfig)
                assert "at character 6" in str(problem)
                assert "view itself" in str(await refusal(cluster, "w", view_of="v", view_filter="TRUE"))
                with pytest.raises(RunnelError, match="at character 1"):
                    await Admin(cluster).alter_config("v", set_={"view.filter": "~"})
                with pytest.raises(InvalidTopicName, match="is a view of 't'"):
                    async with Producer(cluster) as producer:
                        await producer.send("v", b"x", partition=0)

    run(scenario())


def test_a_view_takes_part_in_no_transaction(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, 1) as brokers:
            await create(brokers, replicas=1)
            await make_view(brokers, "TRUE")
            async with brokers.client() as cluster:
                settings = ProducerSettings(transactional_id="tx")
                with pytest.raises(RunnelError, match="INVALID_TOPIC"):
                    async with Producer(cluster, settings) as producer, producer.transaction():
                        await producer.send("v", b"x", partition=0)
                async with Producer(cluster, settings) as producer, producer.transaction():
                    await producer.send("t", b"x", partition=0)

    run(scenario())


def test_who_moves_partitions_leaves_views_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, 2) as brokers:
            await create(brokers, replicas=1)
            await make_view(brokers, "TRUE")
            async with brokers.client() as cluster:
                found = await survey(cluster)
                assert set(found.ground().held) == {TopicPartition("t", 0)}

    run(scenario())


def test_a_view_survives_a_restart(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with cluster_of(tmp_path, 1) as brokers:
            await create(brokers, replicas=1)
            await make_view(brokers, "key = 'b'")
            await send(brokers, 0, "a", "b")
            await brokers.stop(1)
            await brokers.start(1)
            async with brokers.client() as cluster, Consumer(cluster) as consumer:
                await consumer.assign({TopicPartition("v", 0): 0})
                assert await got(consumer, 1) == [(0, "b")]

    run(scenario())
