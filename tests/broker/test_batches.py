"""Batches for queues: what is read, offered and cut out of the log."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.broker.test_fetch import end, write

from runnel.broker.batches import READ_BYTES, Batches
from runnel.model.ids import Offset
from runnel.queues.values import Granted, Offered, Span
from runnel.record import records
from runnel.record.batch import check_produced, headers
from runnel.record.compression import Compression
from runnel.replica.partition import Partition
from runnel.testing.gated_disk import GatedDisk

Run = Callable[[Any], None]


async def append(partition: Partition, count: int, size: int = 1, header: tuple[str, bytes] | None = None) -> None:
    """One batch of so many messages."""
    told = (header,) if header is not None else ()
    rows = [records.Record(Offset(number), 1, None, bytes(size), told) for number in range(count)]
    batch = memoryview(bytearray(records.encode(rows)))
    begun = partition.append(batch, check_produced(batch))
    if isinstance(begun, asyncio.Future):
        await begun


async def gathered(
    partition: Partition, *spans: tuple[int, int], messages: int = 1_000, size: int = 1 << 20
) -> Batches:
    batches = Batches(partition, committed=True)
    await batches.gather([Span(*span) for span in spans], messages, size)
    return batches


def spans_of(offers: list[Offered]) -> list[tuple[int, int]]:
    return [(offer.first, offer.last) for offer in offers if offer.passes]


def sent(data: bytes | memoryview) -> list[int]:
    """The first offset of each batch."""
    return [header.base_offset for _, header in headers(memoryview(data))]


def cut(batches: Batches, *spans: tuple[int, int]) -> list[int]:
    return sent(batches.cut([Granted(first, last, 1) for first, last in spans]))


def test_batches_are_offered_whole_as_far_as_they_are_wanted(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        for _ in range(4):
            await append(partition, 10)
        batches = await gathered(partition, (3, 24))
        assert spans_of(batches.offers) == [(3, 9), (10, 19), (20, 24)]
        assert batches.messages == 22
        assert cut(batches, (3, 24)) == [0, 10, 20]

    run(scenario)


def test_reading_ends_with_the_batch_that_is_enough(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        for _ in range(4):
            await append(partition, 10)
        assert spans_of((await gathered(partition, (0, 39), messages=11)).offers) == [(0, 9), (10, 19)]
        assert spans_of((await gathered(partition, (0, 39), messages=10)).offers) == [(0, 9)]
        assert spans_of((await gathered(partition, (0, 39), size=1)).offers) == [(0, 9)]

    run(scenario)


def test_more_than_one_read_is_put_together(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        for _ in range(8):
            await append(partition, 1, size=READ_BYTES // 3)
        batches = await gathered(partition, (0, 7))
        assert spans_of(batches.offers) == [(number, number) for number in range(8)]
        assert cut(batches, (0, 7)) == list(range(8))
        assert cut(batches, (1, 1), (6, 7)) == [1, 6, 7]

    run(scenario)


def test_a_batch_is_sent_once_however_many_of_its_messages_were_granted(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        for _ in range(3):
            await append(partition, 10)
        batches = await gathered(partition, (2, 2), (5, 6), (9, 9), (25, 25))
        assert spans_of(batches.offers) == [(2, 2), (5, 6), (9, 9), (25, 25)]
        assert cut(batches, (2, 2), (5, 6), (9, 9), (25, 25)) == [0, 20]
        assert cut(batches, (5, 5)) == [0]
        assert cut(batches) == []

    run(scenario)


@pytest.mark.parametrize("commit", [True, False])
def test_markers_and_what_was_aborted_are_no_messages(run: Run, commit: bool) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        await append(partition, 2)
        await write(partition, 7)
        await end(partition, 7, commit=commit)
        await append(partition, 2)
        batches = await gathered(partition, (0, 5))
        assert spans_of(batches.offers) == ([(0, 1), (2, 2), (4, 5)] if commit else [(0, 1), (4, 5)])
        assert {offset for offer in batches.offers for offset in range(offer.first, offer.last + 1)} == set(range(6))
        careless = Batches(partition, committed=False)
        await careless.gather([Span(0, 5)], 999, 1 << 20)
        assert spans_of(careless.offers) == [(0, 1), (2, 2), (4, 5)]

    run(scenario)


def test_what_is_read_is_bounded_also_if_no_message_is_in_it(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.broker.batches.GATHER_BYTES_MAX", 1)

    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        for _ in range(3):
            await append(partition, 1, size=READ_BYTES)
        assert spans_of((await gathered(partition, (0, 2))).offers) == [(0, 0)]

    run(scenario)


def test_a_batch_in_which_a_message_asks_for_something_is_looked_into(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        await append(partition, 3, header=("runnel-expires-at", b"5000"))
        await append(partition, 3, header=("trace", b"5000"))
        batches = await gathered(partition, (0, 5))
        assert [(offer.first, offer.last, offer.expires_ms) for offer in batches.offers] == [
            (0, 0, 5000), (1, 1, 5000), (2, 2, 5000), (3, 5, 0)
        ]  # fmt: skip
        assert cut(batches, (1, 1), (4, 4)) == [0, 3]

    run(scenario)


def test_what_was_granted_already_is_read(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        for _ in range(5):
            await append(partition, 4, size=READ_BYTES // 8)
        grants = [Granted(1, 1, 1), Granted(3, 3, 1), Granted(17, 17, 2), Granted(18, 18, 2)]
        batches = Batches(partition, committed=True)
        assert await batches.fetch(grants, 1 << 20) == 4
        assert sent(batches.cut(grants)) == [0, 16]

    run(scenario)


BATCH_BYTES = 1_000  # about


@pytest.mark.parametrize(("room", "batches_sent"), [(10, 1), (1_500, 1), (2_500, 2), (100_000, 6)])
@pytest.mark.parametrize("spans", [[(0, 59)], [(3, 3), (12, 12), (21, 22), (33, 33), (34, 34), (41, 41), (55, 59)]])
def test_no_more_is_sent_than_asked_for_but_one_batch(
    run: Run, room: int, batches_sent: int, spans: list[tuple[int, int]]
) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        for _ in range(6):
            await append(partition, 10, size=BATCH_BYTES // 10 - 8)
        batches = await gathered(partition, *spans, size=room)
        data = batches.cut([Granted(first, last, 1) for first, last in spans_of(batches.offers)])
        assert len(sent(data)) == batches_sent
        assert len(data) <= room or batches_sent == 1
        assert batches.full == (batches_sent < 6 and len(data) < room)
        strict = Batches(partition, committed=True)
        await strict.gather([Span(*span) for span in spans], 1_000, room, one=False)
        assert bool(strict.offers) == (room > BATCH_BYTES)
        grants = [Granted(first, first, 1) for first, _ in spans]
        read = Batches(partition, committed=True)
        count = await read.fetch(grants, room)
        assert sent(read.cut(grants[:count])) == sent(data)[: len(sent(read.cut(grants[:count])))]
        assert len(read.cut(grants[:count])) <= room or count == 1
        assert (count == len(grants)) == (len(grants) == 1 or room > 6 * BATCH_BYTES)

    run(scenario)


def test_what_retention_took_is_not_there(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        for _ in range(3):
            await append(partition, 4)
        await partition.log.advance_start(8)
        batches = await gathered(partition, (0, 3), (6, 11))
        assert batches.offers == []  # the machine sees the new start by itself, and asks again
        assert spans_of((await gathered(partition, (8, 11))).offers) == [(8, 11)]

    run(scenario)


@settings(max_examples=60)
@given(sizes=st.lists(st.integers(1, 6), min_size=1, max_size=12), picks=st.sets(st.integers(0, 71)))
def test_exactly_the_batches_of_what_was_granted_are_cut(sizes: list[int], picks: set[int]) -> None:
    data, bases, end = bytearray(), [], 0
    for count in sizes:
        rows = [records.Record(Offset(number), 1, None, b"x", ()) for number in range(count)]
        batch = bytearray(records.encode(rows))
        batch[:8] = end.to_bytes(8, "big")
        bases.append((end, end + count - 1))
        data += batch
        end += count
    granted = sorted(offset for offset in picks if offset < end)
    batches = Batches(None, committed=True)  # type: ignore[arg-type]
    batches._pieces = [memoryview(data)]
    wanted = [first for first, last in bases if any(first <= offset <= last for offset in granted)]
    assert cut(batches, *((offset, offset) for offset in granted)) == wanted


def test_what_may_be_large_is_looked_through_off_the_loop(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        rows = [records.Record(Offset(number), 1, None, bytes(3_000_000)) for number in range(3)]
        batch = memoryview(bytearray(records.encode(rows, compression=Compression.ZSTD)))
        partition.append(batch, check_produced(batch))
        disk.gate.clear()
        gathering = asyncio.ensure_future(gathered(partition, (0, 9)))
        await asyncio.sleep(0)
        assert not gathering.done()
        disk.gate.set()
        assert spans_of((await gathering).offers) == [(0, 2)]

    run(scenario)
