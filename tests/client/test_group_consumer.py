"""Reading together: who gets what, what is committed, and what a rebalance leaves."""

import asyncio

import pytest
from tests.client.talk import OnCluster, talk

from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster, ClusterSettings
from runnel.client.group_admin import GroupAdmin
from runnel.client.group_consumer import GroupConsumer, GroupConsumerSettings
from runnel.client.membership import GroupSettings
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import fetch_committed
from runnel.client.positions import END
from runnel.client.producer import Producer
from runnel.model.errors import ClientError, InvalidConfig, UnknownMember
from runnel.testing.process import BrokerProcess

LIVELY = GroupConsumerSettings(group=GroupSettings(heartbeat_ms=50, session_timeout_ms=10_000))
BY_HAND = GroupConsumerSettings(group=LIVELY.group, commit_ms=None)


async def fill(cluster: Cluster, name: str, partitions: int, count: int) -> None:
    await Admin(cluster).create_topics([NewTopic(name, partitions=partitions)])
    async with Producer(cluster) as producer:
        for n in range(count):
            await producer.send(name, b"%d" % n, partition=n % partitions)


async def read(consumer: GroupConsumer, count: int) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(30):
        while len(found) < count:
            found += [int(x.value or b"") for x in await consumer.poll(timeout_ms=1_000)]
    return found


async def settle(consumers: list[GroupConsumer], sizes: list[int]) -> None:
    """Poll all of them until each has so many partitions."""
    async with asyncio.timeout(60):
        while sorted(len(c.assignment) for c in consumers) != sizes or any(not c.membership.joined for c in consumers):
            await asyncio.gather(*(consumer.poll(timeout_ms=100) for consumer in consumers))


def test_a_group_goes_on_where_it_left_off(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await fill(cluster, name, 2, 20)
        async with GroupConsumer(cluster, name, [name], LIVELY) as first:
            assert sorted(await read(first, 20)) == list(range(20))
        committed = await fetch_committed(cluster, name)
        assert {where: c.offset for where, c in committed.items()} == {
            TopicPartition(name, 0): 10,
            TopicPartition(name, 1): 10,
        }
        async with Producer(cluster) as producer:
            await producer.send(name, b"20", partition=0)
        async with GroupConsumer(cluster, name, [name], LIVELY) as second:
            assert await read(second, 1) == [20]

    on_cluster(work)


def test_only_what_was_handed_out_is_committed(on_cluster: OnCluster, name: str) -> None:
    where = TopicPartition(name, 0)

    async def work(cluster: Cluster) -> None:
        await fill(cluster, name, 1, 20)
        async with GroupConsumer(cluster, name, [name], BY_HAND) as consumer:
            seen = 0
            while not seen:
                seen = len(await consumer.poll(count_max=7, timeout_ms=1_000))
            await consumer.commit()
        assert (await fetch_committed(cluster, name))[where].offset == seen == 7

    on_cluster(work)


def test_who_goes_while_others_wait_for_it_commits_first(on_cluster: OnCluster, name: str) -> None:
    where = TopicPartition(name, 0)

    async def work(cluster: Cluster) -> None:
        await fill(cluster, name, 1, 20)
        async with GroupConsumer(cluster, name, [name], LIVELY) as first:
            while not await first.poll(count_max=7):
                pass
            async with GroupConsumer(cluster, name, [name], LIVELY) as second:
                joining = asyncio.create_task(read(second, 13))
                while first.membership.joined:
                    await asyncio.sleep(0.05)
                await first.close()
                assert (await fetch_committed(cluster, name))[where].offset == 7
                assert await joining == list(range(7, 20))

    on_cluster(work)


def test_without_a_commit_it_begins_where_it_is_told(on_cluster: OnCluster, name: str) -> None:
    settings = GroupConsumerSettings(group=LIVELY.group, begin=END)

    async def work(cluster: Cluster) -> None:
        await fill(cluster, name, 1, 5)
        async with GroupConsumer(cluster, name, [name], settings) as consumer:
            await settle([consumer], [1])
            async with Producer(cluster) as producer:
                await producer.send(name, b"5")
            assert await read(consumer, 1) == [5]

    on_cluster(work)


@pytest.mark.parametrize("assignor", ["range", "roundrobin"])
def test_members_share_come_and_go(on_cluster: OnCluster, name: str, assignor: str) -> None:
    settings = GroupConsumerSettings(
        group=GroupSettings(heartbeat_ms=50, session_timeout_ms=10_000, assignors=(assignor,))
    )

    async def work(cluster: Cluster) -> None:
        await fill(cluster, name, 3, 30)
        first = GroupConsumer(cluster, name, [name], settings)
        second = GroupConsumer(cluster, name, [name], settings)
        await settle([first], [3])
        await settle([first, second], [1, 2])
        description = await GroupAdmin(cluster).describe(name)
        assert (description.state, len(description.members), description.assignor) == ("Stable", 2, assignor)
        await first.close()
        await settle([second], [3])
        await second.close()

    on_cluster(work)


def test_more_members_than_partitions_stand_by(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await fill(cluster, name, 1, 1)
        members = [GroupConsumer(cluster, name, [name], LIVELY) for _ in range(2)]
        await settle(members, [0, 1])
        for member in members:
            await member.close()

    on_cluster(work)


def test_new_partitions_are_divided(broker: BrokerProcess, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        await fill(cluster, name, 1, 1)
        async with GroupConsumer(cluster, name, [name], LIVELY) as consumer:
            await settle([consumer], [1])
            await Admin(cluster).create_partitions(name, 3)
            await settle([consumer], [3])

    talk(broker.kafka, work, ClusterSettings(metadata_age_ms_max=200))


def test_a_topic_that_comes_after_its_group_is_read(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        async with GroupConsumer(cluster, name, [name], LIVELY) as consumer:
            assert await consumer.poll() == []
            await fill(cluster, name, 2, 4)
            assert sorted(await read(consumer, 4)) == [0, 1, 2, 3]

    on_cluster(work)


def test_a_topic_that_goes_leaves_the_others_of_its_group(broker: BrokerProcess, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        other = f"{name}.other"
        await fill(cluster, name, 1, 1)
        await fill(cluster, other, 1, 1)
        async with GroupConsumer(cluster, name, [name, other], LIVELY) as consumer:
            await settle([consumer], [2])
            consumer.consumer.fetcher.pause(consumer.assignment)
            await Admin(cluster).delete_topics([other])
            await settle([consumer], [1])

    talk(broker.kafka, work, ClusterSettings(metadata_age_ms_max=200))


def test_a_member_that_lost_its_seat_can_not_commit(on_cluster: OnCluster, name: str) -> None:
    where = TopicPartition(name, 0)

    async def work(cluster: Cluster) -> None:
        await fill(cluster, name, 1, 10)
        stale = GroupConsumer(cluster, name, [name], BY_HAND)
        await read(stale, 10)
        generation = stale.membership.generation
        await stale.membership.leave()
        async with GroupConsumer(cluster, name, [name], BY_HAND) as fresh:
            await settle([fresh], [1])
            stale.membership.generation = generation
            with pytest.raises(ClientError, match=f"can't commit the offset of {name}/0 for group"):
                await stale.commit()
            assert where not in await fetch_committed(cluster, name)
        await stale.consumer.close()

    on_cluster(work)


def test_a_static_member_keeps_its_seat(on_cluster: OnCluster, name: str) -> None:
    settings = GroupConsumerSettings(group=GroupSettings(heartbeat_ms=50, instance_id="one"))

    async def work(cluster: Cluster) -> None:
        await fill(cluster, name, 1, 3)
        async with GroupConsumer(cluster, name, [name], settings) as first:
            await read(first, 3)
            generation = first.membership.generation
        description = await GroupAdmin(cluster).describe(name)
        assert [x.instance_id for x in description.members] == ["one"]
        async with GroupConsumer(cluster, name, [name], settings) as second:
            await settle([second], [1])
            assert second.membership.generation.id == generation.id

    on_cluster(work)


def test_an_assignor_nobody_knows(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        settings = GroupConsumerSettings(group=GroupSettings(assignors=("sticky",)))
        with pytest.raises(InvalidConfig, match="assignor can't be 'sticky': allowed are range, roundrobin"):
            GroupConsumer(cluster, name, [name], settings)

    on_cluster(work)


def test_who_has_no_seat_does_not_commit_as_an_administrator(on_cluster: OnCluster, name: str) -> None:
    """A group without members accepts commits without a generation: a member that was thrown out must not send one."""

    async def talk(cluster: Cluster) -> None:
        await fill(cluster, name, 1, 5)
        async with GroupConsumer(cluster, name, [name], BY_HAND) as consumer:
            await read(consumer, 5)
            await consumer.membership.leave()
            with pytest.raises(UnknownMember, match="no seat"):
                await consumer.commit()
            assert await fetch_committed(cluster, name) == {}

    on_cluster(talk)
