"""Housekeeping: what is too old goes, and one partition's trouble is not another's."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest

from runnel.broker.housekeeping import Housekeeping, LeaderBalance
from runnel.broker.partitions import Partitions
from runnel.broker.produce import Append, Producing
from runnel.log.log import Log
from runnel.log.retention import Expired
from runnel.model.errors import StorageFailed
from runnel.model.ids import Offset
from runnel.record import records
from runnel.record.batch import headers
from runnel.replica.partition import Partition
from runnel.shell.clock import SystemClock
from runnel.testing.gated_disk import GatedDisk

Run = Callable[[Any], None]
DAY_MS = 86_400_000


def housekeeping(producer_expiry_ms: int = DAY_MS) -> Housekeeping:
    nobody = cast(Partitions, [])
    return keeping(nobody, producer_expiry_ms=producer_expiry_ms)


def keeping(
    partitions: Partitions, *, every_ms: int = 1, retention_every_ms: int = 1, producer_expiry_ms: int = DAY_MS
) -> Housekeeping:
    return Housekeeping(
        partitions, _nothing, every_ms=every_ms, retention_every_ms=retention_every_ms,
        producer_expiry_ms=producer_expiry_ms, on_fatal=_fail,
    )  # fmt: skip


async def _nothing() -> None:
    """There is nothing to open."""


async def produce(partition: Partition, key: bytes, timestamp: int, **fields: Any) -> None:
    row = records.Record(Offset(0), timestamp, key, b"x" * 1000, ())
    batch = memoryview(bytearray(records.encode([row], **fields)))
    [result] = await Producing(SystemClock()).produce([Append(partition, batch)], 1, 1000, lambda: None)
    assert not isinstance(result, Exception), result


def test_retention_removes_what_is_too_old(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition(retention_ms=DAY_MS, segment_bytes=2_000)
        for _ in range(5):
            await produce(partition, b"k", 1_000)
        now = SystemClock().wall_ms()
        await produce(partition, b"k", now)
        await housekeeping().retain(partition)
        assert partition.log.start_offset >= 4
        assert partition.log.end_offset == 6

    run(scenario)


def test_each_removal_is_logged_with_its_reason(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    november_2023 = 1_700_000_000_000

    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition(retention_ms=7 * DAY_MS, segment_bytes=2_000)
        for number in range(5):
            await produce(partition, b"k", november_2023 + number)
        await housekeeping().retain(partition)
        await housekeeping().retain(partition)
        for _ in range(3):
            await produce(partition, b"k", SystemClock().wall_ms())
        partition.reconfigure(replace(partition.config, retention_bytes=1024))
        await housekeeping().retain(partition)

    caplog.set_level("INFO", "runnel.housekeeping")
    run(scenario)
    assert caplog.messages == [
        "removed 5 segments of t-0: newest message is of 2023-11-14 22:13 UTC, retention.ms is 7 d",
        "removed 2 segments of t-0: there was more than retention.bytes, 1 KiB",
    ]


def test_retention_and_compaction_look_at_times_of_their_own(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        looks, retained = asyncio.Queue[str](), 0

        async def retain(*_: object) -> Expired:
            nonlocal retained
            retained += 1
            looks.put_nowait("retention")
            return Expired()

        monkeypatch.setattr(Log, "enforce_retention", retain)
        monkeypatch.setattr(Log, "forget_producers", lambda *_: looks.put_nowait("the rest"))
        working = keeping(cast(Partitions, [partition]), every_ms=1, retention_every_ms=3_600_000)
        working.start()
        assert [await asyncio.wait_for(looks.get(), 30) for _ in range(5)] == ["the rest"] * 5
        await working.stop()
        monkeypatch.setattr("runnel.broker.housekeeping.FIRST_RETENTION_S", 0.001)
        working = keeping(cast(Partitions, [partition]), every_ms=3_600_000, retention_every_ms=3_600_000)
        working.start()
        while await asyncio.wait_for(looks.get(), 30) != "retention":
            pass
        await working.stop()
        assert retained == 1

    run(scenario)


def test_compaction_keeps_the_last_of_each_key(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition(cleanup_policy=frozenset({"compact"}), segment_bytes=2_000)
        now = SystemClock().wall_ms()
        for number in range(9):
            await produce(partition, b"%d" % (number % 2), now)
        await partition.log.sync()
        await housekeeping().compact(partition)
        left = [row.offset for row in await _all(partition)]
        assert len(left) < 9
        assert left[-2:] == [7, 8]

    run(scenario)


async def _all(partition: Partition) -> list[records.Record]:
    rows: list[records.Record] = []
    offset = Offset(0)
    while offset < partition.high_watermark:
        data = memoryview(await partition.read(offset, 1 << 20))
        for at, header in headers(data):
            rows += records.decode(data[at : at + header.size])
            offset = Offset(header.last_offset + 1)
    return rows


def test_producers_that_are_silent_for_long_are_forgotten(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        now = SystemClock().wall_ms()
        await produce(partition, b"k", now, producer_id=5, producer_epoch=0, base_sequence=0)
        await housekeeping().compact(partition)
        assert len(partition.log.producers) == 1
        await housekeeping(producer_expiry_ms=0).compact(partition)
        assert len(partition.log.producers) == 0

    run(scenario)


def test_a_failure_is_reported_and_costs_one_turn(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()

        refused = asyncio.Event()

        async def refuse(*_: object) -> Expired:
            refused.set()
            raise StorageFailed("the disk does not answer")

        monkeypatch.setattr(type(partition.log), "enforce_retention", refuse)
        working = keeping(cast(Partitions, [partition]))
        working.start()
        for _ in range(2):
            refused.clear()
            await asyncio.wait_for(refused.wait(), 30)
        await working.stop()

    run(scenario)
    assert "housekeeping of t-0 failed, it goes on with the next: the disk does not answer" in caplog.text


def test_an_error_that_nobody_foresaw_costs_one_partition_its_turn(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        poisoned, other = await open_partition(0), await open_partition(1)
        looked_at = asyncio.Event()

        async def retain(log: Log, *_: object) -> Expired:
            if log is poisoned.log:
                raise KeyError("nobody foresaw it")
            looked_at.set()
            return Expired()

        monkeypatch.setattr(Log, "enforce_retention", retain)
        both = cast(Partitions, [poisoned, other])
        working = keeping(both)
        working.start()
        for _ in range(2):
            looked_at.clear()
            await asyncio.wait_for(looked_at.wait(), 30)
        await working.stop()

    run(scenario)
    assert "housekeeping of t-0 failed, it goes on with the next" in caplog.text
    assert "nobody foresaw it" in caplog.text


def test_leaders_are_balanced_again_and_again_unless_that_is_off() -> None:
    async def main() -> None:
        twice, never = asyncio.Event(), asyncio.Event()
        count = 0

        async def rebalance() -> None:
            nonlocal count
            count += 1
            if count == 2:
                twice.set()

        async def unwanted() -> None:
            never.set()

        on = LeaderBalance(rebalance, every_ms=1, on_fatal=_fail)
        off = LeaderBalance(unwanted, every_ms=0, on_fatal=_fail)
        on.start()
        off.start()
        await asyncio.wait_for(twice.wait(), 30)
        await on.stop()
        await off.stop()
        assert not never.is_set()

    asyncio.run(main())


def _fail(error: BaseException) -> None:
    raise AssertionError(error)
