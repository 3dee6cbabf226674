"""What deletions leave to be done on a disk."""

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import cast
from uuid import UUID

import pytest
from tests.test_replication import Brokers, cluster_of, create, eventually, run

from runnel.broker import removal
from runnel.broker.partitions import FOLDER, Partitions
from runnel.broker.removal import Removal
from runnel.client.admin import Admin, NewTopic
from runnel.cluster.image import DeletedTopic, Delta, Image
from runnel.cluster.reassignment import Move
from runnel.model.errors import Fatal, RequestTimedOut, RunnelError, StorageFailed
from runnel.model.ids import BrokerId, TopicId

ME, OTHER = BrokerId(1), BrokerId(2)
ONE, TWO = TopicId(UUID(int=1)), TopicId(UUID(int=2))


class Stage:
    """A disk whose removals end when the test says so."""

    def __init__(self) -> None:
        self.image = Image("c")
        self.removed: list[TopicId] = []
        self.told: list[TopicId] = []
        self.refuse = False
        self.failures: list[Exception] = []  # of the next removals
        self.stuck: set[TopicId] = set()
        self.ends = asyncio.Event()
        self.removal = Removal(ME, cast(Partitions, self), lambda: self.image, self.report, _fail)

    @property
    def has_leftovers(self) -> bool:
        return bool(self.stuck)

    async def set_deleted_aside(self, topic_ids: Collection[TopicId]) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.removed += topic_ids

    async def remove_leftovers(self) -> set[TopicId]:
        if self.removed:
            await self.ends.wait()
        return set(self.stuck)

    async def report(self, broker: BrokerId, topic_ids: Sequence[TopicId]) -> None:
        if self.refuse:
            raise RequestTimedOut("not now")
        assert broker == ME
        self.told += topic_ids
        self.image = self.image.apply(Delta(deleted=dict.fromkeys(topic_ids)))

    def delete(self, topic_id: TopicId, *holders: BrokerId) -> None:
        self.image = self.image.apply(Delta(deleted={topic_id: DeletedTopic(topic_id, "t", holders)}))
        self.removal.look()


def _fail(error: BaseException) -> None:
    raise AssertionError(error)


async def settled() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_what_is_gone_is_told_when_it_is_gone_and_what_others_hold_is_theirs() -> None:
    async def main() -> None:
        stage = Stage()
        stage.delete(ONE, ME, OTHER)
        stage.delete(TWO, OTHER)
        stage.removal.start()  # also what an earlier life left
        await settled()
        assert (stage.removed, stage.told) == ([ONE], [])
        stage.ends.set()
        await settled()
        assert stage.told == [ONE]
        await stage.removal.stop()

    asyncio.run(main())


def test_what_could_not_be_told_is_told_later(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        stage = Stage()
        stage.ends.set()
        stage.removal.start()
        stage.refuse = True
        stage.delete(ONE, ME)
        await settled()
        assert stage.told == []
        stage.refuse = False
        stage.delete(TWO, ME)
        await settled()
        assert stage.told == [ONE, TWO]
        await stage.removal.stop()

    asyncio.run(main())
    assert "could not be reported" in caplog.text


@pytest.fixture
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "PAUSE_S", 0.001)


@pytest.mark.usefixtures("_soon")
@pytest.mark.parametrize("error", [OSError(39, "Directory not empty"), StorageFailed("no"), KeyError("x")])
def test_what_could_not_be_removed_ends_nothing_and_is_tried_again(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        stage = Stage()
        stage.ends.set()
        stage.failures = [error, error]
        stage.delete(ONE, ME)
        stage.removal.start()
        async with asyncio.timeout(60):
            while stage.told != [ONE]:
                await asyncio.sleep(0.001)
        await stage.removal.stop()

    asyncio.run(main())
    assert caplog.text.count("could not be removed yet") == 2


@pytest.mark.usefixtures("_soon")
def test_what_is_left_of_one_topic_keeps_no_other_from_being_told() -> None:
    async def main() -> None:
        stage = Stage()
        stage.ends.set()
        stage.stuck = {ONE}
        stage.delete(ONE, ME)
        stage.delete(TWO, ME)
        stage.removal.start()
        await settled()
        assert stage.told == [TWO]
        stage.stuck.clear()
        async with asyncio.timeout(60):
            while stage.told != [TWO, ONE]:
                await asyncio.sleep(0.001)
        await stage.removal.stop()

    asyncio.run(main())


def test_a_stop_does_not_wait_for_the_next_try() -> None:
    async def main() -> None:
        stage = Stage()
        stage.failures = [OSError(39, "Directory not empty")]
        stage.delete(ONE, ME)
        stage.removal.start()
        await settled()
        await asyncio.wait_for(stage.removal.stop(), 0.9)
        assert stage.told == []

    asyncio.run(main())


def test_a_sync_that_fails_ends_the_broker_here_too() -> None:
    async def main() -> None:
        stage = Stage()
        fatal: list[BaseException] = []
        stage.removal = Removal(ME, cast(Partitions, stage), lambda: stage.image, stage.report, fatal.append)
        stage.failures = [Fatal("fsync failed")]
        stage.delete(ONE, ME)
        stage.removal.start()
        await settled()
        assert [type(error) for error in fatal] == [Fatal]

    asyncio.run(main())


def test_a_stop_waits_for_what_has_begun() -> None:
    async def main() -> None:
        stage = Stage()
        stage.removal.start()
        stage.delete(ONE, ME)
        await settled()
        stopping = asyncio.ensure_future(stage.removal.stop())
        await settled()
        assert not stopping.done()
        stage.ends.set()
        await stopping
        assert stage.told == [ONE]

    asyncio.run(main())


def test_a_copy_that_has_moved_away_is_removed_while_the_metadata_is_followed(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as brokers:
            await create(brokers, replicas=2)
            holder = brokers.up[brokers.image().replicas[0]].broker
            folder = tmp_path / str(holder.id) / FOLDER / f"{holder.image.topic_named('t').id}-0"
            go_on = asyncio.Event()
            remove = holder.partitions.remove_leftovers

            async def held() -> set[TopicId]:
                await go_on.wait()
                return await remove()

            holder.partitions.remove_leftovers = held  # type: ignore[method-assign]
            try:
                others = [BrokerId(number) for number in brokers.up if number != holder.id]
                await move(brokers, others)
                await eventually(lambda: not folder.exists())
                async with brokers.client() as cluster:
                    await Admin(cluster).create_topics([NewTopic("other", 1, 3)])
                await eventually(lambda: "other" in holder.image.names)
                assert left_of(folder)
                await move(brokers, [holder.id, others[0]])
                await eventually(lambda: brokers.image().isr == (holder.id, others[0]))
            finally:
                go_on.set()
            await eventually(lambda: not left_of(folder))
            assert folder.exists()

    run(main())


async def move(brokers: Brokers, replicas: list[BrokerId]) -> None:
    controller = brokers.up[brokers.up[1].broker.image.controller.broker].broker
    [moved] = await controller.metadata.reassign([Move("t", 0, tuple(replicas))])
    assert not isinstance(moved, RunnelError), moved


def left_of(folder: Path) -> list[Path]:
    """The copies that have lost this name."""
    return list(folder.parent.glob(f"{folder.name}.*"))
