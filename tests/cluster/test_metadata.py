"""Metadata live: stored before published, in order, whatever the store does in between."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from unittest import mock

import pytest
from msgspec import structs

from runnel.cluster import nodes
from runnel.cluster.config_rules import BrokerResource, ConfigChange, TopicResource
from runnel.cluster.controller import Resource
from runnel.cluster.embedded import Embedded
from runnel.cluster.image import Broker, Change, Endpoint, Image, Topic, diff
from runnel.cluster.membership import Identity
from runnel.cluster.metadata import Metadata, new_uuid, text_of
from runnel.cluster.store import Create, Delete, Node, Op, OutcomeUnknown, Set, Store, StoreDamaged, Watch
from runnel.cluster.topic_rules import Defaults, NewPartitions, NewTopic
from runnel.model.errors import (
    InvalidConfig,
    NotController,
    PolicyViolation,
    RequestTimedOut,
    TopicAlreadyExists,
    UnknownTopic,
)
from runnel.model.ids import BrokerId
from runnel.shell.disk import RealDisk
from runnel.testing.clock import SeededRng

ONE = BrokerId(1)
HERE = Broker(ONE, {"kafka": Endpoint("127.0.0.1", 9092)})
FOLDER = Identity("c", ONE, "d")


class Unsteady:
    """A store between us and the real one, whose multis meet a mishap when told to."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.mishaps: list[Callable[[Sequence[Op]], Awaitable[None]]] = []

    @property
    def session(self) -> int:
        return self.store.session

    async def get(self, path: str) -> Node | None:
        return await self.store.get(path)

    async def get_all(self, paths: Sequence[str]) -> list[Node | None]:
        return await self.store.get_all(paths)

    async def children(self, path: str) -> list[str]:
        return await self.store.children(path)

    async def multi(self, ops: Sequence[Op]) -> None:
        if self.mishaps:
            await self.mishaps.pop(0)(ops)
        await self.store.multi(ops)

    async def watch(self, path: str) -> Watch:
        return await self.store.watch(path)

    async def sync(self) -> None:
        await self.store.sync()

    async def session_lost(self) -> None:
        await self.store.session_lost()

    async def close(self) -> None:
        await self.store.close()

    # --- mishaps
    async def steady(self, ops: Sequence[Op]) -> None:
        """Nothing happens this time."""

    async def lost_before(self, ops: Sequence[Op]) -> None:
        raise OutcomeUnknown("cut off before the store had it")

    async def lost_after(self, ops: Sequence[Op]) -> None:
        await self.store.multi(ops)
        raise OutcomeUnknown("cut off after the store had it")

    async def overtaken(self, ops: Sequence[Op]) -> None:
        """Another writer changes metadata first."""
        node = await self.store.get(nodes.CHANGES_PATH)
        assert node is not None
        await self.store.multi([Set(nodes.CHANGES_PATH, node.value, node.version)])


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[Metadata, Unsteady]]:
    disk = RealDisk(str(folder))
    store = Unsteady(await Embedded.open(disk, str(folder)))
    metadata = await Metadata.open(store, rng=SeededRng(5), features={"group.version": 1})
    await metadata.register(HERE, FOLDER)
    await metadata.ready()
    try:
        yield metadata, store
    finally:
        await metadata.close()
        disk.close()


def play(folder: Path, scene: Callable[[Metadata, Unsteady], Awaitable[None]]) -> Image:
    async def run() -> Image:
        async with opened(folder) as (metadata, store):
            await scene(metadata, store)
            return metadata.image

    return asyncio.run(run())


async def nothing(metadata: Metadata, store: Unsteady) -> None:
    pass


def test_a_new_cluster_has_an_id_that_it_keeps(tmp_path: Path) -> None:
    first, second = play(tmp_path, nothing), play(tmp_path, nothing)
    assert len(first.cluster_id) == 22
    assert first.cluster_id == second.cluster_id
    assert first.features.levels == {"group.version": 1}


def test_every_start_has_higher_epochs(tmp_path: Path) -> None:
    async def scene(metadata: Metadata, store: Unsteady) -> None:
        if not metadata.image.topics:
            await metadata.create_topics([NewTopic("t", 2)])

    seen = []
    for _ in range(3):
        image = play(tmp_path, scene)
        epochs = {partition.leader_epoch for partition in image.topic_named("t").partitions}
        seen.append((image.brokers[ONE].epoch, image.controller.epoch, epochs))
    assert seen == [(0, 1, {0}), (1, 2, {2}), (2, 3, {4})]  # nobody leads while it starts


def test_all_that_was_done_is_found_again(tmp_path: Path) -> None:
    async def scene(metadata: Metadata, store: Unsteady) -> None:
        await metadata.create_topics([NewTopic("t", 2), NewTopic("gone"), NewTopic("grown")])
        await metadata.delete_topics(["gone"])
        await metadata.create_partitions([NewPartitions("grown", 4)])
        changes = [ConfigChange("retention.ms", "5")]
        cluster = [ConfigChange("log.retention.ms", "6")]
        resources: list[tuple[Resource, list[ConfigChange]]] = [
            (TopicResource("t"), changes),
            (BrokerResource(None), cluster),
            (BrokerResource(ONE), cluster),
        ]
        assert await metadata.alter_configs(resources, incremental=True) == [None, None, None]

    before = play(tmp_path, scene)
    after = play(tmp_path, nothing)
    assert set(after.names) == {"t", "grown"}
    assert len(after.topic_named("grown").partitions) == 4
    assert after.topic_named("t").config == {"retention.ms": "5"}
    assert set(after.configs) == {"cluster", "1"}
    assert after.deleted == before.deleted
    assert [topic.name for topic in after.deleted.values()] == ["gone"]
    assert {name: after.topic_named(name).id for name in after.names} == dict(before.names)


def test_subscribers_get_every_image_once_and_in_order(tmp_path: Path) -> None:
    seen: list[Change] = []

    async def scene(metadata: Metadata, store: Unsteady) -> None:
        first = metadata.image
        end = metadata.subscribe(seen.append)
        await asyncio.gather(*(metadata.create_topics([NewTopic(f"t{number}")]) for number in range(10)))
        await metadata.delete_topics(["t3"])
        end()
        await metadata.create_topics([NewTopic("unseen")])
        images = [first, *(change.after for change in seen)]
        assert [image.version for image in images] == list(range(first.version, first.version + 12))
        assert all(change.before is image for change, image in zip(seen, images, strict=False))
        assert all(change.delta == diff(change.before, change.after) for change in seen)

    play(tmp_path, scene)


def test_an_image_is_published_after_the_store_has_it(tmp_path: Path) -> None:
    async def scene(metadata: Metadata, store: Unsteady) -> None:
        stored: list[int] = []

        def look(change: Change) -> None:
            embedded = store.store
            assert isinstance(embedded, Embedded)
            stored.append(sum(embedded._tree.get(nodes.topic_path(each)) is not None for each in change.delta.topics))

        metadata.subscribe(look)
        await metadata.create_topics([NewTopic("a"), NewTopic("b")])
        assert stored == [2]

    play(tmp_path, scene)


def test_each_topic_has_its_own_result(tmp_path: Path) -> None:
    async def scene(metadata: Metadata, store: Unsteady) -> None:
        await metadata.create_topics([NewTopic("t")])
        made, refused = await metadata.create_topics([NewTopic("u"), NewTopic("t")])
        assert isinstance(made, Topic)
        assert metadata.image.topic("u") is made
        assert isinstance(refused, TopicAlreadyExists)
        deleted, unknown = await metadata.delete_topics([made.id, "nope"])
        assert (deleted, type(unknown)) == (made, UnknownTopic)
        with pytest.raises(PolicyViolation):
            await metadata.create_topics([NewTopic("large", 10_001)])

    play(tmp_path, scene)


def test_validating_changes_nothing(tmp_path: Path) -> None:
    async def scene(metadata: Metadata, store: Unsteady) -> None:
        await metadata.create_topics([NewTopic("t")])
        before = metadata.image
        made, refused = await metadata.create_topics([NewTopic("u", 3), NewTopic("t")], validate_only=True)
        assert isinstance(made, Topic)
        assert (len(made.partitions), type(refused)) == (3, TopicAlreadyExists)
        (grown,) = await metadata.create_partitions([NewPartitions("t", 3)], validate_only=True)
        assert isinstance(grown, Topic)
        resource = TopicResource("t")
        asked = [(resource, [ConfigChange("retention.ms", "5")]), (resource, [ConfigChange("retention.ms", "x")])]
        fine, wrong = await metadata.alter_configs(asked, incremental=True, validate_only=True)
        assert (fine, type(wrong)) == (None, InvalidConfig)
        assert metadata.image is before

    play(tmp_path, scene)


def test_the_proof_of_a_deletion_goes_when_the_data_is_gone(tmp_path: Path) -> None:
    async def scene(metadata: Metadata, store: Unsteady) -> None:
        await metadata.create_topics([NewTopic("t")])
        (gone,) = await metadata.delete_topics(["t"])
        assert isinstance(gone, Topic)
        assert set(metadata.image.deleted) == {gone.id}
        await metadata.data_removed(ONE, [gone.id])
        assert not metadata.image.deleted
        await metadata.data_removed(ONE, [gone.id])
        (again,) = await metadata.create_topics([NewTopic("t")])
        assert isinstance(again, Topic)
        assert again.id != gone.id

    play(tmp_path, scene)
    assert not play(tmp_path, nothing).deleted


def test_the_newest_of_a_topic_is_what_the_store_has_after_a_sync(tmp_path: Path) -> None:
    """The store may be at a server that is behind, and the image behind the store."""

    async def scene(metadata: Metadata, store: Unsteady) -> None:
        (made,) = await metadata.create_topics([NewTopic("t")])
        assert isinstance(made, Topic)
        assert await metadata.newest_topic("t") == made
        path = nodes.topic_path(made.id)
        node = await store.store.get(path)
        assert node is not None

        async def another_writes() -> None:
            await store.store.multi([Set(path, node.value, node.version)])

        with mock.patch.object(store, "sync", another_writes):
            newest = await metadata.newest_topic("t")
        assert newest == structs.replace(made, version=made.version + 1)
        assert metadata.image.topic_named("t") == made
        await store.store.multi([Delete(path, node.version + 1)])
        assert await metadata.newest_topic("t") is None
        assert await metadata.newest_topic("u") is None

    play(tmp_path, scene)


def test_producer_ids_are_never_handed_out_twice(tmp_path: Path) -> None:
    blocks: list[range] = []

    async def scene(metadata: Metadata, store: Unsteady) -> None:
        store.mishaps = [store.lost_after, store.lost_before]
        blocks.append(await metadata.next_producer_ids())
        blocks.extend(await asyncio.gather(*(metadata.next_producer_ids() for _ in range(4))))

    play(tmp_path, scene)
    play(tmp_path, scene)
    numbers = [number for block in blocks for number in block]
    assert all(len(block) == 1000 for block in blocks)
    assert len(set(numbers)) == len(numbers) == 10_000


MISHAPS = ["lost_before", "lost_after", "overtaken"]


@pytest.mark.parametrize("mishap", MISHAPS)
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_mishap_in_any_multi_of_a_large_request_is_made_good(
    tmp_path: Path, mishap: str, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nodes, "MULTI_OPS_MAX", 8)
    specs = [NewTopic(f"t{number}") for number in range(24)]  # three multis

    async def scene(metadata: Metadata, store: Unsteady) -> None:
        changes: list[Change] = []
        metadata.subscribe(changes.append)
        store.mishaps = [*[store.steady] * at, getattr(store, mishap)]
        made = await metadata.create_topics(specs)
        assert not store.mishaps
        assert [topic.name for topic in made if isinstance(topic, Topic)] == [spec.name for spec in specs]
        assert all(isinstance(topic, Topic) and metadata.image.topics[topic.id] == topic for topic in made)
        store.mishaps = [*[store.steady] * at, getattr(store, mishap)]
        gone = await metadata.delete_topics([spec.name for spec in specs])
        assert gone == made
        assert not metadata.image.topics
        told = [topic_id for change in changes for topic_id, topic in change.delta.topics.items() if topic]
        assert len(told) == len(set(told)) == 24

    play(tmp_path, scene)


@pytest.mark.parametrize("mishap", MISHAPS)
def test_a_mishap_while_settings_change_is_made_good(tmp_path: Path, mishap: str) -> None:
    async def scene(metadata: Metadata, store: Unsteady) -> None:
        await metadata.create_topics([NewTopic("t")])
        for resource, name in ((TopicResource("t"), "retention.ms"), (BrokerResource(None), "log.retention.ms")):
            store.mishaps = [getattr(store, mishap)]
            assert await metadata.alter_configs([(resource, [ConfigChange(name, "5")])], incremental=True) == [None]
        assert metadata.image.topic_named("t").config == {"retention.ms": "5"}
        assert metadata.image.configs["cluster"].values == {"log.retention.ms": "5"}

    play(tmp_path, scene)


@pytest.mark.parametrize("mishap", MISHAPS)
@pytest.mark.parametrize("at", [0, 1])
def test_a_mishap_while_registering_is_made_good(tmp_path: Path, mishap: str, at: int) -> None:
    async def run() -> None:
        disk = RealDisk(str(tmp_path))
        store = Unsteady(await Embedded.open(disk, str(tmp_path)))
        metadata = await Metadata.open(store, rng=SeededRng())
        store.mishaps = [*[store.steady] * at, getattr(store, mishap)]
        await metadata.register(HERE, FOLDER)
        broker = await metadata.ready()
        assert metadata.image.brokers == {ONE: broker}
        (made,) = await metadata.create_topics([NewTopic("t")])
        assert isinstance(made, Topic)
        await metadata.close()

    asyncio.run(run())


def test_a_store_that_never_gives_way_ends_in_a_clear_error(tmp_path: Path) -> None:
    async def scene(metadata: Metadata, store: Unsteady) -> None:
        store.mishaps = [store.overtaken] * 100
        with pytest.raises(RequestTimedOut, match="try again"):
            await metadata.create_topics([NewTopic("t")])
        store.mishaps = []

    play(tmp_path, scene)


def test_a_deposed_controller_changes_nothing(tmp_path: Path) -> None:
    async def scene(metadata: Metadata, store: Unsteady) -> None:
        (before,) = await metadata.create_topics([NewTopic("t")])
        node, epoch = [await store.get(path) for path in (nodes.CONTROLLER_PATH, nodes.CONTROLLER_EPOCH_PATH)]
        assert node is not None
        assert epoch is not None
        other = b'{"broker":2}'
        takeover: list[Op] = [
            Delete("/controller", node.version),
            Create("/controller", other),
            Set("/controller-epoch", other, epoch.version),
        ]
        await store.store.multi(takeover)
        with pytest.raises(NotController):
            await metadata.create_topics([NewTopic("u")])
        with pytest.raises(NotController):
            await metadata.delete_topics(["t"])
        assert await store.children(nodes.TOPICS_PATH) == [str(before.id) if isinstance(before, Topic) else ""]

    play(tmp_path, scene)


def test_a_cancelled_caller_does_not_leave_a_change_half_told(tmp_path: Path) -> None:
    async def scene(metadata: Metadata, store: Unsteady) -> None:
        told = asyncio.Event()
        metadata.subscribe(lambda change: told.set())
        caller = asyncio.ensure_future(metadata.create_topics([NewTopic("t")]))
        for _ in range(3):
            await asyncio.sleep(0)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        await asyncio.wait_for(told.wait(), 30)
        assert set(metadata.image.names) == {"t"}

    play(tmp_path, scene)


def test_only_a_registered_controller_may_change_anything(tmp_path: Path) -> None:
    async def run() -> None:
        disk = RealDisk(str(tmp_path))
        metadata = await Metadata.open(await Embedded.open(disk, str(tmp_path)), rng=SeededRng())
        with pytest.raises(NotController):
            await metadata.delete_topics(["t"])
        await metadata.close()

    asyncio.run(run())


def test_a_missing_or_unreadable_node_stops_the_broker_instead_of_looking_like_an_empty_cluster(tmp_path: Path) -> None:
    async def run(op: Op) -> None:
        disk = RealDisk(str(tmp_path))
        store = await Embedded.open(disk, str(tmp_path))
        await store.multi([op])
        with pytest.raises(StoreDamaged):
            await Metadata.open(store, rng=SeededRng())
        await store.close()
        disk.close()

    async def scene(metadata: Metadata, store: Unsteady) -> None:
        await metadata.create_topics([NewTopic("t")])

    image = play(tmp_path, scene)
    asyncio.run(run(Set(nodes.topic_path(image.topic_named("t").id), b"not json", 0)))
    asyncio.run(run(Delete(nodes.FEATURES_PATH, 0)))


def test_a_new_topic_id_looks_like_no_option_and_is_never_reserved() -> None:
    rng = SeededRng(9)
    made = [new_uuid(rng) for _ in range(2000)]
    assert all(number.version == 4 and not text_of(number).startswith("-") for number in made)
    assert len(set(made)) == 2000


def test_the_defaults_of_the_broker_hold_for_new_topics(tmp_path: Path) -> None:
    async def run() -> None:
        disk = RealDisk(str(tmp_path))
        store = await Embedded.open(disk, str(tmp_path))
        metadata = await Metadata.open(store, rng=SeededRng(), defaults=Defaults(partitions=7))
        await metadata.register(HERE, FOLDER)
        await metadata.ready()
        (made,) = await metadata.create_topics([NewTopic("t")])
        assert isinstance(made, Topic)
        assert len(made.partitions) == 7
        await metadata.close()

    asyncio.run(run())
