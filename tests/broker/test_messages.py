"""Queues see messages: whole, committed, each decoded about once, in bounded memory."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.broker.test_fetch import append, end, write

from runnel.broker.messages import Encoded, Messages, size_of
from runnel.model.errors import OffsetOutOfRange
from runnel.record import records
from runnel.record.batch import assemble, check_produced, read_header
from runnel.record.compression import Compression
from runnel.replica.partition import Partition
from runnel.testing.gated_disk import GatedDisk

Run = Callable[[Any], None]


async def append_many(partition: Partition, count: int) -> None:
    rows = [records.Record(n, 1, b"k%d" % n, b"v%d" % n, (("h", b"1"),)) for n in range(count)]
    batch = memoryview(bytearray(records.encode(rows)))
    partition.append(batch, check_produced(batch))


async def append_nonsense(partition: Partition, section: bytes = b"\xff" * 20, *, codec: int = 0) -> None:
    """One batch of three records, as its header says; nobody can read them."""
    header = read_header(records.encode([records.Record(n, 1, None, b"") for n in range(3)]))
    batch = memoryview(bytearray(assemble(header._replace(attributes=codec), section)))
    begun = partition.append(batch, read_header(batch))
    if isinstance(begun, asyncio.Future):
        await begun


def test_a_stretch_holds_the_messages_of_several_batches(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        await append_many(partition, 3)
        await append(partition, b"last")
        stretch = await Messages().read(partition, 1)
        assert (stretch.first, stretch.end) == (0, 4)
        assert [record.value for record in stretch.since(1)] == [b"v1", b"v2", b"last"]
        found = stretch.get(2)
        assert found is not None
        assert (found.offset, found.key, size_of(found)) == (2, b"k2", 6)

    run(scenario)


def test_nothing_below_the_start_comes_out_of_memory(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        await append_many(partition, 3)
        await append(partition, b"last")
        messages = Messages()
        await messages.read(partition, 0)
        await partition.log.advance_start(2)  # in the midst of a batch
        for offset in (0, 1):
            assert messages.cached(partition, offset) is None
            with pytest.raises(OffsetOutOfRange):
                await messages.read(partition, offset)
        kept = messages.cached(partition, 2)
        assert kept is not None
        assert [record.offset for record in kept.since(2)] == [2, 3]

    run(scenario)


def test_markers_and_aborted_messages_are_none(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        await write(partition, 7)  # 0
        await write(partition, 8)  # 1
        await end(partition, 7, commit=False)  # 2
        await end(partition, 8, commit=True)  # 3
        await append(partition, b"plain")  # 4
        stretch = await Messages().read(partition, 0)
        assert [(row.offset, row.value) for row in stretch.records] == [(1, b"8-0"), (4, b"plain")]
        assert (stretch.first, stretch.end) == (0, 5)
        assert [stretch.get(offset) is None for offset in range(6)] == [True, False, True, True, False, True]

    run(scenario)


def test_a_batch_that_cannot_be_read_has_no_messages_and_is_told_of_once(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        await append(partition, b"before")  # 0
        await append_nonsense(partition)  # 1 to 3
        await append_nonsense(partition, codec=Compression.ZSTD)  # 4 to 6
        await append(partition, b"after")  # 7
        for messages in (Messages(), Messages()):
            stretch = await messages.read(partition, 2)
            assert stretch.end == 8
            assert stretch.since(2)[0].value == b"after"
            assert await messages.read(partition, 5) is stretch
        assert [row[2].split(" can't be read")[0] for row in caplog.record_tuples] == [
            "t-0: the batch at offsets 1 to 3", "t-0: the batch at offsets 4 to 6"
        ]  # fmt: skip

    run(scenario)


def test_an_open_transaction_is_not_looked_into(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        await append(partition, b"a")
        await write(partition, 7)
        await append(partition, b"b")
        messages = Messages()
        assert (await messages.read(partition, 0)).end == 1
        beyond = await messages.read(partition, 1)
        assert (beyond.first, beyond.end, list(beyond.records)) == (1, 1, [])
        await end(partition, 7, commit=True)
        assert [row.value for row in (await messages.read(partition, 1)).records] == [b"7-0", b"b"]

    run(scenario)


def test_what_was_decoded_is_decoded_again_only_after_the_log_was_changed(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        await append_many(partition, 3)
        messages = Messages()
        first = await messages.read(partition, 0)
        assert await messages.read(partition, 2) is first
        await append(partition, b"new")
        assert (await messages.read(partition, 3)).first == 3  # beyond what is kept
        assert messages.cached(partition, 0) is first
        await partition.log.advance_start(1)
        generation = partition.log.generation
        again = await messages.read(partition, 1)
        assert (again is first) == (first.generation == generation)

    run(scenario)


def test_what_is_kept_is_bounded_and_the_least_used_goes_first(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        for _ in range(12):
            await append(partition, b"x" * 650)
        messages = Messages(kept_bytes_max=4_000)
        for offset in range(12):
            await messages.read(partition, offset, bytes_max=1)
            assert messages.kept_bytes <= 4_000
            messages.cached(partition, 0)  # in use all the time
        assert messages.cached(partition, 0) is not None
        assert messages.cached(partition, 1) is None
        assert messages.cached(partition, 11) is not None
        messages.forget(partition)
        assert (messages.kept_bytes, messages.cached(partition, 11)) == (0, None)

    run(scenario)


def test_of_more_than_can_be_kept_a_part_is(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        await append_many(partition, 100)
        decoded, decode = [], records.decode

        def counting(batch: memoryview, **_: int) -> list[records.Record]:
            decoded.append(batch)
            return decode(batch)

        monkeypatch.setattr(records, "decode", counting)
        messages = Messages(kept_bytes_max=40_000)
        found = [(await messages.read(partition, offset)).get(offset) for offset in range(100)]
        assert [one.value for one in found if one is not None] == [b"v%d" % n for n in range(100)]
        assert len(decoded) < 5
        assert messages.kept_bytes <= 40_000
        middle = await messages.read(partition, 99)
        messages.forget(partition)
        again = await messages.read(partition, 60)
        assert (again.first, again.end > 61, middle.end) == (60, True, 100)

    run(scenario)


@pytest.mark.parametrize(("count", "size", "codec"), [(2_001, 1, Compression.NONE), (1, 8_000_000, Compression.ZSTD)])
def test_what_may_be_large_is_decoded_off_the_loop(run: Run, count: int, size: int, codec: Compression) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        rows = [records.Record(n, 1, None, bytes(size)) for n in range(count)]
        batch = memoryview(bytearray(records.encode(rows, compression=codec)))
        partition.append(batch, check_produced(batch))
        disk.gate.clear()
        reading = asyncio.ensure_future(Messages().read(partition, 0))
        await asyncio.sleep(0)
        assert not reading.done()
        disk.gate.set()
        assert len((await reading).records) == count

    run(scenario)


def test_what_was_encoded_here_is_not_decoded_again(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        partition = await open_partition()
        await append(partition, b"first")
        rows = [records.Record(n, 5 + n, b"k", b"%d" % n, (("h", b"v"),)) for n in range(3)]
        for at, note in enumerate((False, True)):
            messages = Messages()
            batch = records.encode(rows, producer_id=9, producer_epoch=0, base_sequence=3 * at)
            if note:
                messages.encoded.note(batch, rows)
                monkeypatch.setattr(records, "decode", None)
            view = memoryview(bytearray(batch))
            partition.append(view, check_produced(view))
            read = await messages.read(partition, 1 + 3 * at)
            assert list(read.records) == [row._replace(offset=row.offset + 1 + 3 * at) for row in rows]

    run(scenario)


def test_a_batch_that_the_leader_changed_is_another_one() -> None:
    rows = [records.Record(0, 5, b"k", b"v")]
    sent = records.encode(rows, producer_id=9, producer_epoch=0, base_sequence=0)
    kept = records.encode([rows[0]._replace(timestamp=6)], producer_id=9, producer_epoch=0, base_sequence=0)
    encoded = Encoded()
    encoded.note(sent, rows)
    assert encoded.take(read_header(kept)) is None
    assert encoded.take(read_header(sent)) == rows
    assert encoded.take(read_header(sent)) is None, "it is kept for one reader"


def test_what_was_encoded_and_nobody_reads_is_bounded() -> None:
    encoded = Encoded()
    rows = [records.Record(0, 5, b"k", b"v" * 100_000)]
    for sequence in range(200):
        encoded.note(records.encode(rows, producer_id=9, producer_epoch=0, base_sequence=sequence), rows)
    assert len(encoded) <= 4 * 1024 * 1024 // 100_000
