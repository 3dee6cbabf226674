"""Three whole brokers in one process, on one store in memory: what was acknowledged outlives its leader."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from runnel.broker.config import Address, BrokerConfig
from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster
from runnel.client.consumer import Consumer
from runnel.client.metadata import TopicPartition
from runnel.client.producer import Producer
from runnel.cluster.image import Partition as PartitionImage
from runnel.cluster.store import Store
from runnel.model.ids import BrokerId
from runnel.replica.partition import Partition
from runnel.server import Machine, Server
from runnel.shell.clock import SystemClock
from runnel.shell.disk import RealDisk
from runnel.shell.rng import SystemRng
from runnel.testing.store import Ensemble, SimStore

LIMIT_S = 60.0
CONFIG = BrokerConfig(kafka=Address("127.0.0.1", 0), replica_lag_ms=1_000, group_partitions=2)


class Brokers:
    """Brokers 1, 2, ... on one store; one is gone when its session is."""

    def __init__(self, folder: Path, config: BrokerConfig) -> None:
        self._folder = folder
        self._config = config
        self._ensemble = Ensemble()
        self._sessions: dict[int, SimStore] = {}
        self._disks: dict[int, RealDisk] = {}
        self.up: dict[int, Server] = {}
        self.fatal: list[BaseException] = []

    async def start(self, number: int) -> None:
        disk = self._disks[number] = RealDisk(str(self._folder / str(number)))

        async def open_store() -> Store:
            store = self._sessions[number] = await self._ensemble.open()
            return store

        machine = Machine(disk, SystemClock(), SystemRng(), open_store)
        self.up[number] = server = Server(
            replace(self._config, broker_id=number), machine, partial(self._fatal, number)
        )
        await server.start()

    def _fatal(self, number: int, error: BaseException) -> None:
        if number in self.up:  # those who were killed have nothing to say
            self.fatal.append(error)

    async def stop(self, number: int) -> None:
        await self.up.pop(number).stop()
        self._disks.pop(number).close()

    async def kill(self, number: int) -> None:
        """Its connections break, its session ends, and nothing that it had in memory matters any more."""
        server = self.up.pop(number)
        server._listener.stop_accepting()
        for connection in list(server._listener.connections):
            connection.abort()
        await server.broker._replication.close()
        self._ensemble.expire(self._sessions[number].session)

    def client(self) -> Cluster:
        return Cluster([str(server.kafka) for server in self.up.values()], clock=SystemClock(), rng=SystemRng())

    def image(self, topic: str = "t", number: int = 0) -> PartitionImage:
        """The partition as all living brokers see it, once they agree."""
        seen = {server.broker.image.topic_named(topic).partitions[number] for server in self.up.values()}
        return seen.pop() if len(seen) == 1 else PartitionImage(BrokerId(-1), *[-1] * 2, (), ())  # type: ignore[arg-type]

    def replica(self, broker: int, topic: str = "t", number: int = 0) -> Partition:
        return self.up[broker].broker.partitions.find_readable(topic, number)


@asynccontextmanager
async def cluster_of(folder: Path, count: int = 3, **settings: Any) -> AsyncIterator[Brokers]:
    brokers = Brokers(folder, replace(CONFIG, **settings))
    for number in range(1, count + 1):
        await brokers.start(number)
    try:
        yield brokers
    finally:
        for number in list(brokers.up):
            await brokers.stop(number)
    assert not brokers.fatal, str(brokers.fatal[0])


def run(main: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(main, LIMIT_S))


async def eventually(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


async def create(brokers: Brokers, *, replicas: int = 3, partitions: int = 1, **config: str) -> None:
    async with brokers.client() as cluster:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        await Admin(cluster).create_topics([NewTopic("t", partitions, replicas, config=settings)])
    await eventually(lambda: all("t" in server.broker.image.names for server in brokers.up.values()))


async def produce(brokers: Brokers, *values: bytes) -> None:
    async with brokers.client() as cluster, Producer(cluster) as producer:
        for delivery in [await producer.send("t", value, partition=0) for value in values]:
            await delivery


async def read(brokers: Brokers, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with brokers.client() as cluster, Consumer(cluster) as consumer:
        await consumer.assign({TopicPartition("t", 0): 0})
        while len(found) < count:
            found += [message.value for message in await consumer.poll()]
    return found


def test_what_was_acknowledged_outlives_its_leader(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as brokers:
            await create(brokers, min_insync_replicas="2")
            sent = [b"%d" % number for number in range(100)]
            await produce(brokers, *sent)
            leader = brokers.image().leader
            await brokers.kill(leader)
            await eventually(lambda: brokers.image().leader in brokers.up)
            await produce(brokers, b"more")
            assert await read(brokers, 101) == [*sent, b"more"]

    run(main())
