"""Reading a partition message by message: in order, bounded, and never longer than asked."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from tests.broker.test_fetch import append, end, write
from tests.broker.test_messages import append_many, append_nonsense

from runnel.broker import reading
from runnel.broker.fetch import Fetching, Waits
from runnel.broker.messages import Messages
from runnel.broker.reading import PartitionReading
from runnel.cluster.image import Image
from runnel.model.errors import InvalidFilter, OffsetOutOfRange
from runnel.model.ids import Offset
from runnel.model.limits import MIB
from runnel.model.reading import END, START, Reading, ReadPartition
from runnel.record.batch import check_produced
from runnel.record.compression import Compression
from runnel.record.records import Record, encode
from runnel.replica.partition import Partition
from runnel.shell.rng import SystemRng
from runnel.testing.gated_disk import GatedDisk

Run = Callable[[Any], None]


class Reader:
    """The verb over one partition that is led here."""

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.fetching = Fetching(MIB)
        self.waits = Waits()
        self._verb = PartitionReading(
            cast(Any, self), cast(Any, self), lambda: Image("c"), self.fetching.fetch, Messages(), SystemRng()
        )

    def find_by_id(self, *key: object) -> Partition:
        return self.partition

    def serve_waiting(self, *served: object) -> None:
        """Nobody else asks."""

    async def read(self, offset: int = START, **more: Any) -> Reading:
        return await self._verb.read(ReadPartition(*self.partition.key, offset, **more), self.waits)

    async def values(self, offset: int = START, **more: Any) -> list[bytes | None]:
        return [message.value for message in (await self.read(offset, **more)).messages]


def test_messages_are_read_from_an_offset_on_and_where_to_go_on_is_told(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        reader = Reader(await open_partition())
        await append_many(reader.partition, 5)
        first = await reader.read(messages_max=2)
        assert [message.value for message in first.messages] == [b"v0", b"v1"]
        assert (first.next_offset, first.start_offset, first.end_offset) == (2, 0, 5)
        rest = await reader.read(first.next_offset)
        assert [message.value for message in rest.messages] == [b"v2", b"v3", b"v4"]
        assert rest.next_offset == 5
        assert (await reader.read(END)).messages == []
        with pytest.raises(OffsetOutOfRange):
            await reader.read(6)

    run(scenario)


def test_a_batch_that_cannot_be_read_is_passed_over(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        reader = Reader(await open_partition())
        await append_nonsense(reader.partition)  # 0 to 2
        await append(reader.partition, b"after")  # 3
        read = await reader.read()
        assert [message.value for message in read.messages] == [b"after"]
        assert (await reader.read(1)).messages == read.messages
        assert read.next_offset == 4

    run(scenario)


def test_nothing_of_open_or_aborted_transactions_is_read(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        reader = Reader(await open_partition())
        await write(reader.partition, 7)  # 0
        await end(reader.partition, 7, commit=False)  # 1
        await append(reader.partition, b"plain")  # 2
        await write(reader.partition, 8)  # 3
        read = await reader.read()
        assert [message.value for message in read.messages] == [b"plain"]
        assert (read.next_offset, read.end_offset) == (3, 3)

    run(scenario)


def test_bytes_are_bounded_but_one_message_comes(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        reader = Reader(await open_partition())
        for _ in range(5):
            await append(reader.partition, b"x" * 100)
        assert len(await reader.values(bytes_max=350)) == 3
        assert len(await reader.values(bytes_max=1)) == 1

    run(scenario)


def test_messages_of_many_batches_fill_one_answer(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        reader = Reader(await open_partition())
        for n in range(40):
            await append(reader.partition, b"%d" % n + b"." * 10_000)
        assert len(await reader.values(messages_max=40)) == 40

    run(scenario)


def test_a_filter_that_nothing_passes_ends_and_says_where_to_go_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "SCAN_S", 0.0)

    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        reader = Reader(await open_partition())
        for n in range(40):
            await append(reader.partition, b"%d" % n + b"." * 10_000)
        offset, reads = 0, 0
        while offset < 40:
            read = await reader.read(offset, filter="key = 'not there'")
            assert read.messages == []
            assert read.next_offset > offset
            offset, reads = read.next_offset, reads + 1
        assert reads > 1
        with pytest.raises(InvalidFilter):
            await reader.read(filter="key =")

    run(scenario)


def test_who_waits_gets_the_first_message_that_passes(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        reader = Reader(await open_partition())
        waiting = asyncio.ensure_future(reader.values(wait_ms=30_000, filter="value = 'b'"))
        for text in (b"a", b"a", b"b"):
            await asyncio.sleep(0.01)
            assert not waiting.done()
            await append(reader.partition, text)
        assert await waiting == [b"b"]

    run(scenario)


@pytest.mark.parametrize("how", ["client", "broker"])
def test_a_wait_ends_with_the_client_and_with_the_broker(run: Run, how: str) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        reader = Reader(await open_partition())
        waiting = asyncio.ensure_future(reader.read(wait_ms=60_000))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        if how == "client":
            reader.waits.end()
        else:
            reader.fetching.close()
        assert (await asyncio.wait_for(waiting, 30)).messages == []

    run(scenario)


def test_a_value_above_what_was_asked_for_is_told_by_its_size(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        reader = Reader(await open_partition())
        await append(reader.partition, b"x" * 5_000)
        await append(reader.partition, b"small")
        [large, small] = (await reader.read(bytes_max=1_000, whole=False)).messages
        assert (large.value, large.left_out_bytes) == (None, 5_000)
        assert (small.value, small.left_out_bytes) == (b"small", 0)
        [whole] = (await reader.read(bytes_max=1_000)).messages
        assert (len(whole.value or b""), whole.left_out_bytes) == (5_000, 0)

    run(scenario)


def test_a_batch_that_becomes_too_large_when_it_is_decompressed_holds_no_messages(run: Run) -> None:
    async def scenario(open_partition: Any, disk: GatedDisk) -> None:
        reader = Reader(await open_partition())
        for value in (bytes(17 * MIB), bytes(MIB)):
            record = Record(Offset(0), 1, None, value, ())
            batch = memoryview(bytearray(encode([record], compression=Compression.ZSTD)))
            begun = reader.partition.append(batch, check_produced(batch))
            if isinstance(begun, asyncio.Future):
                await begun
        assert [len(value or b"") for value in await reader.values()] == [MIB]

    run(scenario)
