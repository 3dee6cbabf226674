"""How many bytes lie before offsets: in segments, behind a start that moved, after truncation and compaction."""

import asyncio
from collections.abc import Sequence
from itertools import pairwise

from tests.log.test_log import FOLDER, config, disk, made, put, run

from runnel.log.log import Log
from runnel.model.seams import Disk
from runnel.record import batch
from runnel.testing.clock import ManualClock

__all__ = ["disk"]

INTERVAL_BYTES = 200  # of the index, in `config`


async def truth(log: Log, offsets: Sequence[int]) -> list[int]:
    """The same by reading all of it."""
    ends: dict[int, int] = {}
    offset, total = int(log.start_offset), 0
    while data := await log.read(offset, 10**6, log.end_offset):
        for _, header in batch.headers(data):
            ends[header.last_offset] = total = total + header.size
            offset = header.last_offset + 1
    return [max((size for last, size in ends.items() if last < offset), default=0) for offset in offsets]


async def check(log: Log, batch_bytes: int) -> list[int]:
    """Sizes rise from nothing to everything, and fall short by no more than the index does."""
    offsets = range(log.start_offset, log.end_offset + 1)
    found, exact = await log.bytes_before(offsets), await truth(log, offsets)
    assert found[0] == 0
    assert found[-1] == exact[-1]
    assert all(low <= high for low, high in pairwise(found))
    assert all(0 <= right - about <= INTERVAL_BYTES + batch_bytes for about, right in zip(found, exact, strict=True))
    assert await log.bytes_before([-5, log.end_offset + 5]) == [0, found[-1]]
    return found


def test_sizes_over_segments(disk: Disk) -> None:
    async def work() -> None:
        log = await Log.open(disk, FOLDER, config(segment_bytes=2000), clock=ManualClock())
        assert await log.bytes_before([0, 1, 7]) == [0, 0, 0]
        await put(log, *(made(2) for _ in range(30)))
        found = await check(log, len(made(2)))
        assert found[-1] == log.size_bytes == 30 * len(made(2))
        assert await log.bytes_before([]) == []
        assert await log.bytes_before([40, 3, 40]) == [found[40], found[3], found[40]], "in the order they were asked"
        await log.close()
        again = await Log.open(disk, FOLDER, config(segment_bytes=2000), clock=ManualClock())
        assert await check(again, len(made(2))) == found

    run(work)


def test_sizes_begin_at_the_start_of_the_log_wherever_that_is(disk: Disk) -> None:
    async def work() -> None:
        log = await Log.open(disk, FOLDER, config(segment_bytes=2000), clock=ManualClock())
        await put(log, *(made() for _ in range(60)))
        before = await log.bytes_before([60])
        await log.advance_start(33)
        after = await log.bytes_before([0, 33, 60])
        assert after[:2] == [0, 0]
        assert 0 <= after[2] - 27 * len(made()) <= INTERVAL_BYTES + len(made())
        assert after[2] < before[0]
        await log.advance_start(60)
        assert await log.bytes_before([0, 60]) == [0, 0]

    run(work)


def test_sizes_after_truncation(disk: Disk) -> None:
    async def work() -> None:
        log = await Log.open(disk, FOLDER, config(segment_bytes=2000), clock=ManualClock())
        await put(log, *(made() for _ in range(60)))
        await log.truncate(25)
        assert (await check(log, len(made())))[-1] == 25 * len(made())
        await put(log, *(made() for _ in range(10)))
        assert (await check(log, len(made())))[-1] == 35 * len(made())

    run(work)


def test_what_compaction_took_out_counts_for_nothing(disk: Disk) -> None:
    async def work() -> None:
        compacting = config(segment_bytes=2000, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)
        log = await Log.open(disk, FOLDER, compacting, clock=ManualClock())
        await put(log, *(made(key=b"k%d" % (number % 3)) for number in range(60)))
        before = (await log.bytes_before([60]))[0]
        assert await log.compact()
        offsets = range(61)
        found = await log.bytes_before(offsets)
        assert found[0] == 0
        assert found[-1] == log.size_bytes < before
        assert all(low <= high for low, high in pairwise(found))

    run(work)


def test_nothing_is_told_while_files_are_exchanged(disk: Disk) -> None:
    async def work() -> None:
        log = await Log.open(disk, FOLDER, config(segment_bytes=2000), clock=ManualClock())
        await put(log, *(made() for _ in range(20)))
        before = await log.bytes_before([10])
        with log._reader.changing():
            asked = asyncio.ensure_future(log.bytes_before([10]))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not asked.done()
        assert await asked == before

    run(work)


def test_sizes_while_compaction_is_under_way(disk: Disk) -> None:
    async def work() -> None:
        compacting = config(segment_bytes=2000, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)
        log = await Log.open(disk, FOLDER, compacting, clock=ManualClock())
        await put(log, *(made(key=b"k%d" % (number % 3)) for number in range(60)))
        cleaning = asyncio.ensure_future(log.compact())
        while not cleaning.done():
            found = await log.bytes_before(range(61))
            assert all(low <= high for low, high in pairwise(found))
        assert await cleaning
        assert await log.bytes_before([60]) == [log.size_bytes]

    run(work)
