"""Reading what changed gives the same image as reading everything."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from random import Random

import pytest

from runnel.cluster import loading, membership, nodes
from runnel.cluster.config_rules import BrokerResource, ConfigChange
from runnel.cluster.embedded import Embedded
from runnel.cluster.image import Broker, Controller, Delta, Endpoint, Image
from runnel.cluster.loading import catch_up, load
from runnel.cluster.membership import Identity
from runnel.cluster.metadata import Metadata
from runnel.cluster.nodes import Recent
from runnel.cluster.store import Delete, Node, Set, Store
from runnel.cluster.topic_rules import NewPartitions, NewTopic
from runnel.model.errors import RequestTimedOut
from runnel.model.ids import BrokerId, Epoch
from runnel.shell.disk import RealDisk
from runnel.testing.clock import SeededRng
from runnel.testing.store import Ensemble

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
            assert await _reached(store, image, recent) == whole
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
        after, _ = await _reached(store, *before)
        assert after == (await load(store))[0]
        assert (set(after.brokers), after.controller.broker) == (set(), -1)
        assert after.version == before[0].version
        await metadata.close()
        disk.close()

    asyncio.run(run())


async def _reached(store: Store, image: Image, recent: tuple[Recent, ...]) -> tuple[Image, tuple[Recent, ...]]:
    """Where catching up ends."""
    state = image, recent
    async for later in catch_up(store, image, recent):
        state = later
    return state


class Restless:
    """A store in which something changes with every read of a list."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def get(self, path: str) -> Node | None:
        return await self.store.get(path)

    async def get_all(self, paths: Sequence[str]) -> list[Node | None]:
        return await self.store.get_all(paths)

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
            await _reached(restless, image, recent)  # type: ignore[arg-type]
        with pytest.raises(RequestTimedOut, match="faster than it could be read"):
            await load(restless)  # type: ignore[arg-type]
        await metadata.close()
        disk.close()

    asyncio.run(run())


class Busy:
    """A store in which others write while it is read: each read comes with a chance of their next change."""

    def __init__(self, store: Store, rng: Random, work: list[Callable[[], Awaitable[object]]]) -> None:
        self.store = store
        self.rng = rng
        self.work = work

    async def _others(self) -> None:
        while self.work and self.rng.random() < 0.3:
            await self.work.pop()()

    async def get(self, path: str) -> Node | None:
        await self._others()
        return await self.store.get(path)

    async def get_all(self, paths: Sequence[str]) -> list[Node | None]:
        return [await self.get(path) for path in paths]

    async def children(self, path: str) -> list[str]:
        await self._others()
        return await self.store.children(path)


def test_whatever_is_written_meanwhile_each_state_is_one_that_was() -> None:
    async def run(rng: Random) -> int:
        store = await Ensemble().open()
        metadata = await Metadata.open(store, rng=SeededRng(1))
        await metadata.register(HERE, Identity("c", HERE.id, "d"))
        await metadata.ready()
        await metadata.create_topics([NewTopic(f"t{number}") for number in range(4)])
        image, recent = await load(store)
        truth = {image.version: image}
        metadata.subscribe(lambda change: truth.update({change.after.version: change.after}))

        def grow(number: int) -> Callable[[], Awaitable[object]]:
            def wanted() -> NewPartitions:
                name = f"t{number}"
                return NewPartitions(name, len(metadata.image.topic_named(name).partitions) + 1)

            return lambda: metadata.create_partitions([wanted()])

        async def take_over() -> None:
            ledger = metadata._ledger
            claim = Controller(HERE.id, Epoch(ledger.image.controller.epoch + 1))
            stale = await store.get(nodes.CONTROLLER_PATH)
            assert await ledger.attempt(membership.claim(claim, stale), Delta(controller=claim))
            ledger.controller_epoch = claim.epoch

        kinds = [take_over, *map(grow, range(4))]
        busy = Busy(store, rng, [rng.choice(kinds) for _ in range(rng.randrange(1, 15))])
        passed: list[int] = []
        later = image, recent
        async for later in catch_up(busy, image, recent):  # type: ignore[arg-type]
            state, _ = later
            assert state == truth[state.version]
            passed.append(state.version)
        assert passed == sorted(set(passed))
        assert later == await load(store)
        await metadata.close()
        return len(passed)

    steps = [asyncio.run(run(Random(seed))) for seed in range(100)]
    assert max(steps) > 2, "what was known before the last change was never passed on"
