"""Three whole brokers in one process, on one store in memory: what was acknowledged outlives its leader."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from runnel.broker.config import Address, BrokerConfig
from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster
from runnel.client.connection import connect
from runnel.client.consumer import Consumer
from runnel.client.errors import check
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import Committed, commit, fetch_committed
from runnel.client.producer import Producer
from runnel.cluster.image import Partition as PartitionImage
from runnel.cluster.store import Store
from runnel.model.errors import NotEnoughReplicas
from runnel.model.ids import BrokerId, Offset
from runnel.record import records
from runnel.replica.partition import Partition
from runnel.server import Machine, Server
from runnel.shell.clock import SystemClock
from runnel.shell.disk import RealDisk
from runnel.shell.rng import SystemRng
from runnel.testing.store import Ensemble, SimStore
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api

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
        self._addresses: dict[int, Address] = {}
        self.up: dict[int, Server] = {}
        self.fatal: list[BaseException] = []

    async def start(self, number: int) -> None:
        disk = self._disks[number] = RealDisk(str(self._folder / str(number)))

        async def open_store() -> Store:
            store = self._sessions[number] = await self._ensemble.open()
            return store

        machine = Machine(disk, SystemClock(), SystemRng(), open_store)
        config = replace(self._config, broker_id=number, kafka=self._addresses.get(number, self._config.kafka))
        self.up[number] = server = Server(config, machine, partial(self._fatal, number))
        await server.start()
        self._addresses[number] = server.kafka  # for its next life: clients know it

    def _fatal(self, number: int, error: BaseException) -> None:
        if number in self.up:  # those who were killed have nothing to say
            self.fatal.append(error)

    async def stop(self, number: int) -> None:
        await self.up.pop(number).stop()
        self._disks.pop(number).close()

    async def kill(self, number: int) -> None:
        """Its connections break, its session ends, and its folder does not say that it ended in an orderly way."""
        server = self.up.pop(number)
        for connection in list(server._listener.connections):
            connection.abort()
        self._ensemble.expire(self._sessions[number].session)
        await server.abandon()
        self._disks.pop(number).close()
        identity = self._folder / str(number) / "identity.json"
        identity.write_text(json.dumps({**json.loads(identity.read_text()), "clean_epoch": None}))

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


async def raw_produce(cluster: Cluster, broker: int, value: bytes, acks: int = -1) -> None:
    """One try, without the patience of a producer."""
    await cluster.refresh(["t"])
    batch = records.encode([records.Record(Offset(0), 1_000, None, value, ())])
    request = m.ProduceRequest(
        acks=acks, timeout_ms=5_000,
        topic_data=[
            m.ProduceRequest.TopicProduceData(
                name="t", partition_data=[m.ProduceRequest.PartitionProduceData(index=0, records=batch)]
            )
        ],
    )  # fmt: skip
    answer = await cluster.broker(broker).ask(Api.PRODUCE, request, m.ProduceResponse, version_max=12)
    check(answer.responses[0].partition_responses[0].error_code, action="produce", broker=str(broker))


async def read(brokers: Brokers, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    async with brokers.client() as cluster, Consumer(cluster) as consumer:
        await consumer.assign({TopicPartition("t", 0): 0})
        while len(found) < count:
            found += [message.value for message in await consumer.poll()]
    return found


def test_what_was_acknowledged_outlives_its_leader_and_comes_back_to_it(tmp_path: Path) -> None:
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
            await brokers.start(leader)
            await eventually(lambda: len(brokers.image().isr) == 3)
            assert brokers.replica(leader).log.end_offset == 101
            await eventually(lambda: brokers.replica(leader).high_watermark == 101)

    run(main())


def test_a_follower_that_is_gone_leaves_the_isr_and_acknowledgements_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as brokers:
            await create(brokers, min_insync_replicas="2")
            await produce(brokers, b"a")
            follower = next(broker for broker in brokers.up if broker != brokers.image().leader)
            await brokers.kill(follower)
            await produce(brokers, b"b")
            await eventually(lambda: len(brokers.image().isr) == 2)
            await brokers.start(follower)
            await eventually(lambda: len(brokers.image().isr) == 3)
            assert await read(brokers, 2) == [b"a", b"b"]

    run(main())


def test_a_follower_that_hangs_leaves_the_isr_by_its_lag_and_comes_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as brokers:
            await create(brokers, min_insync_replicas="2")
            await produce(brokers, b"a")
            follower = next(broker for broker in brokers.up if broker != brokers.image().leader)
            await brokers.up[follower].broker._replication.close()
            await produce(brokers, b"b")  # waits until it has left
            assert follower not in brokers.image().isr
            await brokers.stop(follower)
            await brokers.start(follower)
            await eventually(lambda: len(brokers.image().isr) == 3)

    run(main())


def test_below_min_insync_replicas_nothing_is_taken(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, 2) as brokers:
            await create(brokers, replicas=2, min_insync_replicas="2")
            await produce(brokers, b"a")
            leader = brokers.image().leader
            await brokers.kill(3 - leader)
            await eventually(lambda: brokers.image().isr == (leader,))
            end = brokers.replica(leader).log.end_offset
            async with brokers.client() as cluster:
                with pytest.raises(NotEnoughReplicas):
                    await raw_produce(cluster, leader, b"b")
            assert brokers.replica(leader).log.end_offset == end
            assert brokers.image().elr == (3 - leader,)
            await brokers.start(3 - leader)
            await produce(brokers, b"c")
            assert await read(brokers, 2) == [b"a", b"c"]

    run(main())


def test_what_only_a_dead_leader_had_is_cut_off_when_it_comes_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as brokers:
            await create(brokers)
            await produce(brokers, b"a")
            leader = brokers.image().leader
            for broker in brokers.up:
                if broker != leader:
                    await brokers.up[broker].broker._replication.close()
            async with brokers.client() as cluster:
                await raw_produce(cluster, leader, b"lost", acks=1)
            assert brokers.replica(leader).log.end_offset == 2
            await brokers.kill(leader)
            await eventually(lambda: brokers.image().leader in brokers.up)
            await produce(brokers, b"b", b"c")
            await brokers.start(leader)
            await eventually(lambda: leader in brokers.image().isr)
            assert brokers.replica(leader).log.end_offset == 3
            assert await read(brokers, 3) == [b"a", b"b", b"c"]

    run(main())


def test_an_orderly_restart_of_all_brokers_under_load_loses_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as brokers:
            await create(brokers, min_insync_replicas="2")
            sent: list[bytes] = []
            over = False

            async def send() -> None:
                async with brokers.client() as cluster, Producer(cluster) as producer:
                    while not over:
                        value = b"%d" % len(sent)
                        await (await producer.send("t", value, partition=0))
                        sent.append(value)

            sender = asyncio.ensure_future(send())
            for number in (1, 2, 3):
                goal = len(sent) + 20
                await eventually(lambda: len(brokers.image().isr) == 3 and len(sent) >= goal)  # noqa: B023
                await brokers.stop(number)
                await brokers.start(number)
            over = True
            await sender
            assert await read(brokers, len(sent)) == sent

    run(main())


def test_any_broker_takes_what_the_controller_alone_can_do(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as brokers:
            controller = brokers.up[1].broker.image.controller.broker
            other = next(server for number, server in brokers.up.items() if number != controller)
            request = m.CreateTopicsRequest(
                topics=[m.CreateTopicsRequest.CreatableTopic(name="t", num_partitions=-1, replication_factor=-1)]
            )
            connection = await connect(other.kafka.host, other.kafka.port, timeout_ms=5_000)
            answer = await connection.ask(Api.CREATE_TOPICS, request, m.CreateTopicsResponse, timeout_ms=5_000)
            assert [(topic.name, topic.error_code) for topic in answer.topics] == [("t", 0)]
            assert answer.topics[0].replication_factor == 3  # as many as is usual, where there are so many brokers
            connection.close()

    run(main())


def test_a_group_goes_on_with_its_next_coordinator(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as brokers:
            await create(brokers)
            where = TopicPartition("t", 0)
            async with brokers.client() as cluster:
                await cluster.persist(lambda: commit(cluster, "g", {where: Committed(7)}))
                group_topic = brokers.up[1].broker.image.topic_named("__consumer_offsets")
                assert all(len(each.replicas) == 3 for each in group_topic.partitions)
                assert group_topic.config["min.insync.replicas"] == "2"
                await brokers.kill((await cluster.coordinator("g")).address.id)
            async with brokers.client() as cluster:
                found = await cluster.persist(lambda: fetch_committed(cluster, "g", [where]))
                assert found[where].offset == 7

    run(main())
