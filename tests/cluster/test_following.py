"""Many brokers, one set of metadata: they follow each other, and one of them decides. With a real ZooKeeper."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from runnel.cluster import nodes
from runnel.cluster.image import Broker, Change, Delta, Endpoint, Image, Topic, diff
from runnel.cluster.membership import Identity
from runnel.cluster.metadata import Metadata
from runnel.cluster.store import Conflict, Create, Delete, Set
from runnel.cluster.topic_rules import NewTopic
from runnel.cluster.zookeeper import ZooKeeper
from runnel.model.errors import BrokerIdInUse, NotController
from runnel.model.ids import BrokerId
from runnel.testing import zookeeper as real
from runnel.testing.clock import SeededRng

LIMIT_S = 60.0


class Cluster:
    """Brokers of one cluster, each with a session of its own, in one process."""

    def __init__(self, address: str, chroot: str) -> None:
        self._address = address
        self._chroot = chroot
        self._count = 0
        self.stores: dict[Metadata, ZooKeeper] = {}

    async def join(self, number: int, session_ms: int = 30_000) -> Metadata:
        """A broker, once it is admitted."""
        self._count += 1
        store = await self.session(session_ms)
        metadata = await Metadata.open(store, rng=SeededRng(self._count))
        self.stores[metadata] = store
        here = Broker(BrokerId(number), {"kafka": Endpoint("127.0.0.1", 9000 + number)})
        await metadata.register(here, Identity("c", here.id, f"folder {number}"))
        await metadata.ready()
        return metadata

    async def session(self, session_ms: int = 30_000) -> ZooKeeper:
        return await ZooKeeper.open(self._address, self._chroot, session_ms=session_ms)

    async def leave(self, metadata: Metadata) -> None:
        await metadata.close()
        del self.stores[metadata]


@asynccontextmanager
async def cluster(zookeeper: real.ZooKeeper, folder: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(zookeeper.address, str(folder))
    try:
        yield cluster
    finally:
        for metadata in list(cluster.stores):
            await cluster.leave(metadata)


def play(zookeeper: real.ZooKeeper, folder: Path, scene: Callable[[Cluster], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(LIMIT_S), cluster(zookeeper, folder) as brokers:
            await scene(brokers)

    asyncio.run(run())


async def until(metadata: Metadata, holds: Callable[[Image], bool]) -> Image:
    """The first image of which this holds."""
    found: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def look(change: Change) -> None:
        if holds(change.after) and not found.done():
            found.set_result(None)

    end = metadata.subscribe(look)
    if not holds(metadata.image):
        await found
    end()
    return metadata.image


def named(*names: str) -> Callable[[Image], bool]:
    return lambda image: set(names) <= set(image.names)


def test_brokers_see_what_the_controller_does_and_each_other(zookeeper: real.ZooKeeper, tmp_path: Path) -> None:
    async def scene(brokers: Cluster) -> None:
        one = await brokers.join(1)
        changes: list[Change] = []
        one.subscribe(changes.append)
        two, three = await brokers.join(2), await brokers.join(3)
        await until(one, lambda image: len(image.brokers) == 3 and all(b.serving for b in image.brokers.values()))
        assert {metadata.image.controller for metadata in (one, two, three)} == {(1, 1)}
        (made,) = await one.create_topics([NewTopic("t", 6)])
        assert isinstance(made, Topic)
        for other in (two, three):
            image = await until(other, named("t"))
            assert diff(one.image, image) == Delta()
            assert image.version == one.image.version
        assert {partition.leader for partition in made.partitions} == {1, 2, 3}
        await one.delete_topics(["t"])
        await until(two, lambda image: not image.topics and bool(image.deleted))
        for change in changes:
            assert change.before.version <= change.after.version
            assert diff(change.before, change.after) == change.delta

    play(zookeeper, tmp_path, scene)


def test_requests_are_for_the_controller_but_a_broker_speaks_for_itself(
    zookeeper: real.ZooKeeper, tmp_path: Path
) -> None:
    async def scene(brokers: Cluster) -> None:
        one, two = await brokers.join(1), await brokers.join(2)
        with pytest.raises(NotController):
            await two.create_topics([NewTopic("t")])
        await one.create_topics([NewTopic("t", 2)])
        (gone,) = await one.delete_topics(["t"])
        assert isinstance(gone, Topic)
        await until(two, lambda image: bool(image.deleted))
        await asyncio.gather(*(m.data_removed(BrokerId(n), [gone.id]) for n, m in ((1, one), (2, two))))
        await until(one, lambda image: not image.deleted)
        blocks = await asyncio.gather(*(metadata.next_producer_ids() for metadata in (one, two, one, two)))
        assert len({number for block in blocks for number in block}) == 4000

    play(zookeeper, tmp_path, scene)


def test_another_takes_over_when_the_controller_leaves(zookeeper: real.ZooKeeper, tmp_path: Path) -> None:
    async def scene(brokers: Cluster) -> None:
        one, two, three = await brokers.join(1), await brokers.join(2), await brokers.join(3)
        await one.create_topics([NewTopic("before", 3)])
        await brokers.leave(one)
        image = await until(two, lambda image: image.controller.broker in (2, 3) and set(image.brokers) == {2, 3})
        assert image.controller.epoch == 2
        new, other = (two, three) if image.controller.broker == 2 else (three, two)
        await new.create_topics([NewTopic("after")])
        await until(other, named("before", "after"))
        again = await brokers.join(1)
        assert again.image.brokers[BrokerId(1)].epoch == 1
        epochs = {
            partition.leader: partition.leader_epoch for partition in again.image.topic_named("before").partitions
        }
        assert epochs == {1: 2, 2: 0, 3: 0}  # nobody led for an epoch, then who came back leads in a new one

    play(zookeeper, tmp_path, scene)


def test_a_controller_that_slept_changes_nothing(zookeeper: real.ZooKeeper, tmp_path: Path) -> None:
    """It wakes up, still believes that it decides, and its first change meets the epoch of its successor."""

    async def scene(brokers: Cluster) -> None:
        one, two = await brokers.join(1), await brokers.join(2)
        assert one._duties._follower is not None
        one._duties._follower.cancel()  # from here on it hears nothing
        node = await brokers.stores[two].get(nodes.CONTROLLER_PATH)
        assert node is not None
        await brokers.stores[two].multi([Delete(nodes.CONTROLLER_PATH, node.version)])  # as the end of a session does
        await until(two, lambda image: image.controller == (2, 2))
        await two.create_topics([NewTopic("new")])
        assert one.image.controller == (1, 1)

        refused: list[Conflict] = []
        store = brokers.stores[one]
        write = store.multi

        async def seen(ops: "list[Create | Set]") -> None:
            try:
                await write(ops)
            except Conflict as conflict:
                refused.append(conflict)
                raise

        store.multi = seen  # type: ignore[method-assign, assignment]
        for attempt in (one.create_topics([NewTopic("old")]), one.delete_topics(["new"])):
            with pytest.raises(NotController):
                await attempt
        assert [conflict.op.path for conflict in refused] == [nodes.CONTROLLER_EPOCH_PATH]
        assert set(two.image.names) == {"new"}

    play(zookeeper, tmp_path, scene)


def test_a_broker_that_restarts_at_once_replaces_its_earlier_life(zookeeper: real.ZooKeeper, tmp_path: Path) -> None:
    """The old session is still alive: its registration and its place as controller are replaced, never adopted."""

    async def scene(brokers: Cluster) -> None:
        old = await brokers.join(1)
        two = await brokers.join(2)
        await old.create_topics([NewTopic("t", 2)])
        new = await brokers.join(1)
        assert new.image.brokers[BrokerId(1)].epoch == 1
        assert new.image.controller == (1, 2)
        leaders = {part.leader: part.leader_epoch for part in new.image.topic_named("t").partitions}
        assert leaders == {1: 2, 2: 0}
        with pytest.raises(BrokerIdInUse, match="this one has to end"):
            await old.session_lost()
        await brokers.leave(old)
        await new.create_topics([NewTopic("u")])  # the end of the old session took nothing with it
        await until(two, named("u"))
        assert set(two.image.brokers) == {1, 2}

    play(zookeeper, tmp_path, scene)


def test_an_id_that_another_broker_has_is_refused(zookeeper: real.ZooKeeper, tmp_path: Path) -> None:
    async def scene(brokers: Cluster) -> None:
        await brokers.join(1)
        store = await brokers.session()
        second = await Metadata.open(store, rng=SeededRng())
        with pytest.raises(BrokerIdInUse, match="give this one another --broker-id"):
            await second.register(
                Broker(BrokerId(1), {"kafka": Endpoint("elsewhere", 9092)}), Identity("c", BrokerId(1), "d")
            )
        await second.close()

    play(zookeeper, tmp_path, scene)


def test_a_follower_that_is_far_behind_reads_everything(zookeeper: real.ZooKeeper, tmp_path: Path) -> None:
    async def scene(brokers: Cluster) -> None:
        one, two = await brokers.join(1), await brokers.join(2)
        async with two._ledger.turn:  # busy with something else
            for number in range(nodes.RECENT_CHANGES_MAX + 3):
                await one.create_topics([NewTopic(f"t{number}")])
        await until(two, lambda image: image.version == one.image.version)
        assert two.image == one.image

    play(zookeeper, tmp_path, scene)


def test_a_thousand_topics_are_followed(zookeeper: real.ZooKeeper, tmp_path: Path) -> None:
    async def scene(brokers: Cluster) -> None:
        one, two = await brokers.join(1), await brokers.join(2)
        made = await one.create_topics([NewTopic(f"t{number}", 10) for number in range(1000)])
        assert all(isinstance(topic, Topic) for topic in made)
        await until(two, lambda image: len(image.topics) == 1000)
        assert two.image == one.image
        three = await brokers.join(3)
        assert three.image.topics == one.image.topics

    play(zookeeper, tmp_path, scene)


def test_brokers_go_on_when_zookeeper_was_away_for_a_while(zookeeper: real.ZooKeeper, tmp_path: Path) -> None:
    own = real.ZooKeeper(tmp_path)

    async def scene(brokers: Cluster) -> None:
        one, two = await brokers.join(1), await brokers.join(2)
        own.kill()
        making = asyncio.ensure_future(one.create_topics([NewTopic("t")]))
        await asyncio.to_thread(own.start)
        assert isinstance((await making)[0], Topic)
        await until(two, named("t"))
        await one.create_topics([NewTopic("u")])
        await until(two, named("u"))

    with own:
        play(own, Path("/"), scene)


def test_a_broker_learns_that_its_session_is_lost(zookeeper: real.ZooKeeper, tmp_path: Path) -> None:
    own = real.ZooKeeper(tmp_path)

    async def scene(brokers: Cluster) -> None:
        metadata = await brokers.join(1, session_ms=1_000)
        lost = asyncio.ensure_future(metadata.session_lost())
        own.pause()
        await lost
        own.resume()

    with own:
        play(own, Path("/"), scene)
