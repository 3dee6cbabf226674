"""Partitions follow the image; what can't be opened fails alone, and is tried again."""

import asyncio
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import pytest

from runnel.broker.partitions import FOLDER, Partitions
from runnel.cluster.image import Broker, BrokerState, Change, DeletedTopic, Delta, Image, Topic
from runnel.cluster.image import Partition as Placed
from runnel.model.errors import LeaderNotAvailable, NotLeader, StorageFailed, UnknownTopic
from runnel.model.ids import BrokerId, Epoch, Offset, TopicId
from runnel.model.seams import Disk
from runnel.model.topic_config import TopicConfig
from runnel.record import records
from runnel.record.batch import check_produced
from runnel.shell.clock import SystemClock
from runnel.shell.disk import RealDisk
from runnel.testing.clock import SeededRng
from runnel.testing.disk import Fault, SimDisk
from runnel.testing.gated_disk import GatedDisk

T = TypeVar("T")
ME, OTHER = BrokerId(1), BrokerId(2)
GOOD, BAD = TopicId(UUID(int=1)), TopicId(UUID(int=2))


def topic(topic_id: TopicId, name: str, *leaders: BrokerId, **config: str) -> Topic:
    partitions = tuple(Placed(leader, Epoch(0), Epoch(0), (leader,), (leader,)) for leader in leaders)
    return Topic(topic_id, name, partitions, {key.replace("_", "."): value for key, value in config.items()})


def image_of(*topics: Topic) -> Image:
    return Image("cluster").apply(Delta(topics={each.id: each for each in topics}, brokers={ME: Broker(ME, {})}))


def partitions_on(disk: Disk) -> Partitions:
    def fail(error: BaseException) -> None:
        raise AssertionError(error)

    return Partitions(ME, TopicConfig(), disk=disk, files_max=100, clock=SystemClock(), on_fatal=fail)


def test_a_partition_that_can_not_be_opened_fails_alone_and_heals(tmp_path: Path) -> None:
    async def main() -> None:
        disk = RealDisk(str(tmp_path))
        partitions = partitions_on(disk)
        (tmp_path / FOLDER).mkdir()
        obstacle = tmp_path / FOLDER / f"{BAD}-0"
        obstacle.write_text("a file where a folder should be")
        await partitions.start(image_of(topic(GOOD, "good", ME), topic(BAD, "bad", ME)))
        assert partitions.find("good", 0).log.end_offset == 0
        with pytest.raises(StorageFailed, match="bad-0 can't be opened"):
            partitions.find("bad", 0)
        await partitions.try_again()
        with pytest.raises(StorageFailed):
            partitions.find("bad", 0)
        obstacle.unlink()
        await asyncio.gather(partitions.try_again(), partitions.try_again())  # and never twice at a time
        assert partitions.find("bad", 0).log.end_offset == 0
        await partitions.close()
        disk.close()

    asyncio.run(main())


def test_only_what_is_led_here_is_served(tmp_path: Path) -> None:
    async def main() -> None:
        disk = RealDisk(str(tmp_path))
        partitions = partitions_on(disk)
        await partitions.start(image_of(topic(GOOD, "t", ME, OTHER)))
        assert partitions.find("t", 0) is partitions.find_by_id(GOOD, 0)
        with pytest.raises(NotLeader, match="t-1 is led by broker 2"):
            partitions.find("t", 1)
        with pytest.raises(UnknownTopic, match="0 to 1, not 2"):
            partitions.find("t", 2)
        await partitions.close()
        disk.close()

    asyncio.run(main())


def test_settings_follow_the_image_and_deleted_topics_are_closed(tmp_path: Path) -> None:
    async def main() -> None:
        disk = RealDisk(str(tmp_path))
        partitions = partitions_on(disk)
        before = image_of(topic(GOOD, "t", ME))
        await partitions.start(before)
        change = Delta(topics={GOOD: topic(GOOD, "t", ME, retention_ms="5")})
        after = before.apply(change)
        await partitions.follow(Change(before, after, change))
        assert partitions.find("t", 0).config.retention_ms == 5
        gone = Delta(topics={GOOD: None})
        await partitions.follow(Change(after, after.apply(gone), gone))
        with pytest.raises(UnknownTopic):
            partitions.find("t", 0)
        assert (tmp_path / FOLDER / f"{GOOD}-0").exists()  # without proof of the deletion nothing is removed
        await partitions.set_deleted_aside({GOOD})
        await partitions.remove_leftovers()
        assert not (tmp_path / FOLDER / f"{GOOD}-0").exists()
        disk.close()

    asyncio.run(main())


def test_what_nobody_knows_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        disk = RealDisk(str(tmp_path))
        stranger = tmp_path / FOLDER / f"{BAD}-0"
        stranger.mkdir(parents=True)
        partitions = partitions_on(disk)
        await partitions.start(image_of())
        assert stranger.exists()
        disk.close()

    asyncio.run(main())
    assert "belongs to no topic" in caplog.text


def placed(leader: BrokerId, epoch: int, *replicas: BrokerId) -> Placed:
    return Placed(leader, Epoch(epoch), Epoch(epoch), replicas, replicas)


def test_nothing_has_a_role_before_this_broker_serves(tmp_path: Path) -> None:
    async def main() -> None:
        disk = RealDisk(str(tmp_path))
        partitions = partitions_on(disk)
        starting = Broker(ME, {}, state=BrokerState.STARTING)
        topics = {GOOD: Topic(GOOD, "t", (placed(ME, 3, ME, OTHER), placed(OTHER, 3, ME, OTHER)))}
        before = Image("cluster").apply(Delta(topics=topics, brokers={ME: starting}))
        await partitions.start(before)
        assert len(list(partitions)) == 2
        for find in (partitions.find, partitions.find_readable):
            with pytest.raises(LeaderNotAvailable):
                find("t", 0)  # it led in another life
        serves = Delta(
            topics={GOOD: Topic(GOOD, "t", (placed(ME, 4, ME, OTHER), placed(OTHER, 3, ME, OTHER)))},
            brokers={ME: Broker(ME, {})},
        )
        changed = await partitions.follow(Change(before, before.apply(serves), serves))
        assert sorted(each.key.number for each in changed) == [0, 1]
        assert partitions.find("t", 0).leader_epoch == 4
        assert partitions.find_readable("t", 1).is_follower
        with pytest.raises(NotLeader):
            partitions.find("t", 1)
        await partitions.close()
        disk.close()

    asyncio.run(main())


def test_a_partition_that_moved_elsewhere_is_closed_and_removed_also_at_the_next_start(tmp_path: Path) -> None:
    async def main() -> None:
        disk = RealDisk(str(tmp_path))
        partitions = partitions_on(disk)
        before = image_of(Topic(GOOD, "t", (placed(ME, 1, ME, OTHER), placed(ME, 1, ME, OTHER))))
        await partitions.start(before)
        folders = [tmp_path / FOLDER / f"{GOOD}-{number}" for number in (0, 1)]
        assert all(folder.exists() for folder in folders)
        moved = Delta(topics={GOOD: Topic(GOOD, "t", (placed(OTHER, 2, OTHER), placed(ME, 1, ME, OTHER)))})
        after = before.apply(moved)
        [gone] = await partitions.follow(Change(before, after, moved))
        assert (gone.key.number, gone.is_leader) == (0, False)
        assert [folder.exists() for folder in folders] == [False, True]
        await partitions.remove_leftovers()
        assert list((tmp_path / FOLDER).iterdir()) == [folders[1]]
        await partitions.close()
        both = after.apply(Delta(topics={GOOD: Topic(GOOD, "t", (placed(OTHER, 2, OTHER), placed(OTHER, 2, OTHER)))}))
        later = partitions_on(disk)
        await later.start(both)
        assert not folders[1].exists()
        await later.remove_leftovers()
        assert not list((tmp_path / FOLDER).iterdir())
        await later.close()
        disk.close()

    asyncio.run(main())


def test_a_copy_that_moves_away_while_this_broker_starts_is_not_opened_and_goes(tmp_path: Path) -> None:
    async def main() -> None:
        folder = tmp_path / FOLDER / f"{GOOD}-0"
        folder.mkdir(parents=True)
        disk = GatedDisk(str(tmp_path))
        partitions = partitions_on(disk)
        here = image_of(Topic(GOOD, "t", (placed(OTHER, 1, OTHER, ME),)))
        disk.gate.clear()
        starting = asyncio.ensure_future(partitions.start(here))
        await asyncio.sleep(0)
        away = Delta(topics={GOOD: Topic(GOOD, "t", (placed(OTHER, 1, OTHER),))})
        await partitions.follow(Change(here, here.apply(away), away))
        disk.gate.set()
        await starting
        assert list(partitions) == []
        assert not folder.exists()
        disk.close()

    asyncio.run(main())


class StoppedDisk(RealDisk):
    """Removes one file of a folder, and no more."""

    stops = True

    def remove(self, path: str) -> None:
        if not self.stops:
            return super().remove(path)
        super().remove(f"{path}/{self.list(path)[0]}")
        raise OSError("the process was killed here")


def test_a_copy_that_is_half_removed_is_nobodys_and_goes_at_the_next_start(tmp_path: Path) -> None:
    async def main() -> None:
        folder = tmp_path / FOLDER / f"{GOOD}-0"
        disk = StoppedDisk(str(tmp_path))
        partitions = partitions_on(disk)
        before = image_of(Topic(GOOD, "t", (placed(ME, 1, ME, OTHER),)))
        await partitions.start(before)
        moved = Delta(topics={GOOD: Topic(GOOD, "t", (placed(OTHER, 2, OTHER),))})
        away = before.apply(moved)
        await partitions.follow(Change(before, away, moved))
        await partitions.remove_leftovers()
        assert [each.name for each in folder.parent.iterdir()] == [f"{GOOD}-0.gone"]
        await partitions.close()
        disk.close()
        sound = RealDisk(str(tmp_path))
        later = partitions_on(sound)
        await later.start(away.apply(Delta(topics={GOOD: Topic(GOOD, "t", (placed(OTHER, 2, OTHER, ME),))})))
        await later.remove_leftovers()
        assert [each.name for each in folder.parent.iterdir()] == [f"{GOOD}-0"]
        assert later.find_readable("t", 0).log.is_new
        await later.close()
        sound.close()

    asyncio.run(main())


class LateDisk(RealDisk):
    """Work that was under way for a folder makes a file in it, when all that was in there has been removed."""

    late = ""

    def remove(self, path: str) -> None:
        for name in self.list(path):
            super().remove(f"{path}/{name}")
        with suppress(FileNotFoundError):
            self.open(f"{self.late}/late", create=True).close()
        os.rmdir(f"{self._root_name}/{path}")


def deletion(image: Image) -> Change:
    gone = Delta(topics={GOOD: None}, deleted={GOOD: DeletedTopic(GOOD, "t", (ME,))})
    return Change(image, image.apply(gone), gone)


def test_work_that_was_under_way_does_not_keep_a_deleted_copy_from_being_removed(tmp_path: Path) -> None:
    async def main() -> None:
        disk = LateDisk(str(tmp_path))
        partitions = partitions_on(disk)
        before = image_of(topic(GOOD, "t", ME))
        await partitions.start(before)
        await partitions.follow(deletion(before))
        disk.late = f"{FOLDER}/{GOOD}-0"
        await partitions.set_deleted_aside({GOOD})
        assert await partitions.remove_leftovers() == set()
        assert list((tmp_path / FOLDER).iterdir()) == []
        disk.close()

    asyncio.run(main())


def test_a_deleted_copy_that_can_not_be_removed_is_told_of_and_removed_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        disk = StoppedDisk(str(tmp_path))
        partitions = partitions_on(disk)
        before = image_of(topic(GOOD, "t", ME))
        await partitions.start(before)
        await partitions.follow(deletion(before))
        await partitions.set_deleted_aside({GOOD})
        assert await partitions.remove_leftovers() == {GOOD}
        assert partitions.has_leftovers
        disk.stops = False
        assert await partitions.remove_leftovers() == set()
        assert list((tmp_path / FOLDER).iterdir()) == []
        disk.close()

    asyncio.run(main())
    assert "could not be removed yet: the process was killed here" in caplog.text


class ListingDisk(GatedDisk):
    """Whoever has listed all copies waits, until a test lets it go on."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.listed, self.go_on = asyncio.Event(), asyncio.Event()
        self._lists = False

    def list(self, path: str) -> list[str]:
        self._lists = path == FOLDER
        return super().list(path)

    async def offload(self, work: Callable[[], T]) -> T:
        result = await super().offload(work)
        if self._lists and not self.listed.is_set():
            self.listed.set()
            await self.go_on.wait()
        return result


def test_a_copy_that_comes_back_while_this_broker_starts_is_not_removed(tmp_path: Path) -> None:
    async def main() -> None:
        folders = [tmp_path / FOLDER / f"{GOOD}-{number}" for number in (0, 1)]
        for folder in folders:
            folder.mkdir(parents=True)
        disk = ListingDisk(str(tmp_path))
        partitions = partitions_on(disk)
        away = image_of(Topic(GOOD, "t", (placed(OTHER, 1, OTHER), placed(OTHER, 1, OTHER))))
        starting = asyncio.ensure_future(partitions.start(away))
        await disk.listed.wait()
        back = Delta(topics={GOOD: Topic(GOOD, "t", (placed(OTHER, 1, OTHER, ME), placed(OTHER, 1, OTHER)))})
        await partitions.follow(Change(away, away.apply(back), back))
        disk.go_on.set()
        await starting
        assert [folder.exists() for folder in folders] == [True, False]
        assert (folders[0] / "00000000000000000000.log").exists()
        assert partitions.find_readable("t", 0).is_follower
        await partitions.close()
        disk.close()

    asyncio.run(main())


def test_a_copy_that_comes_back_while_others_are_opened_is_not_set_aside(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / FOLDER / f"{GOOD}-0").mkdir(parents=True)
        disk = ListingDisk(str(tmp_path))
        partitions = partitions_on(disk)
        away = image_of(Topic(GOOD, "t", (placed(OTHER, 1, OTHER),)))
        more = away.apply(made := Delta(topics={BAD: topic(BAD, "other", ME)}))
        here = more.apply(back := Delta(topics={GOOD: Topic(GOOD, "t", (placed(OTHER, 1, OTHER, ME),))}))

        async def follow() -> None:
            await partitions.follow(Change(away, more, made))
            await partitions.follow(Change(more, here, back))

        starting = asyncio.ensure_future(partitions.start(away))
        await disk.listed.wait()
        disk.gate.clear()
        following = asyncio.ensure_future(follow())
        await turns()  # it has the turn
        disk.go_on.set()
        await turns()  # the start waits for its turn, with what was elsewhere
        disk.gate.set()
        await asyncio.gather(starting, following)
        assert disk.list(FOLDER) == [f"{GOOD}-0", f"{BAD}-0"]
        await partitions.close()
        disk.close()

    asyncio.run(main())


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


class RemovingDisk(RealDisk):
    """Whoever is about to remove something waits, until a test lets it go on."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.removes, self.go_on = threading.Event(), threading.Event()

    def remove(self, path: str) -> None:
        self.removes.set()
        self.go_on.wait()
        super().remove(path)


def test_a_copy_that_comes_back_while_it_is_removed_is_a_new_one_and_stays(tmp_path: Path) -> None:
    async def main() -> None:
        folder = tmp_path / FOLDER / f"{GOOD}-0"
        disk = RemovingDisk(str(tmp_path))
        partitions = partitions_on(disk)
        here = image_of(Topic(GOOD, "t", (placed(ME, 1, ME, OTHER),)))
        away = here.apply(gone := Delta(topics={GOOD: Topic(GOOD, "t", (placed(OTHER, 2, OTHER),))}))
        back = away.apply(come := Delta(topics={GOOD: Topic(GOOD, "t", (placed(OTHER, 2, OTHER, ME),))}))
        await partitions.start(here)
        batch = memoryview(bytearray(records.encode([records.Record(Offset(0), 1_000, None, b"0", ())])))
        partitions.find("t", 0).append(batch, check_produced(batch))
        await partitions.follow(Change(here, away, gone))
        removing = asyncio.ensure_future(partitions.remove_leftovers())
        await asyncio.to_thread(disk.removes.wait)
        await partitions.follow(Change(away, back, come))
        assert partitions.find_readable("t", 0).log.is_new
        await partitions.follow(Change(back, away, gone))  # the first one is not gone yet
        assert not folder.exists()
        await partitions.follow(Change(away, back, come))
        disk.go_on.set()
        await removing
        await partitions.remove_leftovers()
        assert list((tmp_path / FOLDER).iterdir()) == [folder]
        assert (folder / "00000000000000000000.log").exists()
        assert partitions.find_readable("t", 0).is_follower
        await partitions.close()
        disk.close()

    asyncio.run(main())


def test_a_copy_that_comes_back_while_others_are_removed_stays(tmp_path: Path) -> None:
    async def main() -> None:
        folders = [tmp_path / FOLDER / f"{GOOD}-{number}" for number in (0, 1)]
        for folder in folders:
            folder.mkdir(parents=True)
        disk = RemovingDisk(str(tmp_path))
        partitions = partitions_on(disk)
        away = image_of(Topic(GOOD, "t", (placed(OTHER, 1, OTHER), placed(OTHER, 1, OTHER))))
        await partitions.start(away)
        removing = asyncio.ensure_future(partitions.remove_leftovers())
        await asyncio.to_thread(disk.removes.wait)
        back = Delta(topics={GOOD: Topic(GOOD, "t", (placed(OTHER, 1, OTHER), placed(OTHER, 1, OTHER, ME)))})
        await partitions.follow(Change(away, away.apply(back), back))
        disk.go_on.set()
        await removing
        assert [folder.exists() for folder in folders] == [False, True]
        assert (folders[1] / "00000000000000000000.log").exists()
        assert partitions.find_readable("t", 1).is_follower
        await partitions.close()
        disk.close()

    asyncio.run(main())


def test_a_copy_that_was_set_aside_does_not_come_back_with_the_power() -> None:
    async def main(seed: int) -> None:
        disk = SimDisk(SeededRng(seed))
        partitions = partitions_on(disk)
        before = image_of(topic(GOOD, "t", ME, ME))
        await partitions.start(before)
        moved = Delta(topics={GOOD: topic(GOOD, "t", ME, OTHER)})
        await partitions.follow(Change(before, before.apply(moved), moved))
        assert disk.crash().list(FOLDER) == [f"{GOOD}-0", f"{GOOD}-1.gone"]

    for seed in range(20):
        asyncio.run(main(seed))


def test_roles_change_only_where_the_image_did(tmp_path: Path) -> None:
    async def main() -> None:
        disk = RealDisk(str(tmp_path))
        partitions = partitions_on(disk)
        before = image_of(Topic(GOOD, "t", tuple(placed(ME, 1, ME, OTHER) for _ in range(3))))
        await partitions.start(before)
        now = (placed(ME, 1, ME, OTHER), placed(OTHER, 2, ME, OTHER), placed(ME, 1, ME, OTHER))
        delta = Delta(topics={GOOD: Topic(GOOD, "t", now)})
        changed = await partitions.follow(Change(before, before.apply(delta), delta))
        assert [each.key.number for each in changed] == [1]
        await partitions.close()
        disk.close()

    asyncio.run(main())


def test_what_is_opened_while_the_image_changes_gets_the_role_of_now(tmp_path: Path) -> None:
    async def main() -> None:
        disk = GatedDisk(str(tmp_path))
        partitions = partitions_on(disk)
        await partitions.start(image_of())
        before = image_of(Topic(GOOD, "t", (placed(ME, 1, ME, OTHER),)))
        (tmp_path / FOLDER / f"{GOOD}-0").write_text("a file where a folder should be")
        first = Delta(topics={GOOD: before.topics[GOOD]})
        await partitions.follow(Change(image_of(), before, first))
        (tmp_path / FOLDER / f"{GOOD}-0").unlink()
        again = asyncio.ensure_future(partitions.try_again())
        await asyncio.sleep(0)  # it is being opened
        moved = Delta(topics={GOOD: Topic(GOOD, "t", (placed(OTHER, 2, ME, OTHER),))})
        await partitions.follow(Change(before, before.apply(moved), moved))
        await again
        assert partitions.find_readable("t", 0).leader_epoch == 2
        await partitions.close()
        disk.close()

    asyncio.run(main())


def test_who_does_not_know_what_its_log_holds_tells_nobody_and_does_not_lead() -> None:
    async def main() -> None:
        disk = SimDisk(SeededRng(1))
        partitions = partitions_on(disk)
        before = image_of(Topic(GOOD, "t", (placed(OTHER, 1, ME, OTHER),)))
        await partitions.start(before)
        partition = partitions.find_readable("t", 0)
        batch = bytearray(records.encode([records.Record(Offset(0), 1_000, None, b"v", ())]))
        partition.log.append(batch, check_produced(batch), leader_epoch=0)
        await partition.log.sync()
        disk.inject(Fault("read", times=3))
        with pytest.raises(StorageFailed):
            await partition.log.truncate(0)
        await partition.log.idle()
        assert (partition.question(), partitions.failed) == (None, [partition.key])
        change = Delta(topics={GOOD: Topic(GOOD, "t", (placed(ME, 2, ME, OTHER),))})
        await partitions.follow(Change(before, before.apply(change), change))
        with pytest.raises(LeaderNotAvailable):
            partitions.find("t", 0)
        await partition.log.sync()  # whoever asks for something makes it look again
        assert partitions.failed == []
        assert await partitions.try_again() == [partition]
        assert partitions.find("t", 0).leader_epoch == 2
        assert await partitions.try_again() == []
        await partitions.close()

    asyncio.run(main())


def test_new_logs_cost_three_syncs_each_and_survive_a_power_loss() -> None:
    """Segment and checkpoint are synced, then the names of both; the folders of all logs are made with one sync."""

    async def main(seed: int) -> None:
        disk = SimDisk(SeededRng(seed))
        partitions = partitions_on(disk)
        await partitions.start(image_of())
        disk.calls.clear()
        after = image_of(topic(GOOD, "good", *[ME] * 6))
        await partitions.follow(Change(image_of(), after, Delta(topics={GOOD: after.topics[GOOD]})))
        syncs = [call for call, _ in disk.calls if call.startswith("sync")]
        assert len(syncs) == 6 * 3 + 1
        survived = disk.crash()
        assert survived.list(FOLDER) == [f"{GOOD}-{number}" for number in range(6)]
        for folder in survived.list(FOLDER):
            assert survived.list(f"{FOLDER}/{folder}") == ["00000000000000000000.log", "checkpoint"]

    for seed in range(20):
        asyncio.run(main(seed))


@pytest.mark.parametrize("proved", [True, False])
def test_what_was_deleted_is_not_synced_first_unless_nothing_proves_it(proved: bool) -> None:
    async def main() -> None:
        disk = SimDisk(SeededRng(1))
        partitions = partitions_on(disk)
        before = image_of(topic(GOOD, "good", ME, flush_mode="os"))
        await partitions.start(before)
        batch = memoryview(bytearray(records.encode([records.Record(Offset(0), 1_000, None, b"0", ())])))
        partitions.find("good", 0).append(batch, check_produced(batch))
        disk.calls.clear()
        proofs = {GOOD: DeletedTopic(GOOD, "good", (ME,))} if proved else {}
        gone = Delta(topics={GOOD: None}, deleted=proofs)
        await partitions.follow(Change(before, before.apply(gone), gone))
        assert any(call == "sync" for call, _ in disk.calls) is not proved
        assert disk.list(FOLDER) == [f"{GOOD}-0"]
        await partitions.set_deleted_aside({GOOD})
        await partitions.remove_leftovers()
        assert disk.list(FOLDER) == []

    asyncio.run(main())
