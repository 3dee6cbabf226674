"""Sinks over several brokers, which die at every step on the way of a batch: readers see each batch once, and whole."""

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.conftest import cluster_broker
from tests.helpers.batches import Broken, Driver
from tests.test_replication import Brokers, cluster_of, run

from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster, ClusterSettings
from runnel.client.consumer import Consumer
from runnel.client.metadata import TopicPartition
from runnel.client.producer import Producer
from runnel.client.sinks import Sinks
from runnel.model.errors import NotCoordinator
from runnel.shell.clock import SystemClock
from runnel.shell.rng import SystemRng
from runnel.testing.process import BrokerProcess
from runnel.testing.zookeeper import ZooKeeper

PARTITIONS = 4
SINK = "clicks"
PATIENT = ClusterSettings(retry_timeout_ms=60_000)


async def made(cluster: Cluster, replicas: int) -> None:
    await Admin(cluster).create_topics([NewTopic("t", partitions=PARTITIONS, replicas=replicas)])


async def read_all(cluster: Cluster) -> list[bytes]:
    """All that readers see, up to a message that is sent now: nothing open is left before it."""
    places = [TopicPartition("t", number) for number in range(PARTITIONS)]
    async with Producer(cluster) as producer:
        for where in places:
            await producer.send("t", b"end", partition=where.partition)
    found: list[bytes] = []
    async with Consumer(cluster) as consumer:
        await consumer.assign(dict.fromkeys(places, 0))
        while found.count(b"end") < PARTITIONS:
            found += [message.value or b"" for message in await consumer.poll()]
    return sorted(value for value in found if value != b"end")


def expected(driver: Driver, batches: int) -> list[bytes]:
    return sorted(value for batch in range(batches) for value in driver.values(batch))


# --- brokers in one process
def keeper_of_sink(brokers: Brokers) -> int:
    return int(next(iter(brokers.up.values())).broker.sinks.shards.leader_of(SINK).id)


def coordinator_of_slot(brokers: Brokers) -> int:
    transactions = next(iter(brokers.up.values())).broker.transactions
    return int(transactions.shards.leader_of(f"sink/{SINK}/0").id)


def leader_of_partition(brokers: Brokers) -> int:
    return int(brokers.image("t", 0).leader)


@pytest.mark.parametrize("victim", [keeper_of_sink, coordinator_of_slot, leader_of_partition])
@pytest.mark.parametrize("place", ["row", "done", "commit", "publishing", "committed"])
def test_whoever_dies_each_batch_is_seen_once_and_whole(
    tmp_path: Path, place: str, victim: Callable[[Brokers], int]
) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as brokers, brokers.client() as cluster:
            await made(cluster, replicas=3)
            killed: list[int] = []
            tasks: list[asyncio.Task[None]] = []

            async def fault(where: str, batch: int, partition: int, attempt: int) -> None:
                if batch != 1 or killed:
                    return
                if place == "publishing" and where == "commit":
                    killed.append(1)
                    tasks.append(asyncio.create_task(brokers.kill(victim(brokers))))  # while the commit is under way
                elif where == place:
                    killed.append(1)
                    await brokers.kill(victim(brokers))
                    if where == "committed":
                        raise Broken  # and the driver does not know that it is done

            driver = Driver(cluster, "t", SINK, fault=fault)
            await driver.run(range(3))
            assert killed
            await asyncio.gather(*tasks)
            assert await read_all(cluster) == expected(driver, 3)

    run(main())


def test_two_drivers_that_do_the_same_publish_each_batch_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, 1) as brokers, brokers.client() as cluster:
            await made(cluster, replicas=1)
            drivers = [Driver(cluster, "t", SINK), Driver(cluster, "t", SINK)]
            await asyncio.gather(*[driver.run(range(6)) for driver in drivers])
            assert await read_all(cluster) == expected(drivers[0], 6)
            [listed] = await Sinks(cluster).list()
            assert (listed.last_batch, listed.phase) == (5, "idle")

    run(main())


def test_where_a_broker_does_not_answer_another_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as brokers, brokers.client() as first:
            await Sinks(first).commit("made", 0, [])
            shards = brokers.up[1].broker.sinks.shards
            name = next(name for name in map(str, range(1_000)) if int(shards.leader_of(name).id) != 1)

            over = asyncio.Event()

            async def silence(*_: object) -> bytes:
                await over.wait()
                raise NotCoordinator("too late")

            monkeypatch.setattr(brokers.up[1].broker.calls, "answer", silence)
            addresses = [str(brokers.up[1].kafka)]  # it tells who the others are, and nothing else
            impatient = ClusterSettings(request_timeout_ms=300)
            async with Cluster(addresses, clock=SystemClock(), rng=SystemRng(), settings=impatient) as cluster:
                assert not (await Sinks(cluster).commit(name, 0, [])).repeated
                assert (await Sinks(cluster).describe(name)).last_batch == 0
            over.set()

    run(main())


# --- real processes
def patient(addresses: list[str]) -> Cluster:
    return Cluster(addresses, clock=SystemClock(), rng=SystemRng(), settings=PATIENT)


def test_a_broker_that_is_killed_again_and_again_publishes_each_batch_once(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        kills = {(1, "row"), (2, "commit"), (3, "committed")}

        def again() -> None:
            broker.kill()
            broker.start()

        async def fault(where: str, batch: int, partition: int, attempt: int) -> None:
            if (batch, where) in kills:
                kills.discard((batch, where))
                await asyncio.to_thread(again)

        async def main() -> None:
            async with patient([broker.kafka]) as cluster:
                await made(cluster, replicas=1)
                driver = Driver(cluster, "t", SINK, fault=fault)
                await driver.run(range(5))
                assert not kills
                assert await read_all(cluster) == expected(driver, 5)

        asyncio.run(asyncio.wait_for(main(), 120))


def test_brokers_of_a_real_cluster_are_killed_while_batches_are_published(zookeeper: ZooKeeper, tmp_path: Path) -> None:
    with ExitStack() as stack:
        brokers = [stack.enter_context(cluster_broker(zookeeper, tmp_path, number)) for number in (1, 2, 3)]

        async def kill_in_turn() -> None:
            """One at a time; each comes back before the next one goes."""
            for broker in brokers:
                await asyncio.to_thread(broker.kill)
                await asyncio.to_thread(broker.start)

        async def main() -> None:
            async with patient([broker.kafka for broker in brokers]) as cluster:
                await made(cluster, replicas=3)
                driver = Driver(cluster, "t", SINK)
                await driver.batch(0)
                killing = asyncio.create_task(kill_in_turn())
                batches = 1
                while not killing.done():
                    await driver.batch(batches)
                    batches += 1
                await killing
                assert await read_all(cluster) == expected(driver, batches)

        asyncio.run(asyncio.wait_for(main(), 240))
