"""What a follower needs of its log: to take its leader's batches as they are, and to cut where both parted."""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from runnel.log.log import Appended, Log
from runnel.model.errors import CorruptBatch, Corruption, Fatal, OffsetOutOfRange, StorageFailed
from runnel.model.topic_config import FlushMode, TopicConfig
from runnel.record import batch, records
from runnel.record.records import Record
from runnel.testing.clock import ManualClock, SeededRng
from runnel.testing.disk import Fault, SimDisk

FOLDER = "partitions/p-0"
FIRST = f"{FOLDER}/{0:020}.log"
CLOCK = ManualClock()


def config(mode: str = "commit", segment_bytes: int = 700, **others: Any) -> TopicConfig:
    return TopicConfig(flush_mode=FlushMode(mode), segment_bytes=segment_bytes, index_interval_bytes=200, **others)


def given(base: int, epoch: int = 0, count: int = 1, **others: Any) -> bytes:
    """A batch as a leader sends it."""
    made = bytearray(records.encode([Record(i, 1000 + i, b"k", b"v" * 100, ()) for i in range(count)], **others))
    batch.patch(made, base, epoch)
    return bytes(made)


async def follow(log: Log, *batches: bytes) -> Appended:
    result = log.append_as_follower(b"".join(batches))
    return result if isinstance(result, Appended) else await result


async def opened(disk: SimDisk, settings: TopicConfig | None = None) -> Log:
    return await Log.open(disk, FOLDER, settings or config(), clock=CLOCK, on_fatal=lambda error: None)


async def offsets(log: Log) -> list[int]:
    found, offset = [], int(log.start_offset)
    while data := await log.read(offset, 1000, log.end_offset):
        for _, header in batch.headers(data):
            found.append(header.base_offset)
            offset = header.last_offset + 1
    return found


def run(test: Callable[[SimDisk], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(SimDisk(SeededRng(1)))

    asyncio.run(main())


# --- appending what a leader sent


def test_the_last_epoch_is_that_of_the_last_batch() -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk)
        assert log.last_epoch == -1
        await follow(log, given(0, 2), given(1, 2), given(2, 5))
        assert log.last_epoch == 5
        await log.truncate(2)
        assert log.last_epoch == 2
        await log.close()
        log = await opened(disk)
        assert log.last_epoch == 2
        await log.advance_start(2)
        assert log.last_epoch == 2, "retention takes batches away, not what is known of them"
        await log.truncate(0)
        assert log.last_epoch == -1

    run(test)


def test_batches_are_written_at_once_if_nothing_is_under_way() -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk, config("os", 10**6))
        await follow(log, given(0))
        disk.calls.clear()
        assert isinstance(log.append_as_follower(given(1) + given(2)), Appended)
        assert [call for call, path in disk.calls if path == FIRST] == ["write"]
        assert not log.busy

    run(test)


@pytest.mark.parametrize(
    "arriving",
    [
        [given(1)],  # the answer to an older question
        [given(0, 3, 3)],  # all of it again
        [given(3, 3), given(3, 3)],
        [given(3, 2)],  # an epoch that is over
        [given(3, 4), given(4, 3)],
        [given(3, 3), given(4, 3)[:-1]],
        [given(3, 3)[:40]],
        [b""],
    ],
)
@pytest.mark.parametrize("in_line", [False, True])
def test_what_does_not_continue_the_log_is_refused_as_a_whole(arriving: list[bytes], in_line: bool) -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk, config(segment_bytes=10**6))
        await follow(log, given(0, 3, 3))
        await log.idle()
        if in_line:
            await follow(log, given(3, 3))
            await log.idle()
            await log.truncate(3)
            syncing = asyncio.ensure_future(log.sync())
            await asyncio.sleep(0)
        before = disk.content(FIRST)
        with pytest.raises(CorruptBatch):
            await follow(log, *arriving)
        if in_line:
            await syncing
        assert disk.content(FIRST) == before
        assert (log.end_offset, log.last_epoch, log.epochs.entries()) == (3, 3, [(3, 0)])
        assert (await follow(log, given(3, 3))).last_offset == 3

    run(test)


def test_gaps_that_compaction_left_are_kept() -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk)
        await follow(log, given(4), given(9))
        await follow(log, *(given(base) for base in range(20, 80, 7)))
        expected = [4, 9, *range(20, 80, 7)]
        assert await offsets(log) == expected
        await log.idle()
        for again in (False, True):
            log = await opened(disk.kill()) if again else log
            assert batch.read_header(await log.read(0, 1, 100)).base_offset == 4
            assert batch.read_header(await log.read(5, 1, 100)).base_offset == 9
            assert not log.damage

    run(test)


def test_a_gap_may_be_wider_than_a_segment_can_be() -> None:
    """A new follower of a log whose first three thousand million messages compaction removed."""

    async def test(disk: SimDisk) -> None:
        log = await opened(disk, config(segment_bytes=1000))
        far = 3 * 2**32
        for base in (1, far, far + 1, 2 * far, *range(2 * far + 1, 2 * far + 9)):
            await follow(log, given(base))
        expected = [1, far, far + 1, 2 * far, *range(2 * far + 1, 2 * far + 9)]
        assert await offsets(log) == expected
        await log.close()
        log = await opened(disk.kill(), config(segment_bytes=1000))
        assert await offsets(log) == expected
        assert batch.read_header(await log.read(5, 1, log.end_offset)).base_offset == far
        assert not log.damage

    run(test)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EROFS])
@pytest.mark.parametrize("short", [None, 0, 100, 250])
def test_a_write_that_fails_half_way_leaves_nothing(number: int, short: int | None) -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk, config(segment_bytes=10**6))
        await follow(log, given(0, 1, producer_id=7, producer_epoch=0, base_sequence=0))
        await log.idle()
        before, producers = disk.content(FIRST), log.producers.to_bytes(0)
        more = [given(n, 2, producer_id=7, producer_epoch=0, base_sequence=n) for n in (1, 2)]
        disk.inject(Fault("write", number, path=FIRST, short_bytes=short))
        with pytest.raises(StorageFailed):
            await follow(log, *more)
        assert (disk.content(FIRST), log.producers.to_bytes(0)) == (before, producers)
        assert (log.end_offset, log.last_epoch) == (1, 1)
        assert (await follow(log, *more)).last_offset == 2
        await log.idle()
        assert await offsets(await opened(disk.crash())) == [0, 1, 2]

    run(test)


# --- the barrier


def test_an_idle_log_lets_its_caller_go_on_at_once() -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk)
        assert not log.busy
        with pytest.raises(StopIteration):
            log.idle().send(None)

    run(test)


def test_idle_waits_for_those_in_line_and_for_the_step_under_way() -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk)
        pending = [log.append_as_follower(given(base)) for base in range(20)]
        was_busy = log.busy
        await log.idle()
        assert (was_busy, log.busy) == (True, False)
        assert all(isinstance(one, Appended) or one.done() for one in pending)
        assert (log.end_offset, log.held_offset) == (20, 20)

    run(test)


def test_idle_ends_when_the_log_dies() -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk)
        disk.inject(Fault("sync"))
        log.append_as_follower(given(0))
        await log.idle()
        assert log.held_offset == 0

    run(test)


# --- cutting where both parted


async def two_epochs(disk: SimDisk) -> Log:
    """Offsets 0 to 11 of one producer, in epochs 1, 2 and 4, in several segments, with snapshots between."""
    log = await opened(disk)
    for number in range(12):
        epoch = 1 if number < 4 else 2 if number < 8 else 4
        await follow(log, given(number, epoch, producer_id=7, producer_epoch=0, base_sequence=number))
        await log.idle()
    return log


def sequences(log: Log) -> list[int]:
    return [remembered.base_sequence for producer in log.producers for remembered in producer.batches]


@pytest.mark.parametrize("end", range(12))
def test_epochs_and_producers_go_back_with_the_log(end: int) -> None:
    """Kafka's KAFKA-5435: snapshots from beyond the cut must not come back."""

    async def test(disk: SimDisk) -> None:
        log = await two_epochs(disk)
        await log.truncate(end)
        expected = [(epoch, first) for epoch, first in ((1, 0), (2, 4), (4, 8)) if first < end]
        for again in (False, True):
            log = await opened(disk.crash()) if again else log
            assert log.end_offset == end
            assert log.epochs.entries() == expected
            assert sequences(log) == list(range(end))[-5:]
            assert await offsets(log) == list(range(end))
        await follow(log, given(end, 5, producer_id=7, producer_epoch=0, base_sequence=end))
        assert sequences(log) == list(range(end + 1))[-5:]
        assert log.epochs.entries() == [*expected, (5, end)]

    run(test)


def test_a_crash_at_any_point_of_a_cut_leaves_a_beginning_of_the_log_and_all_that_follows_from_it() -> None:
    async def test(_: SimDisk) -> None:
        finished, nth = False, 0
        while not finished:
            nth += 1
            disk = SimDisk(SeededRng(nth))
            log = await two_epochs(disk)
            finished = await cut_off(disk, nth, lambda log=log: log.truncate(5))  # type: ignore[misc]
            log = await opened(disk.crash())
            assert 5 <= log.end_offset <= (5 if finished else 12)
            assert await offsets(log) == list(range(log.end_offset))
            assert not log.damage
            assert sequences(log) == list(range(log.end_offset))[-5:]
            assert log.last_epoch == (2 if log.end_offset <= 8 else 4)
            await log.truncate(5)
            assert (await follow(log, given(5, 6))).base_offset == 5
        assert nth > 10

    run(test)


async def cut_off(disk: SimDisk, nth: int, work: Callable[[], Awaitable[None]]) -> bool:
    """Let the power fail at the n-th call of some work; whether the work ended before."""
    disk.inject(Fault("", power_cut=True, nth=nth))
    task = asyncio.ensure_future(work())
    while not task.done() and not disk.dead:
        await asyncio.sleep(0)
    finished = task.done() and not disk.dead
    task.cancel()
    return finished


@pytest.mark.parametrize("anew", [0, 3, 4, 8, 20])
def test_a_crash_at_any_point_of_a_new_beginning_leaves_the_old_log_or_the_new_one(anew: int) -> None:
    async def test(_: SimDisk) -> None:
        finished, nth = False, 0
        while not finished:
            nth += 1
            disk = SimDisk(SeededRng(nth))
            log = await two_epochs(disk)
            await log.advance_start(5)
            finished = await cut_off(disk, nth, lambda log=log: log.begin_anew(anew))  # type: ignore[misc]
            log = await opened(disk.crash())
            ends = (log.start_offset, log.end_offset)
            assert ends == (anew, anew) or (not finished and ends == (5, 12))
            assert not log.damage
            assert await offsets(log) == list(range(*ends))
            assert sequences(log) == list(range(*ends))[-5:]
            await log.begin_anew(anew)
            assert (await follow(log, given(anew, 6))).base_offset == anew
            assert await offsets(log) == [anew]
        assert nth > 5

    run(test)


def test_a_cut_that_the_disk_refuses_leaves_a_log_that_can_be_read() -> None:
    async def test(_: SimDisk) -> None:
        finished, nth = False, 0
        while not finished:
            nth += 1
            disk = SimDisk(SeededRng(nth))
            log = await two_epochs(disk)
            await offsets(log)  # readers have been here, and their places are remembered
            disk.inject(Fault("", errno.EIO, nth=nth))
            try:
                await log.truncate(5)
                finished = True
            except StorageFailed:
                assert 5 <= log.end_offset <= 12
                assert await offsets(log) == list(range(log.end_offset))
            except Fatal:
                pass  # it was a sync: the broker ends
            disk.heal()

    run(test)


def test_rot_below_a_cut_is_no_torn_tail_even_after_a_crash_in_the_middle_of_it() -> None:
    async def test(_: SimDisk) -> None:
        for nth in range(1, 16):
            disk = SimDisk(SeededRng(nth))
            log = await opened(disk, config(segment_bytes=10**6))
            await follow(log, *(given(number) for number in range(10)))
            await log.close()
            disk.rot(FIRST, 2 * len(given(0)) + 100)
            log = await opened(disk, config(segment_bytes=10**6))
            await cut_off(disk, nth, lambda log=log: log.truncate(6))  # type: ignore[misc]
            log = await opened(disk.crash(), config(segment_bytes=10**6))
            assert log.end_offset >= 6
            with pytest.raises(Corruption):
                await log.read(2, 1, 6)
            assert batch.read_header(await log.read(3, 1, 6)).base_offset == 3

    run(test)


# --- KIP-101 and KIP-279


@pytest.mark.parametrize(
    ("asked", "answer"),
    [
        (-1, (-1, -1)),  # nobody knows what epoch that was
        (0, (0, 0)),  # older than all that is here: it ended where the first one begins
        (1, (1, 4)),
        (2, (2, 8)),
        (3, (2, 8)),  # not here: the largest below it, so that the follower drops what this log lacks
        (4, (4, 12)),
        (5, (-1, -1)),  # not seen yet
    ],
)
def test_the_end_of_an_epoch(asked: int, answer: tuple[int, int]) -> None:
    async def test(disk: SimDisk) -> None:
        log = await two_epochs(disk)
        assert log.epochs.end_offset(asked) == answer

    run(test)


def test_the_end_of_an_epoch_that_retention_has_removed_is_where_the_log_starts() -> None:
    async def test(disk: SimDisk) -> None:
        log = await two_epochs(disk)
        await log.advance_start(6)
        assert log.epochs.end_offset(1) == (1, 6)
        assert log.epochs.end_offset(2) == (2, 8)

    run(test)


# --- retention and compaction stay below the high watermark


def test_what_is_not_committed_is_neither_deleted_nor_compacted() -> None:
    async def test(disk: SimDisk) -> None:
        clock = ManualClock()
        settings = config(
            cleanup_policy=frozenset({"compact", "delete"}), retention_ms=10_000, min_cleanable_dirty_ratio=0.0
        )
        log = await Log.open(disk, FOLDER, settings, clock=clock)
        for base in range(20):
            await follow(log, given(base))
        await log.idle()
        assert await log.compact(7) is not None
        kept = await offsets(log)
        assert kept[-14:] == list(range(6, 20)), "the last of its key below the bound, and all above it"
        assert len(kept) < 20
        with pytest.raises(OffsetOutOfRange):
            await log.advance_start(8, 7)
        clock.advance(100_000)
        await log.enforce_retention(7)
        assert log.start_offset <= 7
        assert log.end_offset == 20
        assert (await offsets(log))[-13:] == list(range(7, 20))

    run(test)
