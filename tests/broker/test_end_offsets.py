"""The end of a partition, asked for while its disk or its followers are behind."""

import asyncio
from collections.abc import Callable

import pytest
from tests.broker.conftest import OpenPartition, Scenario

from runnel.broker import end_offsets
from runnel.broker.end_offsets import commit_written, end_offset
from runnel.cluster.image import Partition as PartitionImage
from runnel.model.errors import NotLeader, OffsetNotAvailable
from runnel.model.ids import BrokerId, Epoch, Offset
from runnel.model.topic_config import FlushMode
from runnel.record import records
from runnel.record.batch import check_produced
from runnel.replica.partition import Partition
from runnel.testing.gated_disk import GatedDisk

ME, TWO = BrokerId(1), BrokerId(2)
Run = Callable[[Scenario], None]


async def append(partition: Partition, *values: bytes) -> None:
    """As with acks=1: written, whatever comes of it."""
    rows = [records.Record(Offset(i), 1_000, None, value, ()) for i, value in enumerate(values)]
    batch = memoryview(bytearray(records.encode(rows)))
    begun = partition.append(batch, check_produced(batch))
    if isinstance(begun, asyncio.Future):
        await begun


def test_an_end_waits_for_the_sync_of_what_was_acknowledged(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition(flush_mode=FlushMode.COMMIT)
        await append(partition, b"a")
        await commit_written(partition)
        disk.gate.clear()
        await append(partition, b"b", b"c")
        asked = [asyncio.ensure_future(end_offset(partition, committed_only=only)) for only in (False, True)]
        await asyncio.sleep(0.05)
        assert partition.high_watermark == 1
        assert not any(each.done() for each in asked)
        disk.gate.set()
        assert await asyncio.gather(*asked) == [3, 3]

    run(scenario)


def test_an_end_is_told_at_once_where_written_is_held(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition()
        await append(partition, b"a")
        disk.gate.clear()
        await append(partition, b"b")
        assert await end_offset(partition, committed_only=False) == 2
        disk.gate.set()

    run(scenario)


def test_a_disk_that_hangs_is_an_error_that_clients_retry(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(end_offsets, "REPLICAS_S", 0.02)
    monkeypatch.setattr(end_offsets, "SYNC_S", 0.06)

    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition(flush_mode=FlushMode.COMMIT)
        await append(partition, b"a")
        await commit_written(partition)
        disk.gate.clear()
        await append(partition, b"b")
        with pytest.raises(OffsetNotAvailable, match="written up to offset 2"):
            await end_offset(partition, committed_only=False)
        disk.gate.set()
        assert await end_offset(partition, committed_only=False) == 2

    run(scenario)


async def followed(open_partition: OpenPartition, **settings: object) -> Partition:
    """A partition with a follower that has everything so far."""
    partition = await open_partition(**settings)
    await partition.apply(PartitionImage(ME, Epoch(4), Epoch(8), (ME, TWO), (ME, TWO)))
    await append(partition, b"a")
    partition.fetched_by(TWO, Epoch(1), Offset(1))
    assert partition.high_watermark == 1
    return partition


def test_an_end_waits_for_followers_that_keep_up(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await followed(open_partition)
        await append(partition, b"b")
        asked = asyncio.ensure_future(end_offset(partition, committed_only=False))
        await asyncio.sleep(0)
        assert not asked.done()
        partition.fetched_by(TWO, Epoch(1), Offset(2))
        assert await asked == 2

    run(scenario)


def test_a_follower_that_lags_holds_an_end_up_for_a_moment_only(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(end_offsets, "REPLICAS_S", 0.02)

    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await followed(open_partition)
        await append(partition, b"b")
        assert await end_offset(partition, committed_only=False) == 1

    run(scenario)


def test_an_end_waits_for_nobody_while_too_few_are_in_sync(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(end_offsets, "REPLICAS_S", 3_600.0)
    monkeypatch.setattr(end_offsets, "SYNC_S", 36_000.0)

    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await followed(open_partition, min_insync_replicas=2)
        await append(partition, b"b")
        asked = asyncio.ensure_future(end_offset(partition, committed_only=False))
        await asyncio.sleep(0)
        assert not asked.done()
        await partition.apply(PartitionImage(ME, Epoch(4), Epoch(9), (ME, TWO), (ME,), (TWO,)))
        assert await asked == 1
        assert await end_offset(partition, committed_only=False) == 1

    run(scenario)


def test_who_asks_a_leader_that_steps_down_is_sent_on(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await followed(open_partition)
        await append(partition, b"b")
        asked = asyncio.ensure_future(end_offset(partition, committed_only=False))
        await asyncio.sleep(0)
        await partition.apply(PartitionImage(TWO, Epoch(5), Epoch(9), (ME, TWO), (ME, TWO)))
        with pytest.raises(NotLeader):
            await asked

    run(scenario)
