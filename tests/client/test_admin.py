"""Administration of topics."""

import pytest
from tests.client.talk import OnCluster

from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster
from runnel.client.errors import TopicMissing
from runnel.client.metadata import TopicPartition
from runnel.client.positions import Bounds, bounds
from runnel.client.producer import Producer
from runnel.model.errors import InvalidConfig, InvalidPartitions, InvalidTopicName, OffsetOutOfRange, TopicAlreadyExists


def test_the_life_of_a_topic(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        admin = Admin(cluster)
        (created,) = await admin.create_topics([NewTopic(name, partitions=2, config={"retention.ms": "1000000"})])
        assert (created.name, created.partitions) == (name, 2)
        assert (await admin.topics([name]))[name].id == created.id
        with pytest.raises(TopicAlreadyExists, match=f"can't create topic '{name}'"):
            await admin.create_topics([NewTopic(name)])
        await admin.create_partitions(name, 5)
        assert len((await admin.topics([name]))[name].partitions) == 5
        with pytest.raises(InvalidPartitions):
            await admin.create_partitions(name, 4)
        await admin.delete_topics([name])
        with pytest.raises(TopicMissing):
            await admin.topics([name])
        with pytest.raises(TopicMissing, match=f"can't delete topic '{name}': there is no such topic"):
            await admin.delete_topics([name])

    on_cluster(work)


def test_a_dry_run_creates_nothing(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await Admin(cluster).create_topics([NewTopic(name, partitions=3)], validate_only=True)
        assert name not in (await Admin(cluster).view()).topics

    on_cluster(work)


def test_names_and_settings_that_are_not_allowed(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        with pytest.raises(InvalidTopicName, match="can't create topic 'a b'"):
            await Admin(cluster).create_topics([NewTopic("a b")])
        with pytest.raises(InvalidConfig, match=r"retention\.ms"):
            await Admin(cluster).create_topics([NewTopic(name, config={"retention.ms": "soon"})])

    on_cluster(work)


def test_settings_and_where_they_come_from(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        admin = Admin(cluster)
        await admin.create_topics([NewTopic(name)])

        async def setting(key: str) -> tuple[str | None, str]:
            entry = next(c for c in (await admin.configs([name]))[name] if c.name == key)
            return entry.value, entry.source

        assert (await setting("retention.ms"))[1] != "topic"
        await admin.alter_config(name, set_={"retention.ms": "86400000"})
        assert await setting("retention.ms") == ("86400000", "topic")
        await admin.alter_config(name, set_={"retention.ms": "5"}, validate_only=True)
        await admin.alter_config(name, set_={}, reset=["retention.ms"])
        assert (await setting("retention.ms"))[1] != "topic"
        with pytest.raises(InvalidConfig):
            await admin.alter_config(name, set_={"retention.ms": "soon"})

    on_cluster(work)


def test_trimming_and_sizes(on_cluster: OnCluster, name: str) -> None:
    where = TopicPartition(name, 0)

    async def work(cluster: Cluster) -> None:
        admin = Admin(cluster)
        await admin.create_topics([NewTopic(name, partitions=1)])
        async with Producer(cluster) as producer:
            for _ in range(10):
                await producer.send(name, b"x" * 100)
        assert (await admin.sizes([name]))[where] > 1_000
        assert await admin.delete_records({where: 4}) == {where: 4}
        assert await bounds(cluster, [where]) == {where: Bounds(4, 10)}
        with pytest.raises(OffsetOutOfRange, match=f"can't remove messages of {name}/0 before offset 11"):
            await admin.delete_records({where: 11})

    on_cluster(work)
