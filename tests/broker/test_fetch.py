"""Fetch: bounds, long polls, epochs, and that an error waits for nobody."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from runnel.broker.fetch import Fetching, Read, ReadResult, Waits, read_committed
from runnel.cluster.image import Partition as PartitionImage
from runnel.model import errors as e
from runnel.model.ids import BrokerId, Epoch, Offset
from runnel.net.bounds import ANSWER_BYTES_MIN, Bounds
from runnel.record import control, records
from runnel.record.batch import check_produced, headers, patch
from runnel.replica.ending import Ending
from runnel.replica.following import Answer, Verdict
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


def test_a_reader_gets_what_is_left_of_the_answers_and_a_little_at_least(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        size = 0
        for _ in range(10):
            size = await append(partition, b"x" * 500_000)
        bounds = Bounds(answers=5 * size)
        fetching = Fetching(1 << 30, bounds=bounds)

        async def fetched() -> int:
            [result] = await fetching.fetch(
                [Read(partition, Offset(0), 1 << 30)], Waits(), bytes_min=1, bytes_max=1 << 30, wait_ms=0
            )
            return len(result.records) // size

        assert await fetched() == 5
        assert (bounds.answers.used, bounds.met["answers-bytes-max"]) == (0, 1)
        bounds.answers.charge(2 * size)  # others do not take theirs
        assert await fetched() == 3
        bounds.answers.charge(9 * size)
        assert await fetched() == ANSWER_BYTES_MIN // size == 2

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


# --- transactions


def written(producer: int, sequence: int = 0) -> memoryview:
    row = records.Record(Offset(0), 1, None, b"%d-%d" % (producer, sequence), ())
    return memoryview(
        bytearray(
            records.encode(
                [row], producer_id=producer, producer_epoch=0, base_sequence=sequence, transactional=True
            )
        )
    )  # fmt: skip


async def write(partition: Partition, producer: int, sequence: int = 0) -> None:
    """Append to a transaction, which begins here if none is open."""
    guard = partition.guard(producer)
    guard.admit(0)
    batch = written(producer, sequence)
    begun = partition.append(batch, check_produced(batch), guard)
    if isinstance(begun, asyncio.Future):
        await begun


async def end(partition: Partition, producer: int, *, commit: bool) -> None:
    await partition.write_marker(Ending(producer, 0, commit, 1), 60)


async def fetch(
    partition: Partition, offset: int = 0, *, bytes_max: int = 10_000, committed_only: bool = True, wait_ms: int = 0
) -> ReadResult:
    read = Read(partition, Offset(offset), bytes_max, committed_only=committed_only)
    [result] = await Fetching(1 << 20).fetch([read], Waits(), bytes_min=1, bytes_max=bytes_max, wait_ms=wait_ms)
    return result


def data_of(result: ReadResult) -> list[bytes | None]:
    """What a reader that leaves nothing out sees."""
    return [
        row.value
        for position, header in headers(result.records)
        if not header.control
        for row in records.decode(memoryview(result.records)[position : position + header.size])
    ]


def test_who_reads_committed_messages_stops_before_an_open_transaction(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        await append(partition, b"a")
        await write(partition, 7)
        await append(partition, b"b")
        committed, all_of_it = await fetch(partition), await fetch(partition, committed_only=False)
        assert (data_of(committed), committed.aborted) == ([b"a"], [])
        assert (data_of(all_of_it), all_of_it.aborted) == ([b"a", b"7-0", b"b"], None)
        for result in (committed, all_of_it, await fetch(partition, 2)):
            assert (result.high_watermark, result.last_stable_offset) == (3, 1)
        assert (await fetch(partition, 2)).error is None  # beyond what is stable, not beyond the end

    run(scenario)


def test_aborted_transactions_are_told_for_what_is_returned_and_no_more(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        await write(partition, 7)  # 0
        await write(partition, 8)  # 1
        await end(partition, 7, commit=False)  # 2
        await write(partition, 7, 1)  # 3
        await end(partition, 8, commit=True)  # 4
        await end(partition, 7, commit=False)  # 5
        whole = await fetch(partition)
        assert [tuple(each) for each in whole.aborted or ()] == [(7, 0), (7, 3)]
        assert data_of(whole) == [b"7-0", b"8-0", b"7-1"]
        one = len(written(7))
        first = await fetch(partition, bytes_max=one)
        assert (data_of(first), [tuple(each) for each in first.aborted or ()]) == ([b"7-0"], [(7, 0)])
        middle = await fetch(partition, 1, bytes_max=one)
        assert (data_of(middle), [tuple(each) for each in middle.aborted or ()]) == ([b"8-0"], [(7, 0)])
        rest = await fetch(partition, 3)
        assert [tuple(each) for each in rest.aborted or ()] == [(7, 3)]

    run(scenario)


@pytest.mark.parametrize("commit", [True, False])
def test_who_waits_for_committed_messages_is_answered_when_the_transaction_ends(run: Run, commit: bool) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        await write(partition, 7)
        waiting = asyncio.ensure_future(fetch(partition, wait_ms=LONG_MS))
        await asyncio.sleep(0)
        await append(partition, b"a")
        await asyncio.sleep(0)
        assert not waiting.done()
        await end(partition, 7, commit=commit)
        result = await waiting
        assert data_of(result) == [b"7-0", b"a"]
        assert [tuple(each) for each in result.aborted or ()] == ([] if commit else [(7, 0)])

    run(scenario)


def test_a_follower_serves_what_is_committed_as_far_as_it_knows(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        await write(partition, 7)
        me, other = BrokerId(1), BrokerId(2)
        await partition.apply(PartitionImage(other, Epoch(3), Epoch(1), (me, other), (me, other)))
        before = await fetch(partition)
        assert (data_of(before), before.last_stable_offset, before.high_watermark) == ([], 0, 1)
        marker = control.marker(7, 0, commit=False, coordinator_epoch=1, timestamp_ms=1)
        patch(marker, 1, 3)
        for answer in (
            Answer(Verdict.OK, Offset(1), Offset(0), memoryview(marker)),
            Answer(Verdict.OK, Offset(2), Offset(0)),
        ):
            asked = partition.question()
            assert asked is not None
            known = await fetch(partition)
            assert (data_of(known), known.last_stable_offset) == ([], 0)
            await partition.take(asked, answer)
        after = await fetch(partition)
        assert (data_of(after), [tuple(each) for each in after.aborted or ()]) == ([b"7-0"], [(7, 0)])
        assert (after.last_stable_offset, after.high_watermark) == (2, 2)

    run(scenario)


class ExchangedLog:
    """A log that is compacted between reading a batch and asking whether its transaction was aborted."""

    def __init__(self, before: bytes, after: bytes) -> None:
        self.data, self._after, self.generation, self.log = before, after, 0, self
        self.has_transactions = True

    def read_cached(self, offset: int, bytes_max: int, *, committed_only: bool) -> bytes:
        return self.data

    def check_readable(self, offset: int) -> None:
        if self.data == b"":
            raise e.OffsetOutOfRange("gone")

    async def aborted(self, start: int, end: int) -> list[tuple[int, int]]:
        if self.data is not self._after:
            self.data, self.generation = self._after, 1
        return []  # nobody remembers


def test_what_was_read_before_a_compaction_is_not_told_with_what_is_known_after_it(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        aborted, left = bytes(written(7)), bytes(written(8))
        log: Any = ExchangedLog(aborted, left)
        assert await read_committed(log, Offset(0), 1000) == (left, [])
        gone: Any = ExchangedLog(aborted, b"")
        with pytest.raises(e.OffsetOutOfRange):
            await read_committed(gone, Offset(0), 1000)

    run(scenario)


@pytest.mark.parametrize("committed_only", [True, False])
def test_what_became_readable_while_another_partition_was_read_is_not_waited_for(
    run: Run, committed_only: bool
) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        one, two = await open_partition(0), await open_partition(1)
        await write(one, 7)
        await append(two, b"a")
        await two.close()
        two = await open_partition(1)  # nothing of it is at hand: it is read off the loop
        disk.gate.clear()
        offset = one.readable_until(committed_only=committed_only)
        reads = [Read(p, o, 1000, committed_only=committed_only) for p, o in ((one, offset), (two, Offset(0)))]
        enough = 2 * len(written(7)) if committed_only else len(written(7)) + 1
        waiting = asyncio.ensure_future(
            Fetching(1 << 20).fetch(reads, Waits(), bytes_min=enough, bytes_max=10_000, wait_ms=LONG_MS)
        )
        for _ in range(10):
            await asyncio.sleep(0)
        if committed_only:
            await end(one, 7, commit=True)
        else:
            await write(one, 7, 1)
        assert not waiting.done()
        disk.gate.set()
        results = await waiting
        assert [len(data_of(result)) for result in results] == [1, 1]

    run(scenario)


def test_who_waits_for_committed_messages_is_left_alone_by_others(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        await write(partition, 7)
        waits = Waits()
        read = Read(partition, Offset(0), 1000, committed_only=True)
        waiting = asyncio.ensure_future(
            Fetching(1 << 20).fetch([read], waits, bytes_min=1, bytes_max=1000, wait_ms=LONG_MS)
        )
        while not waits._waiting:
            await asyncio.sleep(0)
        [waiter] = waits._waiting
        await append(partition, b"a")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert list(waits._waiting) == [waiter]  # it did not read again to find nothing
        waits.end()
        [result] = await waiting
        assert data_of(result) == []

    run(scenario)


# --- work that ends with its client
def test_work_gives_its_result_or_its_error_while_the_client_is_there() -> None:
    async def work(problem: Exception | None) -> str:
        await asyncio.sleep(0)
        if problem is not None:
            raise problem
        return "done"

    async def main() -> None:
        waits = Waits()
        assert await waits.within(60, work(None)) == "done"
        with pytest.raises(e.NotLeader):
            await waits.within(60, work(e.NotLeader("elsewhere")))
        assert not waits._waiting, "nothing is left behind"

    asyncio.run(main())


@pytest.mark.parametrize("when", ["before", "meanwhile", "never"])
def test_work_is_cancelled_with_its_client_and_when_it_takes_too_long(when: str) -> None:
    cancelled: list[bool] = []

    async def work(begun: asyncio.Event) -> str:
        begun.set()
        try:
            return str(await asyncio.Event().wait())
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    async def main() -> None:
        waits, begun = Waits(), asyncio.Event()
        if when == "before":
            waits.end()
        asking = asyncio.ensure_future(waits.within(0.01 if when == "never" else 60, work(begun)))
        if when == "meanwhile":
            await begun.wait()
            waits.end()
        assert await asking is None
        assert cancelled == ([] if when == "before" else [True])

    asyncio.run(main())
