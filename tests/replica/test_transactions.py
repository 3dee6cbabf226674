"""Transactions in one partition: what is stable, who may write in one, and what ends it."""

import asyncio
import gc
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.replica.test_partition import EPOCH, LONG_S, ME, Watcher, append, batch_of, follow, run

from runnel.cluster.image import Partition as PartitionImage
from runnel.log.log import Appended
from runnel.model import errors as e
from runnel.model.ids import BrokerId, Epoch, Offset
from runnel.model.topic_config import FlushMode, TopicConfig
from runnel.record import records
from runnel.record.batch import check_produced, headers, patch, read_header
from runnel.record.control import marker
from runnel.replica.ending import Ending, Guard
from runnel.replica.following import Answer, Verdict
from runnel.replica.partition import Partition
from runnel.testing.gated_disk import GatedDisk

A, B = 7, 8  # producers
COORDINATOR = 5  # its epoch
COMMIT, ABORT = True, False
Scenario = Callable[[Partition, GatedDisk], Coroutine[Any, Any, None]]


def batch(producer: int, sequence: int = 0, *, epoch: int = 0, values: tuple[bytes, ...] = (b"v",)) -> memoryview:
    rows = [records.Record(Offset(i), 1_000 + i, None, value, ()) for i, value in enumerate(values)]
    encoded = records.encode(
        rows, producer_id=producer, producer_epoch=epoch, base_sequence=sequence, transactional=True
    )
    return memoryview(bytearray(encoded))


def admitted(partition: Partition, producer: int, epoch: int = 0) -> Guard:
    guard = partition.guard(producer)
    guard.admit(epoch)
    return guard


def begin(
    partition: Partition, producer: int, sequence: int = 0, *, epoch: int = 0
) -> "Appended | asyncio.Future[Appended]":
    """Write the first batch of a transaction that the coordinator has just admitted."""
    data = batch(producer, sequence, epoch=epoch)
    return partition.append(data, check_produced(data), admitted(partition, producer, epoch))


def go_on(
    partition: Partition, producer: int, sequence: int = 1, *, epoch: int = 0
) -> "Appended | asyncio.Future[Appended]":
    data = batch(producer, sequence, epoch=epoch)
    return partition.append(data, check_produced(data))


async def end(
    partition: Partition, producer: int, commit: bool = COMMIT, *,
    epoch: int = 0, coordinator: int = COORDINATOR, version: int = 1,
) -> None:  # fmt: skip
    await partition.write_marker(Ending(producer, epoch, commit, coordinator, version), LONG_S)


async def read(partition: Partition, offset: int = 1) -> list[bytes | None]:
    """What a reader of committed messages gets, aborted ones among them."""
    data = await partition.read(Offset(offset), 1 << 20, committed_only=True) if offset < stable(partition) else b""
    return [row.value for _, header in headers(data) if not header.control for row in records.decode(data)]


def stable(partition: Partition) -> int:
    return partition.last_stable_offset


def in_memory(folder: Path, scenario: Scenario) -> None:
    run(folder, scenario, FlushMode.OS)


async def hold_up(partition: Partition, disk: GatedDisk) -> "asyncio.Future[None]":
    """Begin a sync: what comes next waits in line until the disk's gate is open."""
    disk.gate.clear()
    syncing = asyncio.ensure_future(partition.log.sync())
    while not partition.log._writer._step_under_way:
        await asyncio.sleep(0)
    return syncing


# --- what is stable


def test_without_transactions_all_that_is_committed_is_stable(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        append(partition, b"a")
        assert (stable(partition), partition.high_watermark) == (2, 2)

    in_memory(tmp_path, scenario)


def test_nothing_is_stable_from_the_first_batch_of_an_open_transaction_on(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        append(partition, b"a")
        begin(partition, A)
        append(partition, b"b")
        assert (stable(partition), partition.high_watermark) == (2, 4)
        assert partition.readable_until(committed_only=True) == 2
        assert partition.readable_until() == 4
        assert await read(partition) == [b"a"]
        assert partition.read_cached(Offset(2), 1000, committed_only=True) == b""
        assert partition.read_cached(Offset(3), 1000, committed_only=True) == b""
        assert partition.read_cached(Offset(2), 1000)
        await end(partition, A)
        assert stable(partition) == partition.high_watermark == 5

    in_memory(tmp_path, scenario)


def test_transactions_that_interleave_are_stable_when_the_earliest_has_ended(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        begin(partition, A)  # 1
        begin(partition, B)  # 2
        go_on(partition, A)  # 3
        await end(partition, B)  # 4
        assert stable(partition) == 1
        begin(partition, B, 1)  # 5
        await end(partition, A, ABORT)  # 6
        assert stable(partition) == 5
        await end(partition, B)  # 7
        assert stable(partition) == partition.high_watermark == 8

    in_memory(tmp_path, scenario)


def test_a_marker_counts_when_it_is_committed(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        begun = begin(partition, A)
        assert isinstance(begun, Appended)
        waiting = partition.committed(Offset(2), EPOCH, LONG_S)
        assert waiting is not None
        await waiting
        await partition.log.idle()
        disk.gate.clear()
        reader, committed_reader = Watcher(), Watcher()
        partition.watch(reader)
        partition.watch(committed_reader, committed_only=True)
        ending = asyncio.ensure_future(end(partition, A))
        await asyncio.sleep(0)
        assert partition.log.end_offset == 3  # it is written
        assert (stable(partition), partition.high_watermark) == (1, 2)
        assert not ending.done()
        assert committed_reader.bytes == 0
        disk.gate.set()
        await ending
        assert (stable(partition), partition.high_watermark) == (3, 3)
        assert committed_reader.bytes >= reader.bytes > 0

    run(tmp_path, scenario, FlushMode.COMMIT)


@pytest.mark.parametrize("commit", [COMMIT, ABORT])
def test_readers_of_committed_messages_are_woken_when_that_moves_and_by_nothing_else(
    tmp_path: Path, commit: bool
) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        begin(partition, A)
        reader, committed_reader = Watcher(), Watcher()
        partition.watch(reader)
        partition.watch(committed_reader, committed_only=True)
        append(partition, b"a")
        assert (reader.bytes > 0, committed_reader.bytes) == (True, 0)
        await end(partition, A, commit)
        assert committed_reader.bytes > reader.bytes  # the transaction, too, can be read only now
        partition.unwatch(committed_reader)
        told = committed_reader.bytes
        append(partition, b"b")
        assert committed_reader.bytes == told

    in_memory(tmp_path, scenario)


def test_with_its_role_a_partition_wakes_readers_of_committed_messages_too(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        watcher = Watcher()
        partition.watch(watcher, committed_only=True)
        await partition.apply(follow())
        assert watcher.bytes > 0

    in_memory(tmp_path, scenario)


def test_what_is_stable_is_never_below_the_start(tmp_path: Path) -> None:
    """DeleteRecords may cut through an open transaction."""

    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        begin(partition, A)
        append(partition, b"a")
        await partition.log.advance_start(2)
        assert stable(partition) == partition.log.start_offset == 2
        append(partition, b"b")
        assert stable(partition) == 2

    in_memory(tmp_path, scenario)


def given(offset: int, *batches: memoryview | bytearray, high: int, epoch: int = 4) -> Answer:
    """What a leader answers its follower."""
    joined = bytearray()
    for each in batches:
        one = bytearray(each)
        patch(one, offset, epoch)
        offset += read_header(one).last_offset_delta + 1
        joined += one
    return Answer(Verdict.OK, Offset(high), Offset(0), memoryview(joined))


def mark(producer: int, commit: bool = COMMIT, epoch: int = 0) -> bytearray:
    return marker(producer, epoch, commit=commit, coordinator_epoch=COORDINATOR, timestamp_ms=1_000)


async def take(partition: Partition, answer: Answer) -> None:
    asked = partition.question()
    assert asked is not None
    assert await partition.take(asked, answer)


def test_a_follower_knows_what_is_stable_as_its_leader_does(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        await partition.apply(follow())
        await take(partition, given(1, batch(A), batch(B), mark(A), high=3))  # A's marker is not committed yet
        assert (stable(partition), partition.high_watermark, partition.log.end_offset) == (1, 3, 4)
        watcher = Watcher()
        partition.watch(watcher, committed_only=True)
        await take(partition, given(4, batch_of(b"a"), high=5))
        assert (stable(partition), partition.high_watermark) == (2, 5)
        assert watcher.bytes > 0
        await take(partition, given(5, mark(B, ABORT), high=6))
        assert (stable(partition), partition.high_watermark) == (6, 6)

    in_memory(tmp_path, scenario)


def test_what_a_follower_has_to_cut_off_ends_nothing(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        await partition.apply(follow())
        await take(partition, given(1, batch(A), mark(A), high=2))
        await partition.apply(follow(epoch=5, leader=2))
        await take(partition, Answer(Verdict.DIVERGED, Offset(2), Offset(0), epoch=Epoch(4), end_offset=Offset(2)))
        assert partition.log.end_offset == 2
        await take(partition, given(2, batch_of(b"a"), high=3, epoch=5))
        assert (stable(partition), partition.high_watermark) == (1, 3)

    in_memory(tmp_path, scenario)


def test_a_transaction_outlives_its_leader(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        begin(partition, A)
        await partition.apply(follow())
        await take(partition, given(2, batch(A, 1), high=3))
        await partition.apply(PartitionImage(ME, Epoch(5), Epoch(20), (ME, BrokerId(2)), (ME,)))
        assert stable(partition) == 1
        go_on(partition, A, 2)  # it is open: no question is due
        await end(partition, A, ABORT)
        assert stable(partition) == partition.high_watermark == 5

    in_memory(tmp_path, scenario)


class Model:
    """What is stable, reckoned from every transaction that ever was."""

    def __init__(self) -> None:
        self.open: dict[int, int] = {}  # producer -> first offset
        self.ended: list[tuple[int, int]] = []  # first offset, offset of the marker

    def stable(self, high: int) -> int:
        unstable = [*self.open.values(), *(first for first, mark in self.ended if mark >= high)]
        return min([high, *unstable])


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_the_stable_offset_is_right_and_never_goes_back(tmp_path: Path, seed: int) -> None:
    """Transactions begin, go on and end while a follower is now far behind, now not."""

    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        other, rng, model = BrokerId(2), random.Random(seed), Model()
        await partition.apply(PartitionImage(ME, EPOCH, Epoch(8), (ME, other), (ME, other)))
        sequences, ending, last = dict.fromkeys(range(4), 0), [], stable(partition)
        for _ in range(300):
            end_offset, producer = int(partition.log.end_offset), rng.choice(list(sequences))
            match rng.choice(("write", "write", "end", "plain", "fetch")):
                case "write":
                    (go_on if producer in model.open else begin)(partition, producer, sequences[producer])
                    sequences[producer] += 1
                    model.open.setdefault(producer, end_offset)
                case "end" if producer in model.open:
                    ending.append(asyncio.ensure_future(end(partition, producer, rng.random() < 0.5)))
                    await asyncio.sleep(0)
                    model.ended.append((model.open.pop(producer), end_offset))
                case "plain":
                    append(partition, b"x")
                case "fetch":
                    held = rng.randint(partition.high_watermark, end_offset)
                    partition.fetched_by(other, Epoch(1), Offset(held))
            assert stable(partition) == model.stable(partition.high_watermark) >= last
            last = stable(partition)
        partition.fetched_by(other, Epoch(1), partition.log.end_offset)
        await asyncio.gather(*ending)
        assert stable(partition) == model.stable(partition.log.end_offset)

    in_memory(tmp_path, scenario)


# --- who may write


def test_what_no_coordinator_admitted_is_refused(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        data = batch(A)
        for guard in (None, partition.guard(A), admitted(partition, B), admitted(partition, A, epoch=1)):
            with pytest.raises(
                e.InvalidTransactionState, match="no transaction of producer 7, epoch 0, is open in t-0"
            ):
                partition.append(data, check_produced(data), guard if guard is None or guard.admits(1) else Guard())
        assert partition.log.end_offset == 1
        assert not partition.in_transaction(check_produced(data))

    in_memory(tmp_path, scenario)


def test_whoever_has_begun_goes_on_without_a_question(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        begin(partition, A)
        assert partition.in_transaction(read_header(batch(A, 1)))
        assert not partition.in_transaction(read_header(batch(A, 1, epoch=1)))
        assert not partition.in_transaction(read_header(batch(B)))
        go_on(partition, A)
        await end(partition, A)
        assert not partition.in_transaction(read_header(batch(A, 2)))

    in_memory(tmp_path, scenario)


def test_what_comes_after_the_marker_is_refused(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        begin(partition, A)
        await end(partition, A)
        with pytest.raises(e.InvalidTransactionState):
            go_on(partition, A)
        begin(partition, B)
        await end(partition, B, epoch=1, version=2)
        with pytest.raises(e.InvalidProducerEpoch):  # even if a coordinator had admitted it
            begin(partition, B, 1)
        assert stable(partition) == partition.high_watermark == 5

    in_memory(tmp_path, scenario)


def test_an_admission_is_void_once_a_marker_has_come(tmp_path: Path) -> None:
    """The coordinator said yes, then ended the transaction, and its marker was faster than the batch."""

    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        begin(partition, A)
        await end(partition, A)
        for epoch in (0, 0, 1):  # nothing is open, and the second one is even a duplicate
            guard, other = admitted(partition, A), admitted(partition, B)
            await end(partition, A, epoch=epoch)
            assert (guard.valid, other.valid) == (False, True)
            data = batch(A, 1)
            with pytest.raises(e.InvalidTransactionState if epoch == 0 else e.InvalidProducerEpoch):
                partition.append(data, check_produced(data), guard)
        begin(partition, A, epoch=1)  # asked again, admitted again

    in_memory(tmp_path, scenario)


def test_the_next_transaction_is_admitted_while_the_end_of_the_last_one_comes(tmp_path: Path) -> None:
    """Since version 2 a client writes on before every partition knows of the end; its epoch tells which is which."""

    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        begin(partition, A)
        guard = admitted(partition, A, epoch=1)
        late = admitted(partition, B)
        await end(partition, A, epoch=1, version=2)
        data = batch(A, 0, epoch=1)
        partition.append(data, check_produced(data), guard)
        await end(partition, B, epoch=1, version=2)
        data = batch(B, 0)
        with pytest.raises(e.InvalidProducerEpoch):
            partition.append(data, check_produced(data), late)

    in_memory(tmp_path, scenario)


def test_an_admission_is_void_once_the_role_has_changed(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        guard = admitted(partition, A)
        await partition.apply(follow())
        with pytest.raises(e.NotLeader):
            partition.guard(A)
        await partition.apply(PartitionImage(ME, Epoch(5), Epoch(20), (ME,), (ME,)))
        assert not guard.valid
        data = batch(A)
        with pytest.raises(e.NotLeader):
            partition.append(data, check_produced(data), guard)

    in_memory(tmp_path, scenario)


def test_a_batch_behind_the_marker_in_line_is_refused(tmp_path: Path) -> None:
    """When it came, the transaction was open; when it gets its place, it is not."""

    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        begin(partition, A)
        syncing = await hold_up(partition, disk)
        before, ending = go_on(partition, A), asyncio.ensure_future(end(partition, A))
        await asyncio.sleep(0)
        assert partition.in_transaction(read_header(batch(A, 2)))
        behind = go_on(partition, A, 2)
        assert isinstance(before, asyncio.Future)
        assert isinstance(behind, asyncio.Future)
        disk.gate.set()
        with pytest.raises(e.InvalidTransactionState):
            await behind
        assert (await before).base_offset == 2
        await asyncio.gather(syncing, ending)
        assert stable(partition) == partition.high_watermark == 4

    in_memory(tmp_path, scenario)


def test_a_guard_that_nobody_holds_is_forgotten(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        guards = [partition.guard(producer) for producer in range(100)]
        assert partition.guard(3) is guards[3]
        assert len(partition._guards) == 100
        guards.clear()
        gc.collect()
        assert len(partition._guards) == 0

    in_memory(tmp_path, scenario)


def test_outside_of_its_transaction_a_producer_writes_nothing(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        begin(partition, A)
        rows = [records.Record(Offset(0), 1_000, None, b"v", ())]
        plain = memoryview(bytearray(records.encode(rows, producer_id=A, producer_epoch=0, base_sequence=1)))
        with pytest.raises(e.InvalidTransactionState):
            partition.append(plain, check_produced(plain))
        await end(partition, A)
        partition.append(plain, check_produced(plain))

    in_memory(tmp_path, scenario)


# --- what ends it


def test_who_is_not_the_coordinator_any_more_ends_nothing(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        begin(partition, A)
        await end(partition, A)
        begin(partition, A, 1)
        with pytest.raises(e.TransactionCoordinatorFenced):
            await end(partition, A, ABORT, coordinator=COORDINATOR - 1)
        assert stable(partition) == 3
        await end(partition, A, coordinator=COORDINATOR + 1)
        assert stable(partition) == 5

    in_memory(tmp_path, scenario)


def test_a_marker_of_an_older_epoch_ends_nothing(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        begin(partition, A, epoch=2)
        with pytest.raises(e.InvalidProducerEpoch):
            await end(partition, A, ABORT, epoch=1)
        assert stable(partition) == 1

    in_memory(tmp_path, scenario)


def test_a_marker_that_fences_ends_the_transaction_and_its_producer(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        begin(partition, A)
        await end(partition, A, ABORT, epoch=1)
        assert stable(partition) == 3
        with pytest.raises(e.InvalidProducerEpoch):
            go_on(partition, A)

    in_memory(tmp_path, scenario)


@pytest.mark.parametrize(("version", "coordinator"), [(1, COORDINATOR), (2, COORDINATOR), (2, COORDINATOR + 1)])
def test_a_marker_that_was_here_is_a_success_once_that_is_committed(
    tmp_path: Path, version: int, coordinator: int
) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        other = BrokerId(2)
        await partition.apply(PartitionImage(ME, EPOCH, Epoch(8), (ME, other), (ME, other)))
        begin(partition, A)
        first = asyncio.ensure_future(end(partition, A, epoch=1, version=version))
        await asyncio.sleep(0)
        again = asyncio.ensure_future(end(partition, A, epoch=1, coordinator=coordinator, version=version))
        await asyncio.sleep(0)
        assert (partition.log.end_offset, partition.high_watermark) == (3, 1)  # one marker
        partition.fetched_by(other, Epoch(1), Offset(2))
        await asyncio.sleep(0)
        assert (first.done(), again.done(), stable(partition)) == (False, False, 1)
        partition.fetched_by(other, Epoch(1), Offset(3))
        await asyncio.gather(first, again)
        assert stable(partition) == partition.log.end_offset == 3

    in_memory(tmp_path, scenario)


def test_a_late_marker_does_not_end_the_next_transaction(tmp_path: Path) -> None:
    """Under KIP-890 it carries the epoch of that next one."""

    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        begin(partition, A)
        await end(partition, A, epoch=1, version=2)
        guard = admitted(partition, A, epoch=1)
        for coordinator in (COORDINATOR, COORDINATOR + 1):
            await end(partition, A, epoch=1, coordinator=coordinator, version=2)
            assert guard.valid
        begin(partition, A, epoch=1)
        for coordinator in (COORDINATOR, COORDINATOR + 1):
            await end(partition, A, ABORT, epoch=1, coordinator=coordinator, version=2)
        assert stable(partition) == 3
        await end(partition, A, epoch=2, version=2)
        assert stable(partition) == 5

    in_memory(tmp_path, scenario)


def test_a_late_marker_behind_the_next_transaction_in_line_does_not_end_it(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        begin(partition, A)
        await end(partition, A, epoch=1, version=2)
        syncing = await hold_up(partition, disk)
        begun = begin(partition, A, epoch=1)
        late = asyncio.ensure_future(end(partition, A, ABORT, epoch=1, coordinator=COORDINATOR + 1, version=2))
        await asyncio.sleep(0)
        assert isinstance(begun, asyncio.Future)
        disk.gate.set()
        await asyncio.gather(syncing, begun, late)
        assert stable(partition) == 3

    in_memory(tmp_path, scenario)


def test_without_enough_replicas_no_marker_is_written(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        begin(partition, A)
        partition.reconfigure(TopicConfig(flush_mode=FlushMode.OS, min_insync_replicas=2))
        await partition.apply(PartitionImage(ME, EPOCH, Epoch(8), (ME, BrokerId(2)), (ME,)))
        with pytest.raises(e.NotEnoughReplicas):
            await end(partition, A)
        assert partition.log.end_offset == 2

    in_memory(tmp_path, scenario)


def test_only_a_leader_ends_transactions(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        await partition.apply(follow())
        with pytest.raises(e.NotLeader):
            await end(partition, A)

    in_memory(tmp_path, scenario)


def test_a_marker_that_its_leader_did_not_see_committed_is_no_success(tmp_path: Path) -> None:
    async def scenario(partition: Partition, disk: GatedDisk) -> None:
        begin(partition, A)
        await partition.log.idle()
        disk.gate.clear()
        ending = asyncio.ensure_future(end(partition, A))
        await asyncio.sleep(0)
        assert partition.log.end_offset == 3
        await partition.apply(follow())
        with pytest.raises(e.NotLeader):
            await ending
        disk.gate.set()

    run(tmp_path, scenario, FlushMode.COMMIT)
