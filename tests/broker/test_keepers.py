"""What is kept with keepers survives both sides' failures, and nobody writes who was replaced."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from tests.client.talk import talk
from tests.test_replication import Brokers, cluster_of, create, eventually, run

from runnel.broker import internal
from runnel.broker.internal import QUEUES
from runnel.broker.keepers import Keepers
from runnel.broker.shard import Shard
from runnel.broker.shards import shard_number
from runnel.client.admin import Admin, NewTopic
from runnel.client.calls import call, call_until_done
from runnel.client.cluster import Cluster
from runnel.cluster.image import Partition as PartitionImage
from runnel.model.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    FencedEpoch,
    InvalidRequest,
    InvalidTopicName,
    NotLeader,
    RunnelError,
    UnknownTopicId,
)
from runnel.model.ids import Millis, PartitionKey, TopicId
from runnel.model.internal_calls import (
    KEEPER_OPEN,
    KEEPER_WRITE,
    MAKE_INTERNAL,
    KeeperOpen,
    KeeperWrite,
    Kept,
    MakeInternal,
)
from runnel.model.limits import MIB
from runnel.model.step import Reply, Step
from runnel.queues.keeper import owner_name
from runnel.replica.partition import Partition
from runnel.shell.clock import SystemClock
from runnel.testing.process import BrokerProcess


class Sum:
    """A machine that adds numbers up."""

    loads = 0

    def __init__(self) -> None:
        self.total = 0

    def replay(self, key: bytes, value: bytes | None) -> None:
        self.total = msgspec.msgpack.decode(value or b"\x00", type=int)

    def wake(self, view: None, now_ms: Millis, wall_ms: Millis) -> Step:
        Sum.loads += 1
        return Step()

    def tick(self, now_ms: Millis, view: None, wall_ms: Millis) -> Step:
        return Step()

    def next_deadline_ms(self) -> Millis | None:
        return None

    def add(self, number: int, ticket: object, view: None, now_ms: Millis, wall_ms: Millis) -> Step:
        self.total += number
        return Step([(b"total", msgspec.msgpack.encode(self.total))], [Reply(ticket, self.total)])


class Rig:
    """A queue, whose state over partition 0 of t is with a keeper."""

    def __init__(self, brokers: Brokers, queue: str = "q") -> None:
        self.brokers = brokers
        self.queue = queue

    def leader(self) -> int:
        return self.brokers.image().leader

    def partition(self) -> Partition:
        return self.brokers.replica(self.leader())

    def owner(self) -> str:
        return owner_name(self.queue, self.partition().key)

    def keeper(self) -> PartitionImage:
        count = len(next(iter(self.brokers.up.values())).broker.image.topic_named(QUEUES).partitions)
        return self.brokers.image(QUEUES, shard_number(self.owner(), count))

    async def open(self) -> Shard[Any]:
        """On the partition's leader, when the state is read there."""
        keepers = self.brokers.up[self.leader()].broker.keepers
        shard: Shard[Any] = Shard(keepers.journal(self.queue, self.partition()), Sum, lambda: None, SystemClock())
        await shard.load()
        return shard


async def kept_elsewhere(brokers: Brokers) -> Rig:
    """A queue whose keeper is another broker than the partition's leader."""
    await brokers.up[1].broker.internal_topics.make(QUEUES)
    await eventually(lambda: all(QUEUES in server.broker.image.names for server in brokers.up.values()))
    rigs = [Rig(brokers, f"q{number}") for number in range(20)]
    return next(rig for rig in rigs if rig.keeper().leader != rig.leader())


async def patiently(work: Callable[[], Any]) -> Any:
    while True:
        try:
            return await work()
        except CoordinatorLoading:
            await asyncio.sleep(0.01)


def test_what_was_kept_survives_the_keeper_and_the_leader(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, queue_partitions=4) as brokers:
            await create(brokers)
            rig = await kept_elsewhere(brokers)
            shard = await rig.open()
            assert [await shard.ask("add", number) for number in (1, 2, 3)] == [1, 3, 6]
            loads, keeper = Sum.loads, rig.keeper().leader
            await brokers.kill(keeper)
            assert await shard.ask("add", 4) == 10
            assert Sum.loads == loads  # a keeper that moved is no reason to throw the state away
            shard.close()
            await brokers.start(keeper)
            await eventually(lambda: len(brokers.image().isr) == 3 == len(rig.keeper().isr))
            await brokers.stop(rig.leader())
            await eventually(lambda: rig.leader() > 0 and rig.keeper().leader > 0)
            shard = await rig.open()
            assert await shard.ask("add", 0) == 10
            shard.close()

    run(main())


def test_a_leader_that_was_replaced_is_refused_and_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Keepers, "_check_epoch", lambda *_: None)  # the keeper has heard of the next leader

    async def main() -> None:
        async with cluster_of(tmp_path, count=2, queue_partitions=4) as brokers:
            await create(brokers, replicas=2)
            rig = Rig(brokers)
            shard = await rig.open()
            await shard.ask("add", 1)
            epoch = rig.partition().leader_epoch
            other = brokers.up[3 - rig.leader()].broker.keepers
            kept = await other.open(KeeperOpen(rig.owner(), epoch + 1))  # as its successor would
            with pytest.raises(NotLeader, match="epoch"):
                await shard.ask("add", 1)
            assert shard.lost
            with pytest.raises(NotLeader):
                await shard.ask("add", 1)
            assert await other.open(KeeperOpen(rig.owner(), epoch + 1, kept.session)) != kept
            assert (await other.open(KeeperOpen(rig.owner(), epoch + 2))).records == kept.records
            late = await rig.open()
            assert late.lost
            assert not late.loaded

    run(main())


def test_every_write_fails_until_the_state_is_read_anew_when_its_outcome_can_not_be_learned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write that arrives late is void, since its owner was opened again."""
    monkeypatch.setattr("runnel.broker.keepers.PATIENCE_S", 0.0)

    async def main() -> None:
        async with cluster_of(tmp_path, count=1) as brokers:
            await create(brokers, replicas=1)
            rig = Rig(brokers)
            shard = await rig.open()
            await shard.ask("add", 1)
            broker = brokers.up[1].broker
            held: list[KeeperWrite] = []

            async def hold(request: KeeperWrite) -> None:
                held.append(request)
                raise NotLeader("no answer")

            with monkeypatch.context() as patched:
                patched.setattr(broker.keepers, "write", hold)
                with pytest.raises(NotLeader, match="no answer"):
                    await shard.ask("add", 10)
            assert await patiently(lambda: shard.ask("add", 2)) == 3
            with pytest.raises(RunnelError, match="opened again"):
                await broker.calls.ask(broker.id, KEEPER_WRITE, held[0])
            assert await shard.ask("add", 0) == 3
            shard.close()

    run(main())


def test_a_queue_that_is_forgotten_starts_from_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, count=2, queue_partitions=4) as brokers:
            await create(brokers, replicas=2)
            rig = Rig(brokers)
            shard = await rig.open()
            await shard.ask("add", 1)
            for server in brokers.up.values():
                assert await server.broker.keepers.forget("another") == 0
            assert await brokers.up[1].broker.keepers.forget("q") == 1
            with pytest.raises(NotLeader, match="deleted"):
                await shard.ask("add", 1)
            again = await rig.open()
            assert await again.ask("add", 5) == 5
            again.close()

    run(main())


def test_what_is_written_over_and_over_is_compacted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(internal.SPECIAL, QUEUES, {"segment.bytes": str(MIB)})

    async def main() -> None:
        async with cluster_of(tmp_path, count=1, queue_partitions=1, housekeeping_ms=100) as brokers:
            await create(brokers, replicas=1)
            rig = Rig(brokers)
            keepers = brokers.up[1].broker.keepers
            journal = keepers.journal("q", rig.partition())
            await journal.read(lambda *_: None)
            for number in range(40):
                await journal.append([(b"mark", b"%d" % number), (b"chunk", bytes(200_000))])
            log = brokers.replica(1, QUEUES).log
            await eventually(lambda: log.size_bytes < 3 * MIB)
            kept: dict[bytes, bytes | None] = {}
            await keepers.journal("q", rig.partition()).read(kept.__setitem__)
            assert kept == {b"mark": b"39", b"chunk": bytes(200_000)}

    run(main())


def test_a_keeper_that_is_killed_has_all_that_it_said_it_kept(tmp_path: Path) -> None:
    async def owner(cluster: Cluster) -> str:
        return owner_name("q", PartitionKey(TopicId((await cluster.topic("t")).id), 0))

    async def write(cluster: Cluster) -> None:
        await Admin(cluster).create_topics([NewTopic("t")])
        await call(cluster, MAKE_INTERNAL, MakeInternal(QUEUES))
        name = await owner(cluster)
        kept = await call_until_done(cluster, KEEPER_OPEN, KeeperOpen(name, 0))
        await call(cluster, KEEPER_WRITE, KeeperWrite(name, 0, kept.session, [(b"k", b"v")]))

    async def read(cluster: Cluster) -> Kept:
        name = await owner(cluster)
        kept = await call_until_done(cluster, KEEPER_OPEN, KeeperOpen(name, 1))
        with pytest.raises(FencedEpoch):
            await call(cluster, KEEPER_OPEN, KeeperOpen(name, 0))
        return kept

    with BrokerProcess(tmp_path / "data") as broker:
        talk(broker.kafka, write)
        broker.kill()
        broker.start()  # and leads in the next epoch
        kept = talk(broker.kafka, read)
    assert (kept.session, kept.records) == (2, [(b"k", b"v")])


def test_an_owner_is_opened_in_no_epoch_that_its_partition_never_had(tmp_path: Path) -> None:
    """Else every leader to come would be taken for one that was replaced."""

    async def main() -> None:
        async with cluster_of(tmp_path, count=1) as brokers:
            await create(brokers, replicas=1)
            rig = Rig(brokers)
            shard = await rig.open()
            await shard.ask("add", 1)
            broker, key = brokers.up[1].broker, rig.partition().key
            nobody = PartitionKey(TopicId(UUID(int=9)), 0)
            for owner, epoch, error in (
                (rig.owner(), rig.partition().leader_epoch + 1, CoordinatorNotAvailable),
                (owner_name("q", PartitionKey(key.topic_id, 1)), 0, CoordinatorNotAvailable),
                (owner_name("q", nobody), 0, UnknownTopicId),
                ("p0", 1 << 40, InvalidRequest),
            ):
                with pytest.raises(error):
                    await broker.calls.ask(broker.id, KEEPER_OPEN, KeeperOpen(owner, epoch))
            assert await shard.ask("add", 1) == 2
            shard.close()

    run(main())


def test_the_topic_is_compacted_and_no_other_is_made_that_way(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, count=2, queue_partitions=4) as brokers:
            for server in brokers.up.values():
                await server.broker.internal_topics.make(QUEUES)
                with pytest.raises(InvalidTopicName):
                    await server.broker.internal_topics.make("mine")
            image = brokers.up[1].broker.image
            topic = image.topic_named(QUEUES)
            assert len(topic.partitions) == 4
            assert topic.config["cleanup.policy"] == "compact"

    run(main())
