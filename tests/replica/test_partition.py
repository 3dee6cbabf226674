"""One partition on a real disk whose syncs a test holds up."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from runnel.cluster.image import Partition as PartitionImage
from runnel.log.log import Appended
from runnel.model.errors import Corruption, InvalidTopicName, NotLeader, OffsetOutOfRange, RequestTimedOut
from runnel.model.ids import BrokerId, Epoch, Offset, PartitionKey, TopicId
from runnel.model.topic_config import FlushMode, TopicConfig
from runnel.record import records
from runnel.record.batch import check_produced, headers, patch
from runnel.replica.ending import Ending
from runnel.replica.following import Answer, Question, Verdict
from runnel.replica.partition import Partition
from runnel.shell.clock import SystemClock
from runnel.testing.gated_disk import GatedDisk

LONG_S = 60.0
ME, EPOCH = BrokerId(1), Epoch(3)


def batch_of(*values: bytes) -> memoryview:
    rows = [records.Record(Offset(i), 1_000 + i, None, value, ()) for i, value in enumerate(values)]
    return memoryview(bytearray(records.encode(rows)))


def append(partition: Partition, *values: bytes) -> "Appended | asyncio.Future[Appended]":
    batch = batch_of(*values)
    return partition.append(batch, check_produced(batch))


class Watcher:
    def __init__(self) -> None:
        self.bytes = 0

    def grown(self, bytes_added: int) -> None:
        self.bytes += bytes_added


def run(folder: Path, scenario: Callable[[Partition, GatedDisk], Coroutine[Any, Any, None]], mode: FlushMode) -> None:
    async def main() -> None:
        disk = GatedDisk(str(folder))
        fatal: list[BaseException] = []
        try:
            partition = await Partition.open(
                "t", PartitionKey(TopicId(UUID(int=1)), 0), "p", TopicConfig(flush_mode=mode),
                me=ME, disk=disk, clock=SystemClock(), on_fatal=fatal.append,
            )  # fmt: skip
            await partition.apply(PartitionImage(ME, EPOCH, Epoch(7), (ME,), (ME,)))
            await _warm_up(partition)
            await scenario(partition, disk)
            disk.gate.set()
            await partition.close()
            assert fatal == []
        finally:
            disk.close()

    asyncio.run(main())


async def _warm_up(partition: Partition) -> None:
    """Offset 0: after it the segment's file is open, and an append that finds nothing under way is written at once."""
    first = append(partition, b"0")
    if isinstance(first, asyncio.Future):
        await first
    if (waiting := partition.committed(Offset(1), EPOCH, LONG_S)) is not None:
        await waiting


def test_in_commit_mode_what_is_not_synced_is_neither_committed_nor_readable(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        disk.gate.clear()
        appended = append(partition, b"a", b"b")
        assert isinstance(appended, Appended)
        assert (appended.base_offset, appended.last_offset) == (1, 2)
        waiting = partition.committed(Offset(3), EPOCH, LONG_S)
        assert waiting is not None
        await asyncio.sleep(0)
        assert not waiting.done()
        assert partition.high_watermark == 1
        assert partition.read_cached(Offset(1), 1000) == b""
        disk.gate.set()
        await waiting
        assert partition.high_watermark == 3
        data = partition.read_cached(Offset(1), 1000)
        assert data is not None
        assert [row.value for row in records.decode(data)] == [b"a", b"b"]

    run(tmp_path, scenario, FlushMode.COMMIT)


@pytest.mark.parametrize("mode", [FlushMode.OS, FlushMode.INTERVAL])
def test_in_the_other_modes_written_is_committed(tmp_path: Path, mode: FlushMode) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        disk.gate.clear()
        append(partition, b"a")
        assert partition.committed(Offset(2), EPOCH, LONG_S) is None
        assert partition.high_watermark == 2

    run(tmp_path, scenario, mode)


def test_appends_that_meet_a_sync_share_the_next_one(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        disk.gate.clear()
        append(partition, b"first")
        await asyncio.sleep(0)  # its sync has begun and waits at the gate
        waiting = [append(partition, b"%d" % number) for number in range(5)]
        assert all(isinstance(each, asyncio.Future) for each in waiting)
        disk.gate.set()
        offsets = [(await each).base_offset for each in waiting if isinstance(each, asyncio.Future)]
        assert offsets == [2, 3, 4, 5, 6]
        done = partition.committed(Offset(7), EPOCH, LONG_S)
        if done is not None:
            await done
        assert partition.high_watermark == 7

    run(tmp_path, scenario, FlushMode.COMMIT)


def test_a_commit_that_does_not_come_in_time_says_so(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        disk.gate.clear()
        append(partition, b"a")
        waiting = partition.committed(Offset(2), EPOCH, 0.01)
        assert waiting is not None
        with pytest.raises(RequestTimedOut, match="t-0: offset 1 was written but not committed"):
            await waiting
        later = partition.committed(Offset(2), EPOCH, LONG_S)
        disk.gate.set()
        assert later is not None
        await later

    run(tmp_path, scenario, FlushMode.COMMIT)


def _note(told: list[int], end: int, _: "asyncio.Future[None]") -> None:
    told.append(end)


def test_commits_are_told_in_the_order_of_offsets(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        disk.gate.clear()
        append(partition, b"a", b"b", b"c")
        told: list[int] = []
        waiting = []
        for end in (4, 2, 3):  # the later ones as duplicates of an earlier batch would
            future = partition.committed(Offset(end), EPOCH, LONG_S)
            assert future is not None
            future.add_done_callback(partial(_note, told, end))
            waiting.append(future)
        disk.gate.set()
        await asyncio.gather(*waiting)
        await asyncio.sleep(0)
        assert told == [2, 3, 4]

    run(tmp_path, scenario, FlushMode.COMMIT)


def test_watchers_hear_of_what_became_readable_and_no_more(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        watcher = Watcher()
        partition.watch(watcher)
        append(partition, b"a" * 100)
        assert watcher.bytes == len(batch_of(b"a" * 100))
        partition.unwatch(watcher)
        append(partition, b"b")
        assert watcher.bytes == len(batch_of(b"a" * 100))

    run(tmp_path, scenario, FlushMode.OS)


def test_offsets_outside_the_log_are_refused_with_its_bounds(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        append(partition, b"a")
        assert partition.read_cached(Offset(2), 1000) == b""
        for offset in (-1, 3):
            with pytest.raises(OffsetOutOfRange, match="t-0 has offsets 0 to 2"):
                partition.read_cached(Offset(offset), 1000)

    run(tmp_path, scenario, FlushMode.OS)


def test_the_present_epoch_ends_at_the_end_of_the_log(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        assert partition.epoch_end(Epoch(3)) == (3, 1)
        append(partition, b"a")
        assert partition.epoch_end(Epoch(3)) == (3, 2)
        assert partition.epoch_end(Epoch(4)) == (-1, -1)

    run(tmp_path, scenario, FlushMode.OS)


def test_closing_tells_those_who_wait(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        disk.gate.clear()
        append(partition, b"a")
        waiting = partition.committed(Offset(2), EPOCH, LONG_S)
        closing = asyncio.ensure_future(partition.close())
        assert waiting is not None
        with pytest.raises(NotLeader, match="closing"):
            await waiting
        disk.gate.set()
        await closing

    run(tmp_path, scenario, FlushMode.COMMIT)


# --- following


def follow(epoch: int = 4, leader: int = 2, isr: tuple[int, ...] = (1, 2)) -> PartitionImage:
    return PartitionImage(
        BrokerId(leader), Epoch(epoch), Epoch(epoch + 10), (ME, BrokerId(2)), tuple(map(BrokerId, isr))
    )


def fetched(offset: int, *, epoch: int = 4, high: int = 0, value: bytes = b"v") -> Answer:
    batch = bytearray(batch_of(value))
    patch(batch, offset, epoch)
    return Answer(Verdict.OK, Offset(high), Offset(0), memoryview(batch))


def test_a_follower_asks_for_more_when_what_it_got_is_durable(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        await partition.apply(follow())
        asked = partition.question()
        assert asked == (4, 1, 3)
        disk.gate.clear()
        taking = asyncio.ensure_future(partition.take(asked, fetched(1, high=2)))
        await asyncio.sleep(0)
        assert partition.question() is None
        assert partition.high_watermark == 1
        disk.gate.set()
        assert await taking
        assert partition.question() == (4, 2, 4)
        assert partition.high_watermark == 2

    run(tmp_path, scenario, FlushMode.COMMIT)


def test_nothing_is_asked_while_an_answer_of_another_leader_waits_in_line(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        append(partition, b"a")
        await partition.apply(follow())
        disk.gate.clear()
        syncing = asyncio.ensure_future(partition.log.sync())  # what comes next waits in line
        while not disk.waiting:
            await asyncio.sleep(0)
        asked = partition.question()
        assert asked is not None
        taking = asyncio.ensure_future(partition.take(asked, fetched(2)))
        await asyncio.sleep(0)
        await partition.apply(follow(epoch=5))
        assert partition.question() is None
        disk.gate.set()
        await asyncio.gather(syncing, taking)
        assert partition.question() == (5, 3, 4)

    run(tmp_path, scenario, FlushMode.OS)


def test_an_answer_that_leads_nowhere_says_so(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        await partition.apply(follow())
        asked = partition.question()
        assert asked is not None
        assert not await partition.take(asked, Answer(Verdict.REFUSED, Offset(-1), Offset(-1)))
        assert not await partition.take(asked._replace(leader_epoch=Epoch(3)), fetched(1))
        assert partition.log.end_offset == 1

    run(tmp_path, scenario, FlushMode.OS)


def test_a_follower_knows_what_its_leader_has_committed_and_counts_what_it_has(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        await partition.apply(follow())
        asked = partition.question()
        assert asked is not None
        await partition.take(asked, fetched(1, high=9))
        assert (partition.high_watermark, partition.log.end_offset) == (2, 2)

    run(tmp_path, scenario, FlushMode.OS)


def test_a_follower_shows_nothing_below_its_leaders_start(tmp_path: Path) -> None:
    """What lies there, the leader can't compare any more: its log may have been another one."""

    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        await partition.apply(follow())
        asked = partition.question()
        assert asked is not None
        seen: list[tuple[int, int]] = []

        class Reader(Watcher):
            def grown(self, bytes_added: int) -> None:
                seen.append((partition.log.start_offset, partition.high_watermark))

        partition.watch(Reader())
        await partition.take(asked, fetched(1, high=2)._replace(start_offset=Offset(2)))
        assert seen == [(2, 2)]

    run(tmp_path, scenario, FlushMode.OS)


def test_what_waits_to_be_written_when_the_epoch_ends_is_not_written(tmp_path: Path) -> None:
    """Behind a cut, it would be another batch at an offset that had one in the same epoch."""

    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        append(partition, b"a")
        disk.gate.clear()
        syncing = asyncio.ensure_future(partition.log.sync())  # what comes next waits in line
        while not partition.log._writer._step_under_way:
            await asyncio.sleep(0)
        waiting = append(partition, b"b")
        assert isinstance(waiting, asyncio.Future)
        end = partition.log.end_offset
        await partition.apply(follow())
        disk.gate.set()
        with pytest.raises(NotLeader, match="led by broker 2 now"):
            await waiting
        await syncing
        await partition.log.idle()
        assert partition.log.end_offset == end

    run(tmp_path, scenario, FlushMode.OS)


def test_a_new_epoch_ends_the_promises_of_the_last_one(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        disk.gate.clear()
        append(partition, b"a")
        waiting = partition.committed(Offset(2), EPOCH, LONG_S)
        watcher = Watcher()
        partition.watch(watcher, replica=True)
        await partition.apply(follow())
        assert waiting is not None
        with pytest.raises(NotLeader, match="led by broker 2 now"):
            await waiting
        assert watcher.bytes > 0
        with pytest.raises(NotLeader):
            append(partition, b"b")
        disk.gate.set()

    run(tmp_path, scenario, FlushMode.COMMIT)


def test_who_told_its_leader_what_it_had_heals_in_the_next_epoch(tmp_path: Path) -> None:
    """Its leader may be asking to let it in, by what it was told: it must not get shorter before that is over."""

    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        for number in range(5):
            append(partition, b"%d" % number * 100)
        await partition.apply(follow(isr=(2,)))
        assert partition.question() is not None
        [path] = (tmp_path / "p").glob("*.log")
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
        for offset in range(6):
            with suppress(Corruption):
                await partition.read(Offset(offset), 1)
        assert (partition.log.is_damaged, partition.is_counted_on, partition.may_heal) == (True, True, False)
        await partition.apply(follow(epoch=5, isr=(2,)))
        assert (partition.is_counted_on, partition.may_heal) == (False, True)

    run(tmp_path, scenario, FlushMode.OS)


async def _reopened_with_epoch(tmp_path: Path, partition: Partition, disk: GatedDisk, bits: int) -> Partition:
    """The same log after a power loss that took the mark, with other bits in the epoch of its last batch."""
    await partition.close()
    [path] = (tmp_path / "p").glob("*.log")
    data = bytearray(path.read_bytes())
    last = max(at for at, _ in headers(data))
    data[last + 12 : last + 16] = (EPOCH ^ bits).to_bytes(4, "big")
    path.write_bytes(data)
    for name in ("synced", "checkpoint"):
        (tmp_path / "p" / name).unlink(missing_ok=True)
    fatal: list[BaseException] = []
    return await Partition.open(
        "t", partition.key, "p", TopicConfig(flush_mode=FlushMode.OS),
        me=ME, disk=disk, clock=SystemClock(), on_fatal=fatal.append,
    )  # fmt: skip


def test_a_follower_with_an_epoch_that_can_not_be_is_damaged_and_heals(tmp_path: Path) -> None:
    """Its leader knows nothing of the epoch, and would send it away for ever."""

    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        append(partition, b"1")
        again = await _reopened_with_epoch(tmp_path, partition, disk, 128)
        await again.apply(follow(epoch=4))
        assert (again.log.end_offset, again.log.last_epoch) == (2, 131)
        assert again.question() is None
        assert (again.log.intact_until, again.may_heal) == (1, False), "it is in the ISR: others count on what it has"
        await again.apply(follow(epoch=5, isr=(2,)))
        await again.heal()
        assert again.question() == (5, 1, 3)
        assert await again.take(Question(Epoch(5), Offset(1), Epoch(3)), fetched(1, epoch=5))
        await again.close()

    run(tmp_path, scenario, FlushMode.OS)


def test_a_leader_with_an_epoch_that_can_not_be_is_damaged_and_goes_on(tmp_path: Path) -> None:
    """All that is appended would be refused as being of an epoch that is over."""

    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        append(partition, b"1")
        again = await _reopened_with_epoch(tmp_path, partition, disk, 128)
        await again.apply(PartitionImage(ME, Epoch(4), Epoch(8), (ME,), (ME,)))
        assert (again.log.intact_until, again.log.end_offset) == (1, 2)
        begun = append(again, b"2")
        assert (await begun if isinstance(begun, asyncio.Future) else begun).base_offset == 2
        with pytest.raises(Corruption):
            await again.read(Offset(1), 1, replica=True)
        assert len(await again.read(Offset(2), 1, replica=True)) > 0
        await again.close()

    run(tmp_path, scenario, FlushMode.OS)


def test_a_follower_whose_leader_goes_on_with_an_older_epoch_is_damaged(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        append(partition, b"1")
        again = await _reopened_with_epoch(tmp_path, partition, disk, 4)
        await again.apply(follow(epoch=9, isr=(2,)))
        asked = again.question()
        assert asked == (9, 2, 7)
        assert not await again.take(asked, fetched(2, epoch=3)._replace(epoch=Epoch(3)))
        assert (again.log.intact_until, again.log.last_epoch, again.question()) == (1, 3, None)
        await again.close()

    run(tmp_path, scenario, FlushMode.OS)


def test_a_log_that_is_cut_when_it_leads_no_more_is_not_out_of_range(tmp_path: Path) -> None:
    """Who reads meanwhile would begin again at the start."""

    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        for number in range(5):
            append(partition, b"%d" % number)
        await partition.log.idle()
        disk.gate.clear()
        cutting = asyncio.ensure_future(partition.log.truncate(2))
        while partition.log.read_cached(Offset(4), 1, 6) is not None:
            await asyncio.sleep(0)
        reading = asyncio.ensure_future(partition.read(Offset(4), 1))
        await asyncio.sleep(0)
        await partition.apply(follow())
        disk.gate.set()
        await cutting
        with pytest.raises(NotLeader):
            await reading
        with pytest.raises(NotLeader):
            partition.check_readable(Offset(4))

    run(tmp_path, scenario, FlushMode.OS)


def test_only_who_is_not_counted_on_heals(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        for number in range(5):
            append(partition, b"%d" % number * 100)
        [path] = (tmp_path / "p").glob("*.log")
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0xFF
        path.write_bytes(data)
        for offset in range(6):
            with suppress(Corruption):
                await partition.read(Offset(offset), 1)
        assert partition.log.damage
        await partition.apply(follow())
        assert partition.question() is None
        assert [partition.may_heal] == [False]  # it is in the ISR: others count on what it has
        await partition.apply(follow(epoch=5, isr=(2,)))
        assert [partition.may_heal] == [True]
        intact = partition.log.intact_until
        await partition.heal()
        assert not partition.log.damage
        assert partition.log.end_offset == intact < 6
        assert partition.high_watermark <= intact
        assert partition.question() == (5, intact, 3)

    run(tmp_path, scenario, FlushMode.OS)


def test_only_its_coordinator_appends_to_a_partition_of_an_internal_topic(tmp_path: Path) -> None:
    async def scenario(partition: Partition, _: GatedDisk) -> None:
        partition.internal = True
        end = partition.log.end_offset
        with pytest.raises(InvalidTopicName, match="internal"):
            append(partition, b"1")
        with pytest.raises(InvalidTopicName, match="internal"):
            await partition.write_marker(Ending(7, 0, True, 0), LONG_S)
        assert partition.log.end_offset == end
        batch = batch_of(b"1")
        begun = partition.append(batch, check_produced(batch), own=True)
        appended = await begun if isinstance(begun, asyncio.Future) else begun
        assert appended.base_offset == end

    run(tmp_path, scenario, FlushMode.OS)
