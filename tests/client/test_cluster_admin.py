"""Administration of a cluster: three real brokers."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest
from tests.client.talk import talk

from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster
from runnel.client.cluster_admin import ClusterAdmin, Reassignment
from runnel.client.metadata import Partition, TopicPartition
from runnel.client.producer import Producer
from runnel.model.errors import (
    ElectionNotNeeded,
    InvalidReplicaAssignment,
    NoReassignmentInProgress,
    RunnelError,
    UnknownTopic,
)
from runnel.testing.process import BrokerProcess

T = TypeVar("T")
LIMIT_S = 60.0


@pytest.fixture
def on_trio(trio: list[BrokerProcess]) -> Callable[[Callable[[Cluster], Awaitable[T]]], T]:
    return lambda work: talk(trio[0].kafka, work)


OnTrio = Callable[[Callable[[Cluster], Awaitable[None]]], None]


async def eventually(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not await holds():
            await asyncio.sleep(0.05)


async def partition(cluster: Cluster, where: TopicPartition) -> Partition:
    return (await Admin(cluster).view([where.topic])).topics[where.topic].partitions[where.partition]


async def made(cluster: Cluster, name: str, replicas: int, messages: int = 0, size: int = 1) -> TopicPartition:
    """The one partition of a new topic."""
    await Admin(cluster).create_topics([NewTopic(name, partitions=1, replicas=replicas)])
    async with Producer(cluster) as producer:
        for _ in range(messages):
            await producer.send(name, b"x" * size)
    return TopicPartition(name, 0)


def test_the_cluster_and_its_disks(on_trio: OnTrio, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        admin = ClusterAdmin(cluster)
        described = await admin.describe()
        assert list(described.brokers) == [1, 2, 3]
        assert described.controller in described.brokers
        assert not any(broker.fenced for broker in described.brokers.values())
        where = await made(cluster, name, 3, messages=10)

        async def everywhere() -> bool:
            disks = await admin.disks()
            return all(disk is not None and disk.sizes.get(where, 0) > 0 for disk in disks.values())

        await eventually(everywhere)
        assert await admin.minimums([name]) == {name: 1}

    on_trio(work)


def test_a_partition_moves_to_other_brokers(on_trio: OnTrio, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        admin = ClusterAdmin(cluster)
        where = await made(cluster, name, 1, messages=10)
        [old] = (await partition(cluster, where)).replicas
        new = next(broker for broker in (1, 2, 3) if broker != old)
        assert await admin.reassign({where: [new]}) == {}

        async def moved() -> bool:
            now = await partition(cluster, where)
            return (now.leader, now.replicas, now.in_sync) == (new, (new,), (new,))

        await eventually(moved)
        assert where not in await admin.reassignments()

    on_trio(work)


def test_a_move_is_held_back_seen_and_taken_back(on_trio: OnTrio, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        admin = ClusterAdmin(cluster)
        where = await made(cluster, name, 1, messages=40, size=100_000)
        [old] = (await partition(cluster, where)).replicas
        new = next(broker for broker in (1, 2, 3) if broker != old)
        await admin.throttle({where: [new]}, 1_000)

        async def throttled() -> bool:
            return (await admin.copy_rates(), await admin.throttled_topics()) == ({new: 1_000}, [name])

        await eventually(throttled)
        assert await admin.reassign({where: [new]}) == {}
        assert (await admin.reassignments())[where] == Reassignment((new, old), (new,), (old,))
        assert await admin.reassign({where: None}) == {}
        assert where not in await admin.reassignments()
        assert (await partition(cluster, where)).replicas == (old,)
        await admin.unthrottle()

        async def free() -> bool:
            return not await admin.copy_rates() and not await admin.throttled_topics()

        await eventually(free)

    on_trio(work)


def test_each_partition_has_an_answer_of_its_own(on_trio: OnTrio, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        where = await made(cluster, name, 1)
        nowhere = TopicPartition(f"{name}-not", 0)
        failures = await ClusterAdmin(cluster).reassign({where: [99], nowhere: [1]})
        assert _kinds(failures) == {where: InvalidReplicaAssignment, nowhere: UnknownTopic}
        failures = await ClusterAdmin(cluster).reassign({where: None})
        assert _kinds(failures) == {where: NoReassignmentInProgress}

    on_trio(work)


def _kinds(failures: dict[TopicPartition, RunnelError]) -> dict[TopicPartition, type[RunnelError]]:
    return {where: type(error) for where, error in failures.items()}


def test_the_preferred_replica_leads_again(on_trio: OnTrio, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        admin = ClusterAdmin(cluster)
        where = await made(cluster, name, 3)
        before = await partition(cluster, where)
        order = [before.replicas[1], before.replicas[0], before.replicas[2]]

        async def in_sync() -> bool:
            return len((await partition(cluster, where)).in_sync) == 3

        await eventually(in_sync)
        assert await admin.reassign({where: order}) == {}
        assert (await partition(cluster, where)).leader == before.leader  # the order alone moves no leader
        assert await admin.elect([where]) == {where: None}
        assert (await partition(cluster, where)).leader == order[0]
        again = (await admin.elect([where]))[where]
        assert isinstance(again, ElectionNotNeeded)
        assert where not in await admin.elect()

    on_trio(work)
