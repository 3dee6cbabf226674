"""Snapshots of producers belong to the batches that they were taken of, and to no others that took their place."""

import asyncio
import errno
from collections.abc import Awaitable, Callable

from tests.log.test_storage_rules import FIRST, FOLDER, made, opened, put

from runnel.log.log import Log
from runnel.log.producers import Producers
from runnel.record import batch
from runnel.testing.clock import SeededRng
from runnel.testing.disk import Fault, SimDisk

OLD, NEW = 7, 8  # producers
STALE = f"{FOLDER}/{10:020}.producers"


async def said_by_the_log(log: Log) -> Producers:
    expected = Producers()
    for _, header in batch.headers(await log.read(0, 10**6, log.end_offset)):
        expected.replay(header, 0)
    return expected


async def check(log: Log) -> None:
    expected = await said_by_the_log(log)
    assert {one.producer_id: one.batches for one in log.producers} == {one.producer_id: one.batches for one in expected}


async def fill(log: Log, producer: int, count: int) -> None:
    for sequence in range(count):
        await put(log, producer_id=producer, producer_epoch=0, base_sequence=sequence)


def run(test: Callable[[SimDisk], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(SimDisk(SeededRng(1)))

    asyncio.run(main())


async def closed_after_ten(disk: SimDisk) -> None:
    log = await opened(disk)
    await fill(log, OLD, 10)
    await log.close()
    assert disk.exists(STALE)


def test_a_torn_tail_takes_the_snapshots_above_it_along() -> None:
    async def test(disk: SimDisk) -> None:
        await closed_after_ten(disk)
        file = disk.open(FIRST)
        file.truncate(5 * len(made(producer_id=OLD, producer_epoch=0, base_sequence=0)))
        file.close()
        disk.remove(f"{FOLDER}/checkpoint")
        log = await opened(disk)
        assert log.end_offset == 5
        await fill(log, NEW, 8)
        await log.truncate(12)
        await check(log)

    run(test)


def test_what_a_cut_took_along_does_not_come_back_with_the_next_power_loss() -> None:
    """The disk is full just then, so that no checkpoint follows the cut, and syncs the folder with it."""

    async def test(disk: SimDisk) -> None:
        await closed_after_ten(disk)
        log = await opened(disk)
        disk.inject(Fault("write", errno.ENOSPC, path=".producers", times=10**9))
        await log.truncate(5)
        disk.heal()
        await fill(log, NEW, 8)
        await log.sync()
        log = await opened(disk.crash())
        assert log.end_offset == 13
        await log.truncate(12)
        await check(log)

    run(test)
