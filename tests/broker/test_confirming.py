"""Who says what only the newest may say has asked the store first."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace
from tests.test_replication import Brokers, cluster_of, create, eventually, run

from runnel.broker import confirming
from runnel.broker.broker import Broker
from runnel.broker.confirming import Confirming
from runnel.client.admin import Admin, NewTopic
from runnel.cluster.image import Change, Partition, Topic
from runnel.cluster.nodes import broker_path
from runnel.cluster.store import StoreDamaged, StoreUnavailable
from runnel.groups.values import CommitOffsets, FetchOffsets, OffsetToCommit
from runnel.model.errors import NotCoordinator, RetriableError
from runnel.model.ids import BrokerId, Epoch, Offset, PartitionKey, TopicId
from runnel.replica.partition import Partition as Replica

ME = BrokerId(1)
KEY = PartitionKey(TopicId(UUID(int=3)), 1)


def led_in(epoch: int) -> Topic:
    """The topic, its second partition in this epoch."""
    first = Partition(ME, Epoch(70), Epoch(0), (ME,), (ME,))
    return Topic(KEY.topic_id, "offsets", (first, replace(first, leader_epoch=Epoch(epoch))))


class Store:
    """Tells the topic that it has when it is asked, when it is let."""

    def __init__(self) -> None:
        self.topic: Topic | None = led_in(3)
        self.error: Exception | None = None
        self.asked = 0
        self.open = asyncio.Event()
        self.open.set()
        self.fatal: list[BaseException] = []
        self.confirming = Confirming(self.newest, self.fatal.append)

    async def newest(self) -> Topic | None:
        self.asked += 1
        topic, error = self.topic, self.error
        await self.open.wait()
        if error is not None:
            raise error
        return topic

    async def confirm(self, epoch: int = 3) -> None:
        await self.confirming.confirm(KEY, Epoch(epoch))


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_nobody_is_confirmed_whose_epoch_is_over() -> None:
    async def scenario() -> None:
        store = Store()
        await store.confirm(3)
        await store.confirm(4)  # the broker has heard of it already
        with pytest.raises(NotCoordinator, match="another coordinator"):
            await store.confirm(2)

    run(scenario())


@pytest.mark.parametrize("now", [None, replace(led_in(3), id=TopicId(UUID(int=4)))])
def test_nobody_is_confirmed_whose_topic_is_gone(now: Topic | None) -> None:
    async def scenario() -> None:
        store = Store()
        store.topic = now
        with pytest.raises(NotCoordinator):
            await store.confirm()

    run(scenario())


def test_whoever_asks_while_the_store_is_asked_gets_the_answer_of_the_next_question() -> None:
    async def scenario() -> None:
        store = Store()
        store.open.clear()
        first = asyncio.ensure_future(store.confirm())
        await turns()
        store.topic = led_in(4)  # decided before the others ask
        others = [asyncio.ensure_future(store.confirm()) for _ in range(50)]
        await turns()
        store.open.set()
        await first
        refused = await asyncio.gather(*others, return_exceptions=True)
        assert {type(error) for error in refused} == {NotCoordinator}, "the first answer is too old for them"
        assert store.asked == 2

    run(scenario())


def test_where_the_store_cannot_be_asked_nothing_is_confirmed() -> None:
    async def scenario() -> None:
        store = Store()
        store.error = StoreUnavailable("cut off")
        with pytest.raises(NotCoordinator, match="cut off"):
            await store.confirm()
        store.error = None
        await store.confirm()
        assert not store.fatal

    run(scenario())


def test_a_store_that_does_not_answer_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        store = Store()
        store.open.clear()
        monkeypatch.setattr(confirming, "TIMEOUT_S", 0.01)
        with pytest.raises(NotCoordinator):
            await store.confirm()
        monkeypatch.setattr(confirming, "TIMEOUT_S", 30.0)
        store.open.set()
        await store.confirm()

    run(scenario())


def test_a_damaged_store_ends_the_broker_and_keeps_nobody_waiting() -> None:
    async def scenario() -> None:
        store = Store()
        store.open.clear()
        store.error = StoreDamaged("not to be read")
        first = asyncio.ensure_future(store.confirm())
        await turns()
        store.error = None
        others = [asyncio.ensure_future(store.confirm()) for _ in range(2)]
        await turns()
        store.open.set()
        with pytest.raises(StoreDamaged):
            await first
        await asyncio.gather(*others)
        await store.confirm()
        assert [str(error) for error in store.fatal] == ["not to be read"]

    run(scenario())


def test_one_who_goes_away_takes_the_answer_from_nobody() -> None:
    async def scenario() -> None:
        store = Store()
        store.open.clear()
        gone, stays = (asyncio.ensure_future(store.confirm()) for _ in range(2))
        await turns()
        gone.cancel()
        await turns()
        store.open.set()
        await stays

    run(scenario())


# --- whole brokers


class Group:
    """A group whose coordinator is not the controller, which has to replace it."""

    def __init__(self, brokers: Brokers) -> None:
        self._brokers = brokers
        some = self.broker(1)
        self.key = PartitionKey(some.image.topic_named("t").id, 0)
        names = (f"g{number}" for number in range(1_000))
        self.name = next(name for name in names if self._leader(name) != some.image.controller.broker)
        self.old = self.broker(self._leader(self.name))

    def broker(self, number: int) -> Broker:
        return self._brokers.up[number].broker

    def _leader(self, name: str) -> BrokerId:
        return self.broker(1).groups.shards.leader_of(name).id

    async def commit(self, broker: Broker, offset: int) -> None:
        """Return when it is acknowledged."""
        request = CommitOffsets(self.name, "", -1, (OffsetToCommit(self.key, Offset(offset)),))
        while True:
            try:
                assert (await broker.groups.commit_offsets(request)).errors == (None,)
                return
            except RetriableError:
                await asyncio.sleep(0.01)

    async def told_by(self, broker: Broker) -> int:
        [found] = (await broker.groups.fetch_offsets(FetchOffsets(self.name, (self.key,)))).offsets
        return found.offset

    async def replace(self) -> Broker:
        """Let the coordinator say that it will stop; who coordinates then, as far as the controller knows."""
        leaving = asyncio.ensure_future(self.old.metadata.leave(60))
        controller = self.broker(self.old.image.controller.broker)
        await eventually(lambda: controller.groups.shards.leader_of(self.name).id != self.old.id)
        self._leaving = leaving  # done when it can reach the store again
        return self.broker(controller.groups.shards.leader_of(self.name).id)


async def group_on(brokers: Brokers) -> Group:
    await create(brokers)
    await brokers.up[1].broker.find_coordinator("g")
    await eventually(lambda: all("__consumer_offsets" in server.broker.image.names for server in brokers.up.values()))
    group = Group(brokers)
    await group.commit(group.old, 1)
    assert await group.told_by(group.old) == 1
    return group


def believes_to_coordinate(group: Group) -> bool:
    return group.old.groups.shards.of(group.name).loaded


def test_a_coordinator_that_was_replaced_and_cannot_hear_of_it_tells_no_old_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that it will stop, and is cut off from the store before it hears who coordinates instead."""

    async def main() -> None:
        async with cluster_of(tmp_path, group_partitions=3) as brokers:
            group = await group_on(brokers)
            with cut_off_when_it_says_something(brokers, group.old):
                new = await group.replace()
                await group.commit(new, 2)
                assert believes_to_coordinate(group)
                monkeypatch.setattr(confirming, "TIMEOUT_S", 0.1)
                with pytest.raises(NotCoordinator, match="could not be found out"):
                    await group.told_by(group.old)
                monkeypatch.undo()
                assert await group.told_by(new) == 2

    run(main())


def test_a_coordinator_that_is_busy_with_other_partitions_tells_offsets_until_it_is_replaced(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, group_partitions=3) as brokers:
            group = await group_on(brokers)
            with held_up(group.old):
                async with brokers.client() as cluster:
                    await Admin(cluster).create_topics([NewTopic("other", 1, 3)])
                await eventually(lambda: "other" in group.old.metadata.image.names)
                assert "other" not in group.old.image.names
                assert await group.told_by(group.old) == 1
                new = await group.replace()
                await group.commit(new, 2)
                assert believes_to_coordinate(group)
                with pytest.raises(NotCoordinator, match="another coordinator"):
                    await group.told_by(group.old)
                assert await group.told_by(new) == 2

    run(main())


@contextmanager
def cut_off_when_it_says_something(brokers: Brokers, broker: Broker) -> Iterator[None]:
    """From the store, as soon as its own node there changes."""

    def changed(touched: set[str]) -> None:
        if broker_path(broker.id) in touched:
            brokers.cut_off.add(broker.id)

    brokers.watch_store(changed)
    try:
        yield
    finally:
        brokers.watch_store(lambda _: None)
        brokers.cut_off.clear()


@contextmanager
def held_up(broker: Broker) -> Iterator[None]:
    """It does nothing that the metadata says."""
    go_on = asyncio.Event()
    follow = broker.partitions.follow

    async def held(change: Change) -> list[Replica]:
        await go_on.wait()
        return await follow(change)

    broker.partitions.follow = held  # type: ignore[method-assign]
    try:
        yield
    finally:
        go_on.set()
