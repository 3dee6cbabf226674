"""What a log does when nothing goes wrong, and what a real process leaves when it is killed."""

import asyncio
import random
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from runnel.log import compaction
from runnel.log.log import Appended, Log
from runnel.model.errors import FencedEpoch, OffsetOutOfRange, StorageFailed
from runnel.model.seams import Disk
from runnel.model.topic_config import FlushMode, TimestampType, TopicConfig
from runnel.record import batch, records
from runnel.record.records import Record
from runnel.shell.disk import RealDisk
from runnel.testing.clock import ManualClock, SeededRng
from runnel.testing.disk import SimDisk

FOLDER = "partitions/p-0"
T = TypeVar("T")


def config(mode: str = "os", segment_bytes: int = 10**6, **others: Any) -> TopicConfig:
    return TopicConfig(flush_mode=FlushMode(mode), segment_bytes=segment_bytes, index_interval_bytes=200, **others)


def made(count: int = 1, *, key: bytes | None = b"k", value: bytes | None = b"v" * 100, **others: Any) -> bytearray:
    return bytearray(records.encode([Record(i, 1000 + i, key, value, ()) for i in range(count)], **others))


async def put(log: Log, *batches: bytearray, leader_epoch: int = 0) -> list[Appended]:
    pending = [log.append(b, batch.check_produced(b), leader_epoch=leader_epoch) for b in batches]
    return [p if isinstance(p, Appended) else await p for p in pending]


async def values(log: Log) -> list[tuple[int, bytes | None]]:
    found, offset = [], int(log.start_offset)
    while data := await log.read(offset, 1000, log.end_offset):
        for at, header in batch.headers(data):
            found += [(r.offset, r.value) for r in records.decode(data[at : at + header.size])]
            offset = header.last_offset + 1
    return found


@pytest.fixture(params=["simulated", "real"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Disk]:
    if request.param == "simulated":
        yield SimDisk(SeededRng(1))
        return
    real = RealDisk(str(tmp_path / "data"))
    yield real
    real.close()


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await work()

    asyncio.run(main())


def test_offsets_follow_each_other_and_reads_give_whole_batches(disk: Disk) -> None:
    async def work() -> None:
        log = await Log.open(disk, FOLDER, config(), clock=ManualClock())
        results = await put(log, made(3), made(1), made(2))
        assert [(r.base_offset, r.last_offset) for r in results] == [(0, 2), (3, 3), (4, 5)]
        assert (log.start_offset, log.end_offset) == (0, 6)
        one = await log.read(1, 1, 6)
        assert batch.read_header(one).base_offset == 0
        assert len(one) == len(made(3)), "at least one, whatever its size"
        assert not await log.read(6, 100, 6)
        assert not await log.read(4, 100, 5), "no batch that reaches beyond the bound"
        cached = log.read_cached(0, 10**6, 6)
        assert cached is not None
        assert [h.base_offset for _, h in batch.headers(cached)] == [0, 3, 4]
        for offset in (-1, 7):
            with pytest.raises(OffsetOutOfRange):
                await log.read(offset, 100, 6)
        await log.close()

    run(work)


def test_appends_during_a_sync_wait_and_are_written_with_one_call(tmp_path: Path) -> None:
    async def work() -> None:
        disk = SimDisk(SeededRng(1))
        log = await Log.open(disk, FOLDER, config("commit"), clock=ManualClock())
        await put(log, made())
        await log.sync()
        disk.calls.clear()
        first = log.append(b := made(), batch.check_produced(b), leader_epoch=0)
        assert isinstance(first, Appended), "nothing is under way: written at once"
        await asyncio.sleep(0)
        rest = [log.append(b := made(), batch.check_produced(b), leader_epoch=0) for _ in range(5)]
        assert not any(isinstance(one, Appended) for one in rest)
        await asyncio.gather(*(one for one in rest if not isinstance(one, Appended)))
        await log.sync()
        calls = [call for call, path in disk.calls if path.endswith(".log") and call in ("write", "sync")]
        assert calls == ["write", "sync", "write", "sync"]

    run(work)


@pytest.mark.parametrize("mode", ["commit", "interval", "os"])
def test_what_is_to_be_removed_is_not_synced_first(mode: str) -> None:
    async def work() -> None:
        disk = SimDisk(SeededRng(1))
        log = await Log.open(disk, FOLDER, config(mode, segment_bytes=500), clock=ManualClock())
        for _ in range(6):
            await put(log, made())
        await log.idle()
        late = [log.append(b := made(), batch.check_produced(b), leader_epoch=0) for _ in range(2)]  # they roll
        disk.calls.clear()
        await log.discard()
        await log.discard()
        outcomes = await asyncio.gather(*(one for one in late if not isinstance(one, Appended)), return_exceptions=True)
        assert all(isinstance(outcome, Appended | StorageFailed) for outcome in outcomes)
        assert [call for call, _ in disk.calls if call.startswith("sync")] == []
        with pytest.raises(StorageFailed):
            log.append(b := made(), batch.check_produced(b), leader_epoch=0)
        await log.idle()
        assert not log.busy

    run(work)


def test_nothing_is_written_to_a_folder_once_its_log_is_discarded() -> None:
    async def work() -> None:
        disk = SimDisk(SeededRng(1))
        log = await Log.open(disk, FOLDER, config("commit", segment_bytes=500), clock=ManualClock())
        for _ in range(6):
            await put(log, made())
        await log.idle()
        await log.discard()
        disk.rename(FOLDER, "partitions/another")
        disk.make_dir(FOLDER)  # another log's
        disk.calls.clear()
        late = [
            log.advance_start(3), log.enforce_retention(6), log.truncate(1), log.begin_anew(9), log.heal_from(2),
            log.sync(), log.read(0, 100, 6), log.offset_by_time(1_000), log.bytes_before([3]),
        ]  # fmt: skip
        outcomes = await asyncio.gather(*late, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [StorageFailed] * len(late), outcomes
        assert disk.list(FOLDER) == []
        assert not {call for call, _ in disk.calls} & {"write", "rename", "remove", "truncate"}

    run(work)


def test_who_reads_makes_no_file(disk: Disk) -> None:
    async def work() -> None:
        log = await Log.open(disk, FOLDER, config(), clock=ManualClock())
        await put(log, made(5))
        before = disk.list(FOLDER)
        assert not any(name.endswith(".index") for name in before), "its entries are in memory"
        assert len(await log.read(3, 10**6, 5)) == len(made(5))
        assert (await log.offset_by_time(1_002)) == (2, 1_002, 0)
        assert await log.bytes_before([5]) == [len(made(5))]
        assert disk.list(FOLDER) == before
        await log.close()

    run(work)


class Broken(SimDisk):
    """No folder can be looked through."""

    refuses = False

    def list(self, path: str) -> list[str]:
        if self.refuses:
            raise OSError(5, "Input/output error", path)
        return super().list(path)


def test_a_step_that_fails_keeps_nobody_from_discarding_a_log() -> None:
    async def work() -> None:
        disk = Broken(SeededRng(1))
        log = await Log.open(disk, FOLDER, config("commit"), clock=ManualClock())
        await put(log, made())
        await log.idle()
        disk.refuses = log._state.lost = True  # a change of its files failed half-way: it is to be read again
        log._writer._worker.kick()
        await asyncio.sleep(0)  # that has begun
        await log.discard()
        assert log.closing
        assert not log.busy

    run(work)


@pytest.mark.parametrize("mode", ["commit", "interval", "os"])
def test_what_is_held_depends_on_the_flush_mode(disk: Disk, mode: str) -> None:
    async def work() -> None:
        moves: list[tuple[int, int]] = []
        log = await Log.open(
            disk, FOLDER, config(mode), clock=ManualClock(),
            on_progress=lambda: moves.append((log.end_offset, log.held_offset)),
        )  # fmt: skip
        await put(log, made())
        assert log.held_offset == (0 if mode == "commit" else 1) or moves[-1] == (1, 1)
        await log.sync()
        assert log.held_offset == log.synced_offset == 1
        assert moves
        await log.close()

    run(work)


def test_interval_mode_syncs_after_so_many_messages_and_after_so_long() -> None:
    async def work() -> None:
        disk = SimDisk(SeededRng(1))
        settings = config("interval", flush_messages=3, flush_ms=5)
        synced = asyncio.Event()
        log = await Log.open(disk, FOLDER, settings, clock=ManualClock(), on_progress=synced.set)

        async def until(offset: int) -> None:
            while log.synced_offset < offset:
                synced.clear()
                await synced.wait()

        await put(log, made(3))
        await until(3)
        await put(log, made(1))
        await until(4)
        await log.close()

    run(work)


def test_segments_roll_by_size_age_and_index(disk: Disk) -> None:
    async def work() -> None:
        clock = ManualClock()
        log = await Log.open(disk, FOLDER, config(segment_bytes=500, segment_ms=1000), clock=clock)
        for _ in range(6):
            await put(log, made())
        by_size = segments(disk)
        assert by_size == [0, 2, 4]
        clock.advance(1000)
        await put(log, made())
        assert segments(disk) == [0, 2, 4, 6]
        log.reconfigure(config(segment_index_bytes=16))
        await put(log, made())
        assert segments(disk) == [0, 2, 4, 6, 7]
        assert [offset for offset, _ in await values(log)] == list(range(8))
        await log.close()

    run(work)


def segments(disk: Disk) -> list[int]:
    return [int(name[:20]) for name in disk.list(FOLDER) if name.endswith(".log")]


def test_log_append_time_is_stamped(disk: Disk) -> None:
    async def work() -> None:
        clock = ManualClock()
        log = await Log.open(disk, FOLDER, config(message_timestamp_type=TimestampType.APPEND), clock=clock)
        (appended,) = await put(log, made())
        assert appended.append_time_ms == clock.wall_ms()
        (record,) = records.decode(await log.read(0, 1, 1))
        assert record.timestamp == clock.wall_ms()
        assert await log.offset_of_max_timestamp() == (0, clock.wall_ms(), 0)
        await log.close()

    run(work)


def test_epochs_answer_what_offsets_for_leader_epoch_asks(disk: Disk) -> None:
    async def work() -> None:
        log = await Log.open(disk, FOLDER, config(), clock=ManualClock())
        for epoch in (1, 1, 3):
            await put(log, made(), leader_epoch=epoch)
        assert log.epochs.end_offset(0) == (0, 0)
        assert log.epochs.end_offset(1) == (1, 2)
        assert log.epochs.end_offset(2) == (1, 2)
        assert log.epochs.end_offset(3) == (3, 3)
        assert log.epochs.end_offset(4) == (-1, -1)
        with pytest.raises(FencedEpoch):
            await put(log, made(), leader_epoch=2)
        await log.close()

    run(work)


def test_a_follower_copies_its_leader_gaps_and_all(disk: Disk) -> None:
    async def work() -> None:
        log = await Log.open(disk, FOLDER, config(), clock=ManualClock())
        parts = []
        for base, epoch in ((0, 0), (5, 0), (6, 2)):
            one = made()
            batch.patch(one, base, epoch)
            parts.append(bytes(one))
        result = log.append_as_follower(b"".join(parts))
        appended = result if isinstance(result, Appended) else await result
        assert (appended.base_offset, appended.last_offset) == (0, 6)
        assert [offset for offset, _ in await values(log)] == [0, 5, 6]
        assert batch.read_header(await log.read(2, 1, 7)).base_offset == 5
        assert log.epochs.entries() == [(0, 0), (2, 6)]
        await log.close()

    run(work)


def test_retention_by_time_removes_even_the_active_segment(disk: Disk) -> None:
    async def work() -> None:
        clock = ManualClock()
        settings = config(segment_bytes=500, retention_ms=10_000)
        log = await Log.open(disk, FOLDER, settings, clock=clock)
        for _ in range(6):
            await put(log, made())
        assert (await log.enforce_retention(3)).segments == 1, "never beyond the bound"
        assert (log.start_offset, log.end_offset) == (2, 6)
        assert (await log.enforce_retention()).segments == 2
        assert (log.start_offset, log.end_offset, log.size_bytes) == (6, 6, 0)
        await put(log, made())
        await log.close()
        log = await Log.open(disk, FOLDER, settings, clock=clock)
        assert (log.start_offset, log.end_offset) == (6, 7)
        await log.close()

    run(work)


def test_compaction_keeps_the_last_of_each_key_and_its_offset(disk: Disk) -> None:
    async def work() -> None:
        clock = ManualClock()
        settings = config(
            "commit", segment_bytes=600, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0
        )
        log = await Log.open(disk, FOLDER, settings, clock=clock)
        for number in range(30):
            await put(log, made(key=b"k%d" % (number % 3), value=b"%d" % number))
        await log.sync()
        before = log.size_bytes
        stats = await log.compact()
        assert isinstance(stats, compaction.CompactionStats)
        assert stats.records_dropped > 0
        assert log.size_bytes < before
        kept = dict(await values(log))
        assert {29: b"29", 28: b"28", 27: b"27"}.items() <= kept.items()
        assert all(value == b"%d" % offset for offset, value in kept.items())
        assert batch.read_header(await log.read(1, 1, 30)).base_offset >= 1
        assert await log.compact() is None
        await log.close()
        log = await Log.open(disk, FOLDER, settings, clock=clock)
        assert dict(await values(log)) == kept
        await log.close()

    run(work)


def test_a_closed_log_takes_nothing(disk: Disk) -> None:
    async def work() -> None:
        log = await Log.open(disk, FOLDER, config(), clock=ManualClock())
        await put(log, made())
        await log.close()
        await log.close()
        with pytest.raises(StorageFailed):
            await put(log, made())

    run(work)


def test_a_log_can_begin_anew_below_its_start(disk: Disk) -> None:
    async def work() -> None:
        log = await Log.open(disk, FOLDER, config(segment_bytes=400), clock=ManualClock())
        for _ in range(6):
            await put(log, made())
        await log.advance_start(4)
        await log.truncate(2)
        assert (log.start_offset, log.end_offset) == (2, 2)
        assert [r.base_offset for r in await put(log, made())] == [2]
        await log.close()
        log = await Log.open(disk, FOLDER, config(segment_bytes=400), clock=ManualClock())
        assert [offset for offset, _ in await values(log)] == [2]
        await log.close()

    run(work)


WRITER = """
import asyncio, sys
from runnel.log.log import Appended, Log
from runnel.model.topic_config import FlushMode, TopicConfig
from runnel.record import batch, records
from runnel.shell.disk import RealDisk
from runnel.testing.clock import ManualClock

async def main(root, mode):
    config = TopicConfig(flush_mode=FlushMode(mode), segment_bytes=20_000, index_interval_bytes=200)
    log = await Log.open(RealDisk(root), "partitions/p-0", config, clock=ManualClock())
    print("begin", log.end_offset, flush=True)
    said = log.held_offset
    while True:
        for _ in range(10):
            one = bytearray(records.encode([records.Record(0, 1, b"k", b"%d" % log.end_offset, ())] * 1))
            appended = log.append(one, batch.check_produced(one), leader_epoch=0)
            if not isinstance(appended, Appended):
                await appended
        await asyncio.sleep(0)
        if log.held_offset > said:
            said = log.held_offset
            print(said, flush=True)

asyncio.run(main(sys.argv[1], sys.argv[2]))
"""


@pytest.mark.parametrize("mode", ["commit", "interval", "os"])
def test_sigkill_loses_nothing_that_was_acknowledged(tmp_path: Path, mode: str) -> None:
    held = 0
    for _ in range(4):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path), mode], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        begin = int(process.stdout.readline().split()[1])
        assert begin >= held, "what was acknowledged before the last kill is there"
        for _ in range(random.Random(held).randrange(5, 60)):
            held = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        rest = process.stdout.read().splitlines()
        held = int(rest[-1]) if rest and rest[-1].isdigit() and len(rest) > 1 else held
        process.wait()
        process.stdout.close()

    async def check() -> None:
        disk = RealDisk(str(tmp_path))
        log = await Log.open(disk, FOLDER, config(mode), clock=ManualClock())
        assert log.end_offset >= held
        found = await values(log)
        assert [offset for offset, _ in found] == list(range(log.end_offset))
        assert not log.damage
        await log.close()
        disk.close()

    asyncio.run(check())


class Interrupted(SimDisk):
    """Lets a test do something while segments are about to be exchanged for a cleaned one."""

    before_exchange: Callable[[], object] | None = None

    async def offload(self, work: Callable[[], T]) -> T:
        if self.before_exchange is not None and getattr(work, "__name__", "") == "exchange":
            self.before_exchange()
            for _ in range(100):  # whoever would read now has the time to
                await asyncio.sleep(0)
        return await super().offload(work)


def test_who_reads_while_segments_are_exchanged_does_not_keep_the_old_ones_for_others() -> None:
    """The new segment may be as large as the old one: nothing else would tell them apart."""

    async def work() -> None:
        disk = Interrupted(SeededRng(1))
        settings = config(
            "commit", segment_bytes=150, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0
        )
        log = await Log.open(disk, FOLDER, settings, clock=ManualClock())
        for number in range(10):
            await put(log, made(key=b"k", value=b"%d" % number))
        await log.sync()
        reading: list[asyncio.Future[list[tuple[int, bytes | None]]]] = []
        disk.before_exchange = lambda: reading.append(asyncio.ensure_future(values(log)))
        stats = await log.compact()
        assert isinstance(stats, compaction.CompactionStats)
        assert stats.records_dropped > 0
        kept = await values(log)
        assert len(kept) == 10 - stats.records_dropped
        assert {8: b"8", 9: b"9"}.items() <= dict(kept).items()
        assert reading
        for seen in await asyncio.gather(*reading):
            assert set(kept) <= set(seen)
        await log.close()
        disk.before_exchange = None
        log = await Log.open(disk, FOLDER, settings, clock=ManualClock())
        assert await values(log) == kept, "what was read is what lies on the disk"

    run(work)
