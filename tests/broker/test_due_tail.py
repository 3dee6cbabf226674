"""An index that follows its log: to the end of what is committed, after a restart too, and anew if it does not fit."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

import pytest
from tests.broker.conftest import OpenPartition, Scenario

from runnel.broker import due_tail, standing
from runnel.broker.due_tail import Tail
from runnel.model.errors import CoordinatorLoading, NotCoordinator
from runnel.model.ids import PartitionKey, TopicId
from runnel.model.schedule import Applied, Change, DueIndex
from runnel.queues import schedule_records
from runnel.queues.schedule_records import Kept, ScheduleRecord, message_record, tombstone
from runnel.record import records
from runnel.record.batch import read_header
from runnel.replica.partition import Partition
from runnel.shell.due_index import SqliteDueIndex
from runnel.testing.gated_disk import GatedDisk

Run = Callable[[Scenario], None]
TARGET = PartitionKey(TopicId(UUID(int=5)), 0)


class Indexes:
    """Opens one index again and again, as a file would be."""

    def __init__(self) -> None:
        self.opened = 0
        self.index = SqliteDueIndex(":memory:")

    def __call__(self, path: str) -> DueIndex:
        self.opened += 1
        return self.index


class Lasting(SqliteDueIndex):
    """An index that stays when it is closed."""

    def close(self) -> None:
        pass


def append(partition: Partition, *rows: Sequence[Any]) -> None:
    """Each row is a record's key, its value, and its headers if it has some."""
    encoded = records.encode([records.Record(n, 1, *row) for n, row in enumerate(rows)])
    batch = memoryview(bytearray(encoded))
    partition.append(batch, read_header(batch))


def parked(id: str, due_ms: int = 10) -> ScheduleRecord:
    return message_record(TARGET, id, Kept(due_ms, 0, 0, None, b"v", []))


async def ids(tail: Tail) -> list[str]:
    await tail.reached(tail.partition.high_watermark)
    rows = await tail.look(lambda index: index.due(TARGET, 10**9, 100, 10**9))
    return [row.id for row in rows]


def test_it_follows_what_is_committed_and_goes_on_where_it_was(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition()
        indexes = Indexes()
        indexes.index = Lasting(":memory:")
        append(partition, parked("a"), parked("b", 5))
        tail = Tail(partition, indexes, disk)
        tail.start()
        assert await ids(tail) == ["b", "a"]
        append(partition, tombstone(TARGET, "a"))
        assert await ids(tail) == ["b"]
        await tail.stop()
        append(partition, parked("c", 1))
        again = Tail(partition, indexes, disk)
        again.start()
        assert await ids(again) == ["c", "b"]
        assert indexes.index.applied() == Applied(4, 2)
        await again.stop()

    run(scenario)


def test_an_index_of_another_log_is_built_again(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition()
        append(partition, parked("a"))
        made: list[SqliteDueIndex] = []

        def opened(path: str) -> DueIndex:
            index = SqliteDueIndex(":memory:")
            if not made:
                index.apply([], Applied(99, 7))  # further than this log goes
            made.append(index)
            return index

        tail = Tail(partition, opened, disk)
        tail.start()
        assert await ids(tail) == ["a"]
        assert len(made) == 2
        await tail.stop()

    run(scenario)


def test_an_error_that_nobody_foresaw_costs_the_index_and_not_its_follower(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition()
        append(partition, parked("a"))
        read, failures = schedule_records.change_of, [KeyError("nobody foresaw it")]

        def change_of(offset: int, key: bytes | None, value: bytes | None, headers: records.Headers) -> Change:
            if failures:
                raise failures.pop()
            return read(offset, key, value, headers)

        monkeypatch.setattr(due_tail, "change_of", change_of)
        monkeypatch.setattr(due_tail, "PAUSE_S", 0)
        monkeypatch.setattr(standing, "PAUSE_S", 0)
        tail = Tail(partition, lambda _: SqliteDueIndex(":memory:"), disk)
        tail.start()
        assert await ids(tail) == ["a"]
        await tail.stop()

    run(scenario)
    assert "nobody foresaw it" in caplog.text


def test_who_is_cancelled_leaves_when_its_look_is_over(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition()
        tail = Tail(partition, Indexes(), disk)
        tail.start()
        append(partition, parked("a"))
        assert await ids(tail) == ["a"]
        disk.gate.clear()
        looking = asyncio.ensure_future(tail.look(lambda index: index.targets()))
        for _ in range(3):
            await asyncio.sleep(0)
        looking.cancel()
        stopping = asyncio.ensure_future(tail.stop())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not looking.done()
        assert not stopping.done()
        disk.gate.set()
        await stopping
        assert looking.cancelled()

    run(scenario)


def test_who_waits_for_an_index_that_stops_is_told(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        tail = Tail(await open_partition(), Indexes(), disk)
        tail.start()
        waiting = asyncio.ensure_future(tail.reached(99))
        await asyncio.sleep(0)
        await tail.stop()
        for late in (waiting, tail.reached(99)):
            with pytest.raises(NotCoordinator):
                await late

    run(scenario)


def test_an_index_that_cannot_be_read_is_built_again(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition()
        append(partition, parked("a"))
        tail = Tail(partition, lambda path: SqliteDueIndex(":memory:"), disk)
        tail.start()
        assert await ids(tail) == ["a"]
        assert isinstance(tail._index, SqliteDueIndex)
        tail._index._base.execute("drop table pending")
        with pytest.raises(CoordinatorLoading):
            await tail.look(lambda index: index.due(TARGET, 99, 9, 99))
        while True:
            try:
                assert await ids(tail) == ["a"]
                break
            except CoordinatorLoading:
                await asyncio.sleep(0.01)
        await tail.stop()

    run(scenario)
