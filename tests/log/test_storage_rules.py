"""The storage rules (47 to 53): each test fails when its rule is switched off."""

import asyncio
import contextlib
import errno
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from runnel.log.log import Appended, Log
from runnel.model.errors import CorruptBatch, Corruption, Fatal, StorageFailed
from runnel.model.topic_config import FlushMode, TopicConfig
from runnel.record import batch, records
from runnel.record.records import Record
from runnel.testing.clock import ManualClock, SeededRng
from runnel.testing.disk import Fault, SimDisk

FOLDER = "partitions/p-0"
FIRST = f"{FOLDER}/{0:020}.log"
CLOCK = ManualClock()


def config(mode: str = "os", segment_bytes: int = 10**6, **others: Any) -> TopicConfig:
    return TopicConfig(flush_mode=FlushMode(mode), segment_bytes=segment_bytes, index_interval_bytes=200, **others)


def made(count: int = 1, size: int = 100, **others: Any) -> bytearray:
    return bytearray(records.encode([Record(i, 1000 + i, b"k", b"v" * size, ()) for i in range(count)], **others))


async def put(log: Log, count: int = 1, **others: Any) -> list[Appended]:
    pending = []
    for _ in range(count):
        one = made(**others)
        pending.append(log.append(one, batch.check_produced(one), leader_epoch=0))
    return [p if isinstance(p, Appended) else await p for p in pending]


async def opened(disk: SimDisk, settings: TopicConfig | None = None, **others: Any) -> Log:
    return await Log.open(disk, FOLDER, settings or config(), clock=CLOCK, **others)


async def offsets(log: Log, start: int | None = None) -> list[int]:
    found, offset = [], log.start_offset if start is None else start
    while data := await log.read(offset, 1000, log.end_offset):
        for _, header in batch.headers(data):
            found.append(header.base_offset)
            offset = header.last_offset + 1
    return found


def run(test: Callable[[SimDisk], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(SimDisk(SeededRng(1)))

    asyncio.run(main())


# --- 47: the checksum is looked at on the read path, on recovery and on a follower's append


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("at", [8, 16, 17, 30, 100, 150])  # length, magic, checksum, timestamp, the records
def test_a_rotten_batch_is_reported_with_its_place_and_not_served(at: int, cached: bool) -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk)
        size = len(made())
        await put(log, 10)
        await log.close()
        disk.rot(FIRST, 4 * size + at)
        disk.chill(lambda path: not cached)
        log = await opened(disk)
        assert await offsets_until(log, 0) == [0, 1, 2, 3]
        with pytest.raises(Corruption) as caught:
            await log.read(4, 1000, log.end_offset)
        assert caught.value.path == FIRST
        assert caught.value.position == 4 * size
        assert await offsets(log, 5) == [5, 6, 7, 8, 9]
        assert await offsets_until(log, 2) == [2, 3]
        assert len(log.damage) == 1

    run(test)


async def offsets_until(log: Log, start: int) -> list[int]:
    """What one read gives: it stops before what is rotten."""
    return [header.base_offset for _, header in batch.headers(await log.read(start, 10**6, log.end_offset))]


@pytest.mark.parametrize("at", [0, 7])
def test_a_batch_with_another_offset_than_is_due_is_rotten(at: int) -> None:
    """Base offset and leader epoch lie outside the checksum."""

    async def test(disk: SimDisk) -> None:
        log = await opened(disk)
        await put(log, 10)
        await log.close()
        disk.rot(FIRST, 4 * len(made()) + at, 1)
        log = await opened(disk)
        assert await offsets_until(log, 0) == [0, 1, 2, 3]
        with pytest.raises(Corruption):
            await log.read(4, 1000, log.end_offset)
        assert await offsets(log, 5) == [5, 6, 7, 8, 9]

    run(test)


def test_a_batch_with_another_epoch_than_its_offset_has_is_rotten() -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk)
        await put(log, 10)
        await log.close()
        disk.rot(FIRST, 4 * len(made()) + 15, 1)
        log = await opened(disk)
        with pytest.raises(Corruption):
            await log.read(4, 1000, log.end_offset)
        assert await offsets(log, 5) == [5, 6, 7, 8, 9]

    run(test)


def test_a_follower_takes_no_damaged_batch() -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk)
        good = made()
        batch.patch(good, 0, 3)
        bad = bytearray(good)
        bad[80] ^= 1
        with pytest.raises(CorruptBatch):
            log.append_as_follower(bad)
        appended = log.append_as_follower(good)
        assert (appended if isinstance(appended, Appended) else await appended).last_offset == 0
        assert log.epochs.entries() == [(3, 0)]

    run(test)


def test_rot_in_the_tail_that_was_not_synced_is_cut_off() -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk)
        await put(log, 5)
        await log.sync()
        await put(log, 5)
        disk.rot(FIRST, 7 * len(made()) + 90)
        log = await opened(disk.kill())
        assert await offsets(log) == [0, 1, 2, 3, 4, 5, 6]
        assert not log.damage

    run(test)


# --- 48: recovery cuts the torn tail, nothing that was synced


@pytest.mark.parametrize("cut", range(1, 172, 10))
def test_exactly_the_torn_batch_is_cut_off(cut: int) -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk)
        await put(log, 5)
        whole = disk.content(FIRST)
        size = len(made())
        disk.damage(FIRST, whole[: 4 * size + cut % size])
        disk = disk.kill()
        log = await opened(disk)
        assert log.end_offset == 4
        assert disk.content(FIRST) == whole[: 4 * size]
        assert [a.base_offset for a in await put(log)] == [4]

    run(test)


def test_a_hole_below_the_recovery_point_is_kept_and_not_truncated() -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk)
        await put(log, 5)
        await log.close()
        log = await opened(disk)
        await put(log, 5)
        disk.rot(FIRST, 2 * len(made()) + 100)
        disk = disk.kill()
        log = await opened(disk)
        assert log.end_offset == 10
        assert await offsets(log, 3) == [3, 4, 5, 6, 7, 8, 9]
        with pytest.raises(Corruption):
            await log.read(2, 100, 10)

    run(test)


def test_synced_bytes_that_are_gone_are_reported_and_their_offsets_not_used_again() -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk)
        await put(log, 10)
        await log.close()
        disk.damage(FIRST, disk.content(FIRST)[: 5 * len(made()) + 30])
        log = await opened(disk)
        assert log.end_offset == 10
        assert "5 to 9" in str(log.damage[-1])
        assert await offsets_until(log, 0) == [0, 1, 2, 3, 4]
        with pytest.raises(Corruption):
            await log.read(7, 1000, 10)
        assert [a.base_offset for a in await put(log)] == [10]

    run(test)


def test_without_a_checkpoint_only_what_nothing_good_follows_is_cut_off() -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk)
        await put(log, 10)
        size = len(made())
        disk.rot(FIRST, 3 * size + 100)
        disk.damage(FIRST, disk.content(FIRST)[: 9 * size + 10])
        disk.remove(f"{FOLDER}/checkpoint")
        log = await opened(disk.kill())
        assert log.end_offset == 9
        assert len(log.damage) == 1
        assert await offsets(log, 4) == [4, 5, 6, 7, 8]
        with pytest.raises(Corruption):
            await log.read(3, 1000, 9)

    run(test)


def test_what_led_up_to_a_segment_was_lost_so_it_goes_too() -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk, config(segment_bytes=700))
        disk.inject(Fault("sync", power_cut=True, path=f"{0:020}.log"))  # the roll is done, sealing is not
        await put_until_dead(log)
        names = [name for name in disk.crash().list(FOLDER) if name.endswith(".log")]
        assert len(names) >= 1
        survivor = disk.crash()
        survivor.damage(FIRST, b"")
        log = await opened(survivor, config(segment_bytes=700))
        assert log.end_offset == 0
        assert [name for name in survivor.list(FOLDER) if name.endswith(".log")] == [f"{0:020}.log"]

    run(test)


async def put_until_dead(log: Log) -> None:
    for _ in range(10):
        one = made()
        log.append(one, batch.check_produced(one), leader_epoch=0)
        await asyncio.sleep(0)


# --- 49: what can be rebuilt is never trusted


AUXILIARY = [".index", ".producers", "checkpoint"]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("how", ["removed", "empty", "cut", "garbage", "flipped", "flipped at the begin"])
@pytest.mark.parametrize("suffix", AUXILIARY)
def test_every_auxiliary_file_may_be_lost(suffix: str, how: str, clean: bool) -> None:
    async def test(disk: SimDisk) -> None:
        settings = config("commit", segment_bytes=2000)
        log = await opened(disk, settings)
        for number in range(40):
            await put(log, producer_id=7, producer_epoch=0, base_sequence=number)
        await (log.close() if clean else log.sync())
        disk = disk.kill()
        names = [name for name in disk.list(FOLDER) if name.endswith(suffix)]
        assert names
        for name in names:
            spoil(disk, f"{FOLDER}/{name}", how)
        log = await opened(disk, settings)
        assert (log.start_offset, log.end_offset) == (0, 40)
        assert await offsets(log) == list(range(40))
        for offset in range(40):
            first = batch.read_header(await log.read(offset, 1, 40))
            assert first.base_offset == offset
            found = await log.offset_by_time(1000)
            assert found is not None
            assert found.offset == 0
        (producer,) = log.producers
        assert [b.base_offset for b in producer.batches] == [35, 36, 37, 38, 39]
        assert log.epochs.entries() == [(0, 0)]
        assert not log.damage

    run(test)


def spoil(disk: SimDisk, path: str, how: str) -> None:
    content = disk.content(path)
    match how:
        case "removed":
            disk.remove(path)
        case "empty":
            disk.damage(path, b"")
        case "cut":
            disk.damage(path, content[: len(content) // 2])
        case "garbage":
            disk.damage(path, bytes(range(256)) * (len(content) // 256 + 1))
        case "flipped at the begin":
            for at in range(min(40, len(content) // 2)):
                disk.rot(path, at, 0x55)
        case "flipped":
            for at in range(0, len(content), 7):
                disk.rot(path, at, 0x55)


def test_files_that_are_not_ours_are_left_alone() -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk)
        await put(log, 3)
        await log.close()
        for name in ("notes.txt", "0.log", f"{5:020}.log.bak", "backup.tmp"):
            disk.open(f"{FOLDER}/{name}", create=True)
        disk.make_dir(f"{FOLDER}/old")
        log = await opened(disk)
        assert await offsets(log) == [0, 1, 2]
        await log.truncate(0)
        await log.close()
        assert {"notes.txt", "0.log", f"{5:020}.log.bak", "backup.tmp", "old"} <= set(disk.list(FOLDER))

    run(test)


# --- 50: creating and replacing files survives a power cut at any point


def test_a_new_segment_and_a_checkpoint_are_synced_with_their_folder_before_they_count() -> None:
    async def test(disk: SimDisk) -> None:
        settings = config("commit", segment_bytes=700)
        log = await opened(disk, settings)
        disk.calls.clear()
        await put(log, 6)
        await log.sync()
        second = next(path for call, path in disk.calls if call == "open" and path != FIRST and path.endswith(".log"))
        mine = [call for call, path in disk.calls if path in (second, FOLDER)]
        assert mine[: mine.index("write")].count("sync") == 1
        assert "sync_dir" in mine[mine.index("sync") : mine.index("write")]
        tmp = f"{FOLDER}/checkpoint.tmp"
        about = [call for call, path in disk.calls if path in (tmp, FOLDER) and call != "sync_dir"]
        assert about[-4:] == ["truncate", "write", "sync", "rename"]
        calls = [(call, path) for call, path in disk.calls]
        assert ("sync_dir", FOLDER) in calls[calls.index(("rename", tmp)) :]

    run(test)


@pytest.mark.parametrize("cut_at", range(1, 25))
def test_a_power_cut_during_a_truncation_leaves_a_log_without_damage(cut_at: int) -> None:
    async def test(disk: SimDisk) -> None:
        settings = config("commit", segment_bytes=700)
        log = await opened(disk, settings)
        await put(log, 12)
        await log.close()
        log = await opened(disk, settings)
        disk.inject(Fault("", power_cut=True, nth=cut_at))
        task = asyncio.create_task(log.truncate(5))
        while not task.done() and not disk.dead:
            await asyncio.sleep(0)
        finished = task.done()
        task.cancel()
        log = await opened(disk.crash(), settings)
        assert not log.damage
        assert 5 <= log.end_offset <= (5 if finished else 12)
        assert await offsets(log) == list(range(log.end_offset))

    run(test)


def test_producers_follow_a_truncation() -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk, config(segment_bytes=700))
        for number in range(10):
            await put(log, producer_id=7, producer_epoch=0, base_sequence=number)
        await log.truncate(5)
        (appended,) = await put(log, producer_id=7, producer_epoch=0, base_sequence=5)
        assert (appended.base_offset, appended.duplicate) == (5, False)
        (again,) = await put(log, producer_id=7, producer_epoch=0, base_sequence=4)
        assert (again.base_offset, again.duplicate) == (4, True)

    run(test)


# --- 51: a failed fsync ends the broker; a failed write fails its appends alone


@pytest.mark.parametrize("mode", ["commit", "interval", "os"])
def test_a_failed_fsync_is_fatal_never_retried_and_nothing_is_acknowledged(mode: str) -> None:
    async def test(disk: SimDisk) -> None:
        fatal: list[Fatal] = []
        log = await opened(disk, config(mode), on_fatal=fatal.append)
        await put(log, 3)
        await log.sync()
        disk.inject(Fault("sync", errno.EIO))
        one = made()
        log.append(one, batch.check_produced(one), leader_epoch=0)
        with pytest.raises(Fatal):
            await log.sync()
        assert len(fatal) == 1
        assert log.synced_offset == 3
        with pytest.raises(StorageFailed):
            await put(log)
        syncs = sum(1 for call, _ in disk.calls if call == "sync")
        with pytest.raises(Fatal):
            await log.sync()
        await log.close()
        assert sum(1 for call, _ in disk.calls if call == "sync") == syncs

    run(test)


@pytest.mark.parametrize("mode", ["commit", "interval"])
def test_what_a_failed_fsync_left_in_memory_is_written_again(mode: str) -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk, config(mode), on_fatal=lambda error: None)
        await put(log, 3)
        await log.sync()
        disk.inject(Fault("sync", path=FIRST, loses=True))
        await put(log)
        with pytest.raises(Fatal):
            await log.sync()
        disk = disk.kill()
        log = await opened(disk, config(mode))
        assert log.synced_offset == 4
        log = await opened(disk.crash(), config(mode))
        assert await offsets(log) == [0, 1, 2, 3]

    run(test)


FULL = Fault("write", errno.ENOSPC, path="checkpoint", times=10**6)


@pytest.mark.parametrize("segment_bytes", [10**6, 400], ids=["one segment", "segments"])
def test_what_a_failed_fsync_left_in_memory_is_written_again_without_a_checkpoint(segment_bytes: int) -> None:
    settings = config("commit", segment_bytes)

    async def test(disk: SimDisk) -> None:
        disk.inject(replace(FULL))
        log = await opened(disk, settings, on_fatal=lambda error: None)
        disk.inject(Fault("sync", path=FIRST, loses=True))
        with contextlib.suppress(StorageFailed):
            await put(log, 5)
        with pytest.raises(Fatal):
            await log.sync()
        found = await offsets(await opened(disk := disk.kill(), settings))
        assert found
        assert await offsets(await opened(disk.crash(), settings)) == found

    run(test)


def test_what_lies_before_a_rotten_batch_is_written_again_too() -> None:
    async def test(disk: SimDisk) -> None:
        disk.inject(replace(FULL))
        log = await opened(disk, config("os"), on_fatal=lambda error: None)
        await put(log, 3)
        size = len(made())
        disk.inject(Fault("sync", path=FIRST, loses=True))
        with pytest.raises(Fatal):
            await log.sync()
        disk = disk.kill()
        disk.open(FIRST).write([bytes(size)], size)  # nobody can read the second one
        log = await opened(disk, config("commit"))
        assert [(one.first_offset, one.next_offset) for one in log.damage] == [(1, 2)]
        log = await opened(disk.crash(), config("commit"))
        assert len(await log.read(0, size, 1)) == size
        assert len(await log.read(2, size, 3)) == size

    run(test)


class Harsh(SeededRng):
    """Of what is left to chance nothing is good: what was not synced is lost."""

    def below(self, bound: int) -> int:
        return 0


@pytest.mark.parametrize("full", [False, True], ids=["", "no room for a checkpoint"])
@pytest.mark.parametrize("first", range(1, 45))
def test_names_that_killed_brokers_left_are_synced_before_anything_counts_on_them(first: int, full: bool) -> None:
    settings = config("commit", 400)

    async def life(disk: SimDisk, count: int, *faults: Fault) -> int:
        for fault in faults:
            disk.inject(fault)
        log = await opened(disk, settings)
        await put(log, count)
        await log.sync()
        return log.held_offset

    async def killed(disk: SimDisk, count: int, nth: int, *faults: Fault) -> SimDisk:
        living = asyncio.ensure_future(life(disk, count, *faults, Fault("", nth=nth, killed=True)))
        while not living.done() and not disk.dead:
            await asyncio.sleep(0)
        living.cancel()
        await asyncio.wait([living])
        return disk.kill()

    async def test(second: int, last: int) -> None:
        disk = await killed(SimDisk(Harsh(1)), 5, first)
        faults = [replace(FULL)] if full else []
        disk = await killed(disk, 1, second, *faults)
        held = await life(disk, last, *faults)
        assert await offsets(await opened(disk.crash(), settings)) == list(range(held))

    for second in range(1, 12):
        asyncio.run(test(second, 0))
        asyncio.run(test(second, 1))


def test_a_log_that_can_not_be_read_after_a_cut_that_failed_is_read_later() -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk, config("commit"))
        await put(log, 6)
        disk.inject(Fault("read", path=FOLDER, times=3))  # the cut, what is there, and what is there once more
        with pytest.raises(StorageFailed):
            await log.truncate(3)
        await log.idle()
        assert log.is_lost
        with pytest.raises(StorageFailed, match="half-way"):
            await log.read(0, 1000, 3)
        await log.truncate(3)
        await put(log)
        assert await offsets(log) == [0, 1, 2, 3]

    run(test)


CHANGES: dict[str, tuple[Callable[[Log], Awaitable[object]], int]] = {  # and where the log goes on
    "truncate": (lambda log: log.truncate(9), 9),
    "begin_anew": (lambda log: log.begin_anew(30), 30),
    "compact": (lambda log: log.compact(), 20),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_log_whose_files_change_outlives_any_errors_in_a_row(change: str) -> None:
    settings = config("commit", 600, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)
    do, end = CHANGES[change]
    lost: list[bool] = []

    async def test(disk: SimDisk, fault: Fault) -> None:
        log = await opened(disk, settings, on_fatal=lambda error: None)
        await put(log, 20)
        disk.inject(fault)
        with contextlib.suppress(StorageFailed):
            await do(log)
        await log.idle()
        lost.append(log.is_lost)
        disk.heal()
        await log.sync()
        await do(log)
        [appended] = await put(log)
        assert (appended.base_offset, log.is_lost, log.damage) == (end, False, [])
        await log.sync()
        expected = await offsets(log)
        again = await opened(disk.kill(), settings)
        assert (await offsets(again), again.damage) == (expected, [])

    for call in ("open", "read", "remove", "rename"):
        for nth in range(1, 8):
            with contextlib.suppress(Fatal):  # the broker ends
                asyncio.run(test(SimDisk(SeededRng(nth)), Fault(call, nth=nth, times=8)))
    assert any(lost)


def test_those_in_line_behind_a_failed_fsync_get_an_error() -> None:
    async def test(disk: SimDisk) -> None:
        fatal: list[Fatal] = []
        log = await opened(disk, config("commit"), on_fatal=fatal.append)
        await put(log)
        await log.sync()
        disk.inject(Fault("sync", errno.EIO))
        results = [log.append(b := made(), batch.check_produced(b), leader_epoch=0)]
        await asyncio.sleep(0)
        results += [log.append(b := made(), batch.check_produced(b), leader_epoch=0) for _ in range(3)]
        waiting = [result for result in results if not isinstance(result, Appended)]
        assert len(waiting) == 3
        for future in waiting:
            with pytest.raises(StorageFailed):
                await future
        assert log.held_offset == 1

    run(test)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG])
@pytest.mark.parametrize("short", [None, 0, 40])
@pytest.mark.parametrize("together", [1, 4])
def test_a_failed_write_fails_its_appends_alone_and_heals(number: int, short: int | None, together: int) -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk, config("commit"))
        await put(log, 2)
        await log.sync()
        before = disk.content(FIRST)
        disk.inject(Fault("write", number, path=FIRST, short_bytes=short, times=100))
        results = await asyncio.gather(*(attempt(log) for _ in range(together)))
        assert all(isinstance(result, StorageFailed) for result in results)
        assert disk.content(FIRST) == before
        assert log.end_offset == 2
        assert await offsets(log) == [0, 1]
        disk.heal()
        assert [a.base_offset for a in await put(log)] == [2]
        await log.close()
        assert await offsets(await opened(disk)) == [0, 1, 2]

    run(test)


async def attempt(log: Log, **others: Any) -> Appended | StorageFailed:
    one = made(**others)
    try:
        result = log.append(one, batch.check_produced(one), leader_epoch=0)
        return result if isinstance(result, Appended) else await result
    except StorageFailed as error:
        return error


def test_a_failed_write_takes_the_sequence_back() -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk)
        one = {"producer_id": 7, "producer_epoch": 0}
        assert isinstance(await attempt(log, base_sequence=0, **one), Appended)
        disk.inject(Fault("write", errno.ENOSPC, path=FIRST))
        assert isinstance(await attempt(log, base_sequence=1, **one), StorageFailed)
        again = await attempt(log, base_sequence=1, **one)
        assert isinstance(again, Appended)
        assert not again.duplicate

    run(test)


def test_what_stood_in_line_behind_a_failed_write_is_not_written_either() -> None:
    """Else the log, which does not know the producer yet, would take its second batch for the first."""

    async def test(disk: SimDisk) -> None:
        one = {"producer_id": 7, "producer_epoch": 0}
        size = len(made(**one, base_sequence=0))
        log = await opened(disk, config("commit", segment_bytes=2 * size + size // 2))
        await put(log)  # its sync is under way
        disk.inject(Fault("write", errno.ENOSPC, path=FIRST))
        results = await asyncio.gather(*(attempt(log, **one, base_sequence=n) for n in (0, 1)))
        assert all(isinstance(result, StorageFailed) for result in results)
        assert log.end_offset == 1
        again = [await attempt(log, **one, base_sequence=n) for n in (0, 1)]
        assert [isinstance(result, Appended) for result in again] == [True, True]

    run(test)


def test_if_the_rest_of_a_failed_write_can_not_be_cut_off_appends_wait_until_it_can() -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk)
        await put(log, 2)
        disk.inject(Fault("write", errno.EIO, path=FIRST, short_bytes=50))
        disk.inject(Fault("truncate", errno.EIO, path=FIRST, times=2))
        assert isinstance(await attempt(log), StorageFailed)
        assert isinstance(await attempt(log), StorageFailed)
        assert await offsets(log) == [0, 1]
        assert isinstance(await attempt(log), Appended)
        assert await offsets(await opened(disk.kill())) == [0, 1, 2]

    run(test)


def test_a_roll_that_finds_no_room_fails_its_appends_and_heals() -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk, config(segment_bytes=400))
        await put(log, 2)
        disk.inject(Fault("open", errno.ENOSPC))
        failed = await attempt(log)
        assert isinstance(failed, StorageFailed)
        assert "make room" in str(failed)
        assert isinstance(await attempt(log), Appended)
        assert await offsets(log) == [0, 1, 2]

    run(test)


def test_an_index_that_is_cut_while_it_is_used_is_built_again() -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk, config(segment_bytes=2_000))
        await put(log, 30)
        await log.sync()
        assert await offsets(log) == list(range(30))
        index = disk.open(f"{FOLDER}/{0:020}.index")
        assert index.size() > 0
        index.truncate(0)
        disk.chill(lambda path: True)
        assert await offsets(log, 8) == list(range(8, 30))
        assert index.size() > 0

    run(test)


@pytest.mark.parametrize("truncated", [False, True])
def test_what_a_failed_roll_leaves_does_not_come_to_lie_in_the_middle(truncated: bool) -> None:
    """A smaller batch would still fit into the segment before: after a restart it would lie behind its successor."""

    async def test(disk: SimDisk) -> None:
        settings = config(segment_bytes=430)
        log = await opened(disk, settings)
        await put(log, 2)
        disk.inject(Fault("truncate", errno.EIO, path=f"{2:020}.log"))
        assert isinstance(await attempt(log), StorageFailed)
        if truncated:
            await log.truncate(1)
        await put(log, 1, size=10)
        await put(log, 3)
        before = await offsets(log)
        assert before == ([0, 1, 2, 3, 4] if truncated else [0, 1, 2, 3, 4, 5])
        assert await offsets(await opened(disk.kill(), settings)) == before

    run(test)


# --- 53: nothing is mapped, and every write says where


def test_no_written_file_is_mapped() -> None:
    """A mapped file dies of SIGBUS where a written one gets ENOSPC."""
    from pathlib import Path

    import runnel

    root = Path(next(iter(runnel.__path__)))
    sources = [*(root / "log").glob("*.py"), root / "shell" / "disk.py"]
    assert sources
    for source in sources:
        code = source.read_text()
        assert "import mmap" not in code
        assert "O_APPEND" not in code


# --- the errno matrix: every call of the disk, every error


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT, errno.EMFILE])
@pytest.mark.parametrize(
    "call",
    ["open", "exists", "list", "make_dir", "rename", "remove", "sync_dir", "size", "write", "read", "truncate", "sync"],
)
def test_whatever_call_fails_nothing_acknowledged_is_lost(call: str, number: int) -> None:
    async def test(disk: SimDisk) -> None:
        settings = config("commit", segment_bytes=1000)
        for nth in (1, 2, 3, 5, 8):
            synced = await trouble(disk, settings, Fault(call, number, nth=nth, times=3))
            disk = disk.crash()
            log = await opened(disk, settings)
            assert log.synced_offset >= synced
            assert await offsets(log) == list(range(log.start_offset, log.end_offset))
            assert not log.damage
            await log.close()

    run(test)


async def trouble(disk: SimDisk, settings: TopicConfig, fault: Fault) -> int:
    """Use a log while something fails; what it said was synced."""
    disk.inject(fault)
    held = 0
    try:
        log = await opened(disk, settings, on_fatal=lambda error: None)
    except (StorageFailed, Fatal):
        return 0
    with_errors: list[Callable[[], Awaitable[Any]]] = [
        lambda: attempt(log), lambda: attempt(log), log.sync, lambda: attempt(log), lambda: attempt(log),
        lambda: log.read(log.start_offset, 1, log.end_offset), lambda: log.truncate(log.end_offset - 1),
        lambda: attempt(log), log.sync, lambda: log.advance_start(log.start_offset + 1), log.enforce_retention,
        log.close,
    ]  # fmt: skip
    for step in with_errors:
        with contextlib.suppress(OSError, StorageFailed, Fatal):
            await step()
        held = log.synced_offset
    return held
