"""Reading what changed gives the same image as reading everything."""

import asyncio
from pathlib import Path

import pytest

from runnel.cluster import loading, nodes
from runnel.cluster.config_rules import BrokerResource, ConfigChange
from runnel.cluster.embedded import Embedded
from runnel.cluster.image import Broker, Endpoint, Image
from runnel.cluster.loading import catch_up, load
from runnel.cluster.membership import Identity
from runnel.cluster.metadata import Metadata
from runnel.cluster.nodes import Recent
from runnel.cluster.store import Delete, Node, Set, Store
from runnel.cluster.topic_rules import NewPartitions, NewTopic
from runnel.model.errors import RequestTimedOut
from runnel.model.ids import BrokerId
from runnel.shell.disk import RealDisk
from runnel.testing.clock import SeededRng

HERE = Broker(BrokerId(1), {"kafka": Endpoint("127.0.0.1", 9092)})


def test_from_every_earlier_image_the_same_one_is_reached(tmp_path: Path) -> None:
    async def run() -> None:
        disk = RealDisk(str(tmp_path))
        store = await Embedded.open(disk, str(tmp_path))
        metadata = await Metadata.open(store, rng=SeededRng(1))
        seen: list[tuple[Image, tuple[Recent, ...]]] = [await load(store)]
        metadata.subscribe(lambda change: seen.append((change.after, metadata._ledger.recent)))
        await metadata.register(HERE, Identity("c", HERE.id, "d"))
        await metadata.ready()
        for number in range(40):
            await metadata.create_topics([NewTopic(f"t{number}", 2)])
            if number % 3 == 0:
                await metadata.create_partitions([NewPartitions(f"t{number}", 3)])
            if number % 4 == 0:
                await metadata.delete_topics([f"t{number}"])
                await metadata.alter_configs(
                    [(BrokerResource(None), [ConfigChange("log.retention.ms", str(number))])], incremental=True
                )
        await metadata.create_topics([NewTopic(f"many{number}") for number in range(nodes.RECENT_NODES_MAX + 1)])
        await metadata.create_topics([NewTopic("last")])
        whole = await load(store)
        assert len(seen) > nodes.RECENT_CHANGES_MAX
        for image, recent in seen:
            assert await catch_up(store, image, recent) == whole
        await metadata.close()
        disk.close()

    asyncio.run(run())


def test_what_vanishes_without_a_change_is_noticed(tmp_path: Path) -> None:
    async def run() -> None:
        disk = RealDisk(str(tmp_path))
        store = await Embedded.open(disk, str(tmp_path))
        metadata = await Metadata.open(store, rng=SeededRng(1))
        await metadata.register(HERE, Identity("c", HERE.id, "d"))
        await metadata.ready()
        before = await load(store)
        await store.multi([Delete("/brokers/1", 2), Delete("/controller", 0)])
        after, _ = await catch_up(store, *before)
        assert after == (await load(store))[0]
        assert (set(after.brokers), after.controller.broker) == (set(), -1)
        assert after.version == before[0].version
        await metadata.close()
        disk.close()

    asyncio.run(run())


class Restless:
    """A store in which something changes with every read of a list."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def get(self, path: str) -> Node | None:
        return await self.store.get(path)

    async def children(self, path: str) -> list[str]:
        node = await loading.must_get(self.store, nodes.CHANGES_PATH)
        await self.store.multi([Set(nodes.CHANGES_PATH, node.value, node.version)])
        return await self.store.children(path)


def test_a_mixture_of_two_states_is_never_taken_for_one(tmp_path: Path) -> None:
    async def run() -> None:
        disk = RealDisk(str(tmp_path))
        store = await Embedded.open(disk, str(tmp_path))
        metadata = await Metadata.open(store, rng=SeededRng(1))
        restless = Restless(store)
        image, recent = await load(store)
        with pytest.raises(RequestTimedOut, match="faster than it could be read"):
            await catch_up(restless, image, recent)  # type: ignore[arg-type]
        with pytest.raises(RequestTimedOut, match="faster than it could be read"):
            await load(restless)  # type: ignore[arg-type]
        await metadata.close()
        disk.close()

    asyncio.run(run())
