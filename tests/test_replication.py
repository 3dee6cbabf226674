"""Whole brokers: several in one process on one store in memory, and real processes with a real ZooKeeper."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
import uvloop
from confluent_kafka import Consumer as KafkaConsumer
from confluent_kafka import Producer as KafkaProducer
from confluent_kafka import TopicPartition as KafkaPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic as KafkaTopic

from runnel import server as server_module
from runnel.broker.config import Address, BrokerConfig
from runnel.broker.measures import measures
from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster
from runnel.client.connection import connect
from runnel.client.consumer import Consumer
from runnel.client.errors import check
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import Committed, commit, fetch_committed
from runnel.client.positions import Bounds, known_bounds
from runnel.client.producer import Producer
from runnel.cluster.image import Partition as PartitionImage
from runnel.cluster.nodes import broker_path
from runnel.cluster.reassignment import Move
from runnel.cluster.store import Store
from runnel.cluster.topic_rules import NewTopic as NewSpec
from runnel.model.errors import NotEnoughReplicas, RetriableError, RunnelError
from runnel.model.ids import BrokerId, Epoch, Offset, PartitionKey
from runnel.model.once import OnceMessage
from runnel.model.topic_config import TopicConfig
from runnel.record import records
from runnel.record.batch import read_header
from runnel.replica.partition import Partition
from runnel.server import Machine, Server
from runnel.shell.clock import SystemClock
from runnel.shell.disk import RealDisk
from runnel.shell.rng import SystemRng
from runnel.testing import zookeeper as real
from runnel.testing.process import BrokerProcess
from runnel.testing.store import Ensemble, SimStore
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api
from runnel.wire.kafka.error_codes import ErrorCode

R = TypeVar("R")

LIMIT_S = 60.0
CONFIG = BrokerConfig(kafka=Address("127.0.0.1", 0), http=None, replica_lag_ms=1_000, group_partitions=2)


NOBODY = PartitionImage(BrokerId(-1), Epoch(-1), Epoch(-1), (), ())


class Way(NamedTuple):
    """Of one broker to the store."""

    number: int
    cut_off: set[int]

    def is_cut(self, *, outward: bool) -> bool:
        return self.number in self.cut_off


class Brokers:
    """Brokers 1, 2, ... on one store; one is gone when its session is."""

    def __init__(self, folder: Path, config: BrokerConfig) -> None:
        self._folder = folder
        self._config = config
        self._ensemble = Ensemble()
        self.cut_off: set[int] = set()  # those who can't reach the store; their sessions live on
        self._sessions: dict[int, SimStore] = {}
        self._disks: dict[int, RealDisk] = {}
        self._addresses: dict[int, Address] = {}
        self.up: dict[int, Server] = {}
        self.fatal: list[BaseException] = []

    async def start(self, number: int, rack: str = "", **topic: Any) -> None:
        """`topic`: where its [topic] defaults are other ones than those of the others."""
        disk = self._disks[number] = RealDisk(str(self._folder / str(number)))

        async def open_store() -> Store:
            store = self._sessions[number] = await self._ensemble.open(Way(number, self.cut_off))
            return store

        machine = Machine(disk, SystemClock(), SystemRng(), open_store)
        address = self._addresses.get(number, self._config.kafka)
        defaults = replace(self._config.topic, **topic)
        config = replace(self._config, broker_id=number, kafka=address, rack=rack, topic=defaults)
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

    @property
    def controller(self) -> BrokerId:
        return next(iter(self.up.values())).broker.image.controller.broker

    def watch_store(self, on_change: Callable[[set[str]], None]) -> None:
        """Be told of the nodes that change."""
        self._ensemble.on_change = on_change

    def client(self) -> Cluster:
        return Cluster([str(server.kafka) for server in self.up.values()], clock=SystemClock(), rng=SystemRng())

    def image(self, topic: str = "t", number: int = 0) -> PartitionImage:
        """The partition as all living brokers see it, once they agree."""
        seen = {server.broker.image.topic_named(topic).partitions[number] for server in self.up.values()}
        return seen.pop() if len(seen) == 1 else NOBODY

    def replica(self, broker: int, topic: str = "t", number: int = 0) -> Partition:
        return self.up[broker].broker.partitions.find_readable(topic, number)


@asynccontextmanager
async def cluster_of(folder: Path, count: int = 3, **settings: Any) -> AsyncIterator[Brokers]:
    brokers = Brokers(folder, replace(CONFIG, **settings))
    async with brokers_of(brokers, dict.fromkeys(range(1, count + 1), "")):
        yield brokers


@asynccontextmanager
async def brokers_of(brokers: Brokers, racks: dict[int, str]) -> AsyncIterator[None]:
    for number, rack in racks.items():
        await brokers.start(number, rack)
    try:
        yield
    finally:
        for number in list(brokers.up):
            await brokers.stop(number)
    assert not brokers.fatal, str(brokers.fatal[0])


def run(main: Coroutine[Any, Any, None]) -> None:
    """On the loop that brokers use: asyncio's own leaves connections open that come just when a broker ends."""
    uvloop.run(asyncio.wait_for(main, LIMIT_S))


async def eventually(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.01)


async def create(brokers: Brokers, *, replicas: int = 3, partitions: int = 1, **config: str) -> None:
    async with brokers.client() as cluster:
        settings = {key.replace("_", "."): value for key, value in config.items()}
        await Admin(cluster).create_topics([NewTopic("t", partitions, replicas, config=settings)])
    await eventually(lambda: all("t" in server.broker.image.names for server in brokers.up.values()))


async def create_on(brokers: Brokers, *replicas: int, **config: str) -> None:
    """A topic whose one partition lies on these brokers, the first one leading."""
    controller = brokers.up[brokers.controller].broker.metadata
    settings = {key.replace("_", "."): value for key, value in config.items()}
    on = [BrokerId(replica) for replica in replicas]
    [topic] = await controller.create_topics([NewSpec("t", assignment={0: on}, config=settings)])
    assert not isinstance(topic, RunnelError)
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


async def fetch(
    brokers: Brokers, broker: int, *, offset: int, rack: str = "", version: int = 12, bytes_max: int = 1_000
) -> m.FetchResponse.PartitionData:
    request = m.FetchRequest(
        replica_id=-1, max_wait_ms=1, min_bytes=1, max_bytes=1_000_000, rack_id=rack, session_epoch=-1,
        topics=[
            m.FetchRequest.FetchTopic(
                topic="t",
                partitions=[
                    m.FetchRequest.FetchPartition(
                        partition=0, fetch_offset=offset, partition_max_bytes=bytes_max, current_leader_epoch=-1,
                        last_fetched_epoch=-1,
                    )
                ],
            )
        ],
    )  # fmt: skip
    answer = await ask(brokers, broker, Api.FETCH, request, m.FetchResponse, version)
    return answer.responses[0].partitions[0]


async def pose(brokers: Brokers, replica: int, epoch: int, offset: int) -> int:
    """The leader's answer to a client that fetches as if it were a replica which holds all below `offset`."""
    placed, topic = brokers.image(), brokers.up[brokers.image().leader].broker.image.topic_named("t")
    log = brokers.replica(placed.leader).log
    request = m.FetchRequest(
        replica_state=m.FetchRequest.ReplicaState(replica_id=replica, replica_epoch=epoch),
        max_wait_ms=1, min_bytes=0, max_bytes=1_000_000, session_epoch=0,
        topics=[
            m.FetchRequest.FetchTopic(
                topic_id=topic.id,
                partitions=[
                    m.FetchRequest.FetchPartition(
                        partition=0, fetch_offset=offset, partition_max_bytes=1_000,
                        current_leader_epoch=placed.leader_epoch, last_fetched_epoch=log.epochs.latest,
                    )
                ],
            )
        ],
    )  # fmt: skip
    return (await ask(brokers, placed.leader, Api.FETCH, request, m.FetchResponse, 15)).error_code


async def end_of(brokers: Brokers, broker: int) -> int:
    """The error of who asks for the end."""
    asked = m.ListOffsetsRequest.ListOffsetsPartition(partition_index=0, current_leader_epoch=-1, timestamp=-1)
    request = m.ListOffsetsRequest(topics=[m.ListOffsetsRequest.ListOffsetsTopic(name="t", partitions=[asked])])
    answer = await ask(brokers, broker, Api.LIST_OFFSETS, request, m.ListOffsetsResponse, 7)
    return answer.topics[0].partitions[0].error_code


async def ask(brokers: Brokers, broker: int, api: Api, request: Any, reply: type[R], version: int) -> R:
    address = brokers.up[broker].kafka
    connection = await connect(address.host, address.port, timeout_ms=5_000)
    try:
        return await connection.ask(api, request, reply, timeout_ms=5_000, version=version)
    finally:
        connection.close()


def values_of(answer: m.FetchResponse.PartitionData) -> list[records.Record]:
    data, found = memoryview(answer.records or b""), []
    while data:
        size = read_header(data).size
        found += list(records.decode(data[:size]))
        data = data[size:]
    return found


async def read_through(brokers: Brokers, broker: int) -> None:
    """Read each offset until one can't be read."""
    answers = [await fetch(brokers, broker, offset=offset) for offset in range(20)]
    assert any(answer.error_code for answer in answers)


def rot(folder: Path) -> None:
    """Turn one byte in the middle of the only segment."""
    [path] = folder.glob("*.log")
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


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


def test_a_client_that_poses_as_a_replica_commits_nothing(tmp_path: Path) -> None:
    """An acknowledgement used to count copies that a client claimed to have, under an epoch that no broker has."""

    async def main() -> None:
        async with cluster_of(tmp_path, replica_lag_ms=60_000) as brokers:
            await create(brokers, min_insync_replicas="2")
            await produce(brokers, b"a")
            leader = brokers.image().leader
            followers = [broker for broker in brokers.up if broker != leader]
            for follower in followers:
                await brokers.up[follower].broker._replication.close()
            async with brokers.client() as cluster:
                await raw_produce(cluster, leader, b"b", acks=1)
            for replica in (*followers, 77):
                for epoch in (2**62, -1):
                    assert await pose(brokers, replica, epoch, 2) == ErrorCode.STALE_BROKER_EPOCH
            assert brokers.replica(leader).high_watermark == 1

    run(main())


def test_a_client_that_poses_as_a_replica_does_not_shut_it_out(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, replica_lag_ms=60_000) as brokers:
            await create(brokers, min_insync_replicas="2")
            await produce(brokers, b"a")
            leader = brokers.image().leader
            for follower in brokers.image().replicas:
                if follower != leader:
                    await pose(brokers, follower, 2**62, 0)
            await produce(brokers, b"b")
            held_by = brokers.replica(leader).progress.held_by
            await eventually(lambda: all(held_by(replica) == 2 for replica in brokers.image().replicas))

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


def test_what_was_acknowledged_outlives_a_minimum_that_differs_from_broker_to_broker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The middle of a change of settings, broker by broker: the controller asks for two in sync, the leader for one."""

    async def main() -> None:
        async with cluster_of(tmp_path, topic=TopicConfig(min_insync_replicas=2)) as brokers:
            leader, follower = sorted({1, 2, 3} - {brokers.controller})
            await brokers.stop(leader)
            await brokers.start(leader, min_insync_replicas=1)
            await create_on(brokers, leader, follower)
            await produce(brokers, b"a")
            await brokers.kill(follower)
            await eventually(lambda: brokers.image().isr == (leader,))
            assert brokers.image().elr == (follower,)
            async with brokers.client() as cluster:
                with pytest.raises(NotEnoughReplicas):
                    await raw_produce(cluster, leader, b"b")
            assert "t-0 has 1 replicas in sync, enough for this broker, not for the controller" in caplog.text
            with pytest.raises(NotEnoughReplicas, match=rf"controller.*\[{follower}\].*min.insync.replicas"):
                brokers.replica(leader).must_have_enough()
            await brokers.kill(leader)
            await brokers.start(follower)
            await eventually(lambda: brokers.image().leader == follower)  # from the ELR: it has all that was told
            await brokers.start(leader)
            await produce(brokers, b"c")
            assert await read(brokers, 2) == [b"a", b"c"]

    run(main())


def test_a_minimum_that_is_set_for_all_lets_a_leader_go_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, topic=TopicConfig(min_insync_replicas=2)) as brokers:
            leader, follower = sorted({1, 2, 3} - {brokers.controller})
            await create_on(brokers, leader, follower)
            await brokers.kill(follower)
            await eventually(lambda: brokers.image().elr == (follower,))
            async with brokers.client() as cluster:
                await Admin(cluster).alter_broker_config(None, set_={"min.insync.replicas": "1"})
            await eventually(lambda: brokers.image().elr == ())
            await produce(brokers, b"a")
            assert await read(brokers, 1) == [b"a"]

    run(main())


def test_a_partition_whose_end_nobody_knows_keeps_nobody_from_seeing_the_others(tmp_path: Path) -> None:
    """Elected from the ELR, alone and below its minimum: it can't say what is committed until others are back."""

    async def main() -> None:
        async with cluster_of(tmp_path) as brokers:
            leader, follower = sorted({1, 2, 3} - {brokers.controller})
            await create_on(brokers, leader, follower, min_insync_replicas="2")
            await produce(brokers, b"a")
            await brokers.kill(follower)
            await eventually(lambda: brokers.image().elr == (follower,))
            await brokers.kill(leader)
            await brokers.start(follower)
            await eventually(lambda: brokers.image().leader == follower)
            async with brokers.client() as cluster:
                await Admin(cluster).create_topics([NewTopic("other", 4, 1)])
                other = [TopicPartition("other", number) for number in range(4)]
                known = await known_bounds(cluster, [TopicPartition("t", 0), *other])
            assert known == dict.fromkeys(other, Bounds(0, 0))

    run(main())


def test_an_unclean_election_is_counted_where_somebody_looks(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as brokers:
            controller = brokers.controller
            leader, follower = sorted({1, 2, 3} - {controller})
            await create_on(brokers, leader, follower, unclean_leader_election_enable="true")
            assert await measured(brokers, controller, "unclean_elections") == 0
            await brokers.kill(follower)
            await eventually(lambda: brokers.image().isr == (leader,))
            await produce(brokers, b"only on the leader")
            await brokers.kill(leader)
            await brokers.start(follower)
            await eventually(lambda: brokers.image().leader == follower)
            assert await measured(brokers, controller, "unclean_elections") == 1

    run(main())


async def measured(brokers: Brokers, broker: int, name: str) -> float:
    return next(each.rows[()] for each in await measures(brokers.up[broker].broker) if each.name == name)


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


def test_what_a_broker_hands_on_is_not_handed_on_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, 2) as brokers:
            controller = brokers.up[1].broker.image.controller.broker
            other = brokers.up[3 - controller].kafka
            connection = await connect(other.host, other.port, client_id="runnel-broker-7", timeout_ms=5_000)
            request = m.CreateTopicsRequest(topics=[m.CreateTopicsRequest.CreatableTopic(name="t", num_partitions=1)])
            answer = await connection.ask(Api.CREATE_TOPICS, request, m.CreateTopicsResponse, timeout_ms=5_000)
            assert answer.topics[0].error_code == ErrorCode.NOT_CONTROLLER
            connection.close()

    run(main())


def test_any_broker_appends_to_what_another_leads(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as brokers:
            await create(brokers, replicas=1)
            [leader] = brokers.image().replicas
            key = brokers.replica(leader).key
            for number, server in brokers.up.items():
                batch = memoryview(records.encode([records.Record(Offset(0), 1_000, None, b"%d" % number, ())]))
                produced = await server.broker.forward_produce(key, batch, -1, 5_000)
                assert produced.base_offset == number - 1
            assert await read(brokers, 3) == [b"1", b"2", b"3"]
            await brokers.kill(leader)
            await eventually(lambda: brokers.image().leader == -1)
            other = next(iter(brokers.up.values()))
            with pytest.raises(RetriableError):
                await other.broker.forward_produce(key, batch, -1, 200)

    run(main())


def test_a_topic_that_is_quite_new_can_be_written_to(tmp_path: Path) -> None:
    """It is decided that there is such a topic; the brokers that lead it may not have heard of it yet."""

    async def main() -> None:
        async with cluster_of(tmp_path) as brokers:
            await create(brokers)
            controller = brokers.up[brokers.up[1].broker.metadata.image.controller.broker].broker
            [topic] = await controller.metadata.create_topics([NewSpec("new", 3, 1)])
            assert not isinstance(topic, RunnelError)
            batch = memoryview(records.encode([records.Record(Offset(0), 1_000, None, b"x", ())]))
            keys = [PartitionKey(topic.id, number) for number in range(3)]
            told = await asyncio.gather(
                *(controller.forward_produce(key, batch, -1, 30_000) for key in keys),
                *(controller.once.append(topic.id, n, [OnceMessage("a", None, b"y", [], 1_000)]) for n in range(3)),
            )
            assert len(told) == 6

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


def test_readers_are_sent_to_a_follower_in_their_rack(tmp_path: Path) -> None:
    async def main() -> None:
        brokers = Brokers(tmp_path, CONFIG)
        async with brokers_of(brokers, {1: "a", 2: "b"}):
            await create(brokers, replicas=2)
            await produce(brokers, b"1", b"2")
            leader = brokers.image().leader
            follower, rack = (2, "b") if leader == 1 else (1, "a")
            await eventually(lambda: brokers.replica(follower).high_watermark == 2)
            near = await fetch(brokers, leader, offset=0, rack=rack)
            assert (near.preferred_read_replica, bytes(near.records or b"")) == (follower, b"")
            there = await fetch(brokers, follower, offset=0, rack=rack)
            assert (there.error_code, there.preferred_read_replica, there.high_watermark) == (0, -1, 2)
            assert [row.value for row in values_of(there)] == [b"1", b"2"]
            # Nobody is near a reader without a rack, or in the leader's own.
            for elsewhere in ("", "a" if rack == "b" else "b", "c"):
                here = await fetch(brokers, leader, offset=0, rack=elsewhere)
                assert (here.preferred_read_replica, len(values_of(here))) == (-1, 2)
            # Who does not know of KIP-392 is told to find the leader.
            old = await fetch(brokers, follower, offset=0, version=10)
            assert old.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER

    run(main())


def test_only_a_leader_says_that_an_offset_is_out_of_range(tmp_path: Path) -> None:
    """A follower may have heard nothing of its leader yet: the reader would begin again at the start."""

    async def main() -> None:
        async with cluster_of(tmp_path, 2) as brokers:
            await create(brokers, replicas=2)
            await produce(brokers, b"1", b"2")
            follower = next(broker for broker in brokers.up if broker != brokers.image().leader)
            await eventually(lambda: brokers.replica(follower).high_watermark == 2)
            ahead = await fetch(brokers, follower, offset=4)
            assert ahead.error_code == ErrorCode.OFFSET_NOT_AVAILABLE
            beyond = await fetch(brokers, brokers.image().leader, offset=4)
            assert beyond.error_code == ErrorCode.OFFSET_OUT_OF_RANGE

    run(main())


def test_a_moved_replica_is_copied_and_its_old_place_is_removed(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as brokers:
            await create(brokers, replicas=1)
            await produce(brokers, b"1", b"2")
            [source] = brokers.image().replicas
            target = next(broker for broker in brokers.up if broker != source)
            folder = tmp_path / str(source) / "partitions" / str(brokers.replica(source).key)
            controller = brokers.up[brokers.up[1].broker.image.controller.broker].broker.metadata
            [moved] = await controller.reassign([Move("t", 0, (BrokerId(target),))])
            assert not isinstance(moved, RunnelError)
            await eventually(lambda: brokers.image().replicas == (target,))
            await produce(brokers, b"3")
            assert await read(brokers, 3) == [b"1", b"2", b"3"]
            await eventually(lambda: not folder.exists())

    run(main())


def test_a_copy_that_rots_is_fetched_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as brokers:
            await create(brokers)
            sent = [b"%d" % number * 100 for number in range(20)]
            for value in sent:
                await produce(brokers, value)
            await eventually(lambda: all(brokers.replica(n).high_watermark == 20 for n in brokers.up))
            leader = brokers.image().leader
            rot(tmp_path / str(leader) / "partitions" / str(brokers.replica(leader).key))
            await read_through(brokers, leader)
            await eventually(lambda: brokers.image().leader not in (leader, -1))
            await eventually(lambda: leader in brokers.image().isr)
            assert not brokers.replica(leader).log.damage
            await eventually(lambda: brokers.replica(leader).high_watermark == 20)
            again = await fetch(brokers, leader, offset=0, bytes_max=100_000)
            assert [row.value for row in values_of(again)] == sent

    run(main())


def test_a_copy_that_rots_on_a_follower_is_fetched_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as brokers:
            await create(brokers)
            sent = [b"%d" % number * 100 for number in range(20)]
            for value in sent:
                await produce(brokers, value)
            follower = next(broker for broker in brokers.up if broker != brokers.image().leader)
            await eventually(lambda: brokers.replica(follower).high_watermark == 20)
            rot(tmp_path / str(follower) / "partitions" / str(brokers.replica(follower).key))
            epoch = brokers.image().epoch
            await read_through(brokers, follower)
            await eventually(lambda: brokers.image().epoch >= epoch + 2 and len(brokers.image().isr) == 3)
            assert not brokers.replica(follower).log.damage
            await eventually(lambda: brokers.replica(follower).high_watermark == 20)
            again = await fetch(brokers, follower, offset=0, bytes_max=100_000)
            assert [row.value for row in values_of(again)] == sent

    run(main())


def test_a_start_that_moved_moves_on_followers_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, 2) as brokers:
            await create(brokers, replicas=2)
            await produce(brokers, b"1", b"2", b"3")
            leader = brokers.image().leader
            await brokers.replica(leader).log.advance_start(2)
            await eventually(lambda: brokers.replica(3 - leader).log.start_offset == 2)

    run(main())


def test_a_new_leader_does_not_say_where_the_end_is_before_it_knows(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, 2) as brokers:
            await create(brokers, replicas=2, min_insync_replicas="2")
            await produce(brokers, b"1")
            leader = brokers.image().leader
            await brokers.kill(3 - leader)
            await brokers.kill(leader)
            await brokers.start(leader)  # alone it can't know what was committed
            await eventually(lambda: brokers.image().leader == leader)
            assert await end_of(brokers, leader) == ErrorCode.OFFSET_NOT_AVAILABLE
            await brokers.start(3 - leader)
            await eventually(lambda: brokers.replica(leader).high_watermark == 1)
            assert await end_of(brokers, leader) == 0

    run(main())


def test_real_brokers_lose_nothing_when_a_leader_is_killed(zookeeper: real.ZooKeeper, tmp_path: Path) -> None:
    settings = {
        "RUNNEL_STORE": f"zookeeper://{zookeeper.address}{tmp_path}",
        "RUNNEL_SESSION_MS": "2000",
        "RUNNEL_REPLICA_LAG_MS": "2000",
    }
    with ExitStack() as stack:
        brokers = {
            number: stack.enter_context(
                BrokerProcess(tmp_path / str(number), "--broker-id", str(number), environment=settings)
            )
            for number in (1, 2, 3)
        }
        bootstrap: dict[str, Any] = {
            "bootstrap.servers": ",".join(broker.kafka for broker in brokers.values()),
            "log_level": 0,
        }
        admin = AdminClient(bootstrap)
        topic = KafkaTopic("t", 1, 3, config={"min.insync.replicas": "2"})
        admin.create_topics([topic])["t"].result(LIMIT_S)
        acked: list[bytes | None] = []
        producer = KafkaProducer({**bootstrap, "enable.idempotence": True, "linger.ms": 1})

        def send(numbers: range) -> None:
            for number in numbers:
                producer.produce(
                    "t", b"%d" % number, partition=0,
                    on_delivery=lambda error, message: acked.append(message.value()) if error is None else None,
                )  # fmt: skip
                producer.poll(0)

        send(range(300))
        while len(acked) < 100:
            producer.poll(0.1)
        leader = admin.list_topics("t", LIMIT_S).topics["t"].partitions[0].leader
        brokers[leader].kill()
        send(range(300, 600))
        assert producer.flush(LIMIT_S) == 0
        assert acked == [b"%d" % number for number in range(600)]
        consumer = KafkaConsumer({**bootstrap, "group.id": "g"})
        consumer.assign([KafkaPartition("t", 0, 0)])
        found: list[bytes | None] = []
        while len(found) < 600:
            found += [message.value() for message in consumer.consume(600, 0.5)]
        consumer.close()
        assert found == acked
        brokers[leader].start()
        while len(admin.list_topics("t", LIMIT_S).topics["t"].partitions[0].isrs) < 3:
            time.sleep(0.05)


def test_a_broker_whose_session_ends_while_it_starts_begins_again(tmp_path: Path) -> None:
    """It had its place already: nothing is wrong with its settings, and nobody has to start it again."""

    async def work() -> None:
        ensemble = Ensemble()
        ending = server_module._Ending()
        expired: list[int] = []

        def expire_once(touched: set[str]) -> None:
            if not expired and broker_path(BrokerId(1)) in touched:
                expired.append(max(ensemble.sessions))
                asyncio.get_running_loop().call_soon(ensemble.expire, expired[0])

        ensemble.on_change = expire_once
        machine = Machine(RealDisk(str(tmp_path)), SystemClock(), SystemRng(), ensemble.open)
        lives: list[Server] = []

        def ready(server: Server) -> None:
            lives.append(server)
            ending.stop()

        code = await asyncio.wait_for(server_module._live(CONFIG, machine, ending, ready), LIMIT_S)
        assert (code, len(lives), len(expired)) == (0, 1, 1)

    asyncio.run(work())
