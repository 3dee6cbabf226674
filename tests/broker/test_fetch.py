"""Fetch: bounds, long polls, epochs, and that an error waits for nobody."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from runnel.broker.fetch import Fetching, Read, Waits
from runnel.model import errors as e
from runnel.model.ids import Epoch, Offset
from runnel.record import records
from runnel.record.batch import check_produced
from runnel.replica.partition import Partition
from runnel.testing.gated_disk import GatedDisk

Run = Callable[[Any], None]
LONG_MS = 60_000


async def append(partition: Partition, value: bytes) -> int:
    """Append one message; returns the bytes of its batch."""
    batch = memoryview(bytearray(records.encode([records.Record(Offset(0), 1, None, value, ())])))
    begun = partition.append(batch, check_produced(batch))
    if isinstance(begun, asyncio.Future):
        await begun
    return len(batch)


def values(data: bytes | memoryview) -> list[bytes | None]:
    return [row.value for row in records.decode(data)] if data else []


def test_what_is_there_is_answered_at_once(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        await append(partition, b"a")
        [result] = await Fetching(1 << 20).fetch(
            [Read(partition, Offset(0), 1000)], Waits(), bytes_min=1, bytes_max=1000, wait_ms=LONG_MS
        )
        assert values(result.records) == [b"a"]
        assert (result.high_watermark, result.start_offset) == (1, 0)

    run(scenario)


def test_an_empty_fetch_waits_for_the_next_message(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        quiet, partition = await open_partition(0), await open_partition(1)
        await append(partition, b"old")
        reads = [Read(quiet, Offset(0), 1000), Read(partition, Offset(1), 1000)]
        waiting = asyncio.ensure_future(
            Fetching(1 << 20).fetch(reads, Waits(), bytes_min=1, bytes_max=1000, wait_ms=LONG_MS)
        )
        await asyncio.sleep(0)
        assert not waiting.done()
        await append(partition, b"new")
        results = await waiting
        assert [values(result.records) for result in results] == [[], [b"new"]]

    run(scenario)


def test_a_fetch_for_many_bytes_waits_until_there_are_as_many(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        size = await append(partition, b"x" * 100)
        waiting = asyncio.ensure_future(
            Fetching(1 << 20).fetch(
                [Read(partition, Offset(0), 10_000)], Waits(), bytes_min=3 * size, bytes_max=10_000, wait_ms=LONG_MS
            )
        )
        await asyncio.sleep(0)
        await append(partition, b"y" * 100)
        await asyncio.sleep(0)
        assert not waiting.done()
        await append(partition, b"z" * 100)
        [result] = await waiting
        assert len(result.records) == 3 * size

    run(scenario)


def test_after_its_time_a_fetch_is_answered_with_what_there_is(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        [result] = await Fetching(1 << 20).fetch(
            [Read(partition, Offset(0), 1000)], Waits(), bytes_min=1, bytes_max=1000, wait_ms=10
        )
        assert result.records == b""
        assert result.error is None

    run(scenario)


def test_closing_answers_all_who_wait(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        fetching = Fetching(1 << 20)
        waiting = asyncio.ensure_future(
            fetching.fetch([Read(partition, Offset(0), 1000)], Waits(), bytes_min=1, bytes_max=1000, wait_ms=LONG_MS)
        )
        await asyncio.sleep(0)
        fetching.close()
        [result] = await waiting
        assert result.records == b""

    run(scenario)


def test_a_client_that_went_away_is_not_waited_for(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        fetching, gone, here = Fetching(1 << 20), Waits(), Waits()
        reads = [Read(partition, Offset(0), 1000)]
        dead = asyncio.ensure_future(fetching.fetch(reads, gone, bytes_min=1, bytes_max=1000, wait_ms=LONG_MS))
        alive = asyncio.ensure_future(fetching.fetch(reads, here, bytes_min=1, bytes_max=1000, wait_ms=LONG_MS))
        await asyncio.sleep(0)
        gone.end()
        await dead
        assert not alive.done()
        await append(partition, b"a")
        [result] = await alive
        assert values(result.records) == [b"a"]

    run(scenario)


def test_only_the_first_batch_may_be_larger_than_asked(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        one, two = await open_partition(0), await open_partition(1)
        for partition in (one, two):
            await append(partition, b"x" * 5_000)
        reads = [Read(one, Offset(0), 100), Read(two, Offset(0), 100)]
        first, second = await Fetching(1 << 20).fetch(reads, Waits(), bytes_min=1, bytes_max=100, wait_ms=0)
        assert len(first.records) > 5_000
        assert second.records == b""

    run(scenario)


def test_the_brokers_own_bound_holds_whatever_is_asked(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        size = 0
        for _ in range(10):
            size = await append(partition, b"x" * 1_000)
        [result] = await Fetching(3 * size).fetch(
            [Read(partition, Offset(0), 1 << 30)], Waits(), bytes_min=1, bytes_max=1 << 30, wait_ms=0
        )
        assert len(result.records) == 3 * size

    run(scenario)


@pytest.mark.parametrize(
    ("read", "error"),
    [
        ({"offset": 99}, e.OffsetOutOfRange),
        ({"leader_epoch": 1}, e.FencedEpoch),
        ({"leader_epoch": 3}, e.UnknownEpoch),
        ({"last_epoch": 5}, e.OffsetOutOfRange),
    ],
)
def test_an_error_is_answered_at_once_and_costs_the_others_nothing(
    run: Run, read: dict[str, int], error: type[e.RunnelError]
) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        bad, good = await open_partition(0), await open_partition(1)
        reads = [
            Read(
                bad, Offset(read.get("offset", 0)), 1000,
                Epoch(read.get("leader_epoch", 2)), Epoch(read.get("last_epoch", -1)),
            ),
            Read(good, Offset(0), 1000),
        ]  # fmt: skip
        first, second = await Fetching(1 << 20).fetch(reads, Waits(), bytes_min=1, bytes_max=1000, wait_ms=LONG_MS)
        assert isinstance(first.error, error)
        assert second.error is None

    run(scenario)


def test_a_reader_whose_log_went_another_way_is_told_where(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        await append(partition, b"a")
        [result] = await Fetching(1 << 20).fetch(
            [Read(partition, Offset(5), 1000, Epoch(2), Epoch(2))],
            Waits(),
            bytes_min=1,
            bytes_max=1000,
            wait_ms=LONG_MS,
        )
        assert result.divergence == (2, 1)
        assert result.records == b""

    run(scenario)


def test_no_partitions_no_waiting(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        assert await Fetching(1 << 20).fetch([], Waits(), bytes_min=1, bytes_max=1000, wait_ms=LONG_MS) == []

    run(scenario)
