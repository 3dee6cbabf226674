"""Batches in the codec of their topic: which are compressed anew, what stays, what is refused, and in which order."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest
from tests.broker.conftest import OpenPartition, Scenario

from runnel.broker import produce
from runnel.broker.once_line import Line
from runnel.broker.once_names import Share
from runnel.broker.produce import Append, Produced, Producing
from runnel.broker.recompression import AT_ONCE, CODECS, Recompression, target_of
from runnel.broker.sifting import Sifting
from runnel.model.errors import BatchTooLarge, InvalidRecord, OutOfOrderSequence, RunnelError
from runnel.model.limits import KIB
from runnel.model.once import OnceMessage
from runnel.model.topic_config import TimestampType, TopicConfig
from runnel.record import records
from runnel.record.batch import BatchHeader, assemble, headers, intact, read_header
from runnel.record.compression import Compression, compress
from runnel.record.records import Record
from runnel.replica.partition import UNPACKED_FACTOR, Partition
from runnel.shell.clock import SystemClock
from runnel.shell.rng import SystemRng
from runnel.testing.gated_disk import GatedDisk

Run = Callable[[Scenario], None]
CLOCK = SystemClock()
CODEC_NAMES = sorted(CODECS)
NOISE = SystemRng().token


class Door:
    """Producing with nothing but the recompression behind it."""

    def __init__(self) -> None:
        self.producing = Producing(
            CLOCK, sifting=Sifting(cast(Any, None), cast(Any, None), Recompression(), CLOCK, SystemRng())
        )

    async def send(self, partition: Partition, batch: bytes) -> Produced | RunnelError:
        appends = [Append(partition, memoryview(bytearray(batch)))]
        [result] = await self.producing.produce(appends, -1, 5_000, lambda: None)
        return result


def rows(count: int = 20, value: bytes = b"v" * 50) -> list[Record]:
    now = CLOCK.wall_ms()
    return [
        Record(n, now + n, b"k%d" % n, value, (("a", b"1"), ("trace", None), ("a", b"%d" % n))) for n in range(count)
    ]


async def stored(partition: Partition) -> list[tuple[BatchHeader, bytes]]:
    data = memoryview(await partition.log.read(0, 1 << 26, partition.log.end_offset))
    return [(header, bytes(data[at : at + header.size])) for at, header in headers(data)]


@pytest.mark.parametrize("name", CODEC_NAMES)
@pytest.mark.parametrize("sent", Compression)
def test_what_is_stored_has_the_topics_codec_and_the_same_records(run: Run, name: str, sent: Compression) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition, door = await open_partition(compression_type=name), Door()
        given = rows()
        batch = records.encode(given, compression=sent, producer_id=7, producer_epoch=3, base_sequence=0)
        assert isinstance(await door.send(partition, batch), Produced)
        [(header, raw)] = await stored(partition)
        assert header.compression is CODECS[name]
        assert intact(raw, header)
        assert records.decode(raw) == given
        was = read_header(batch)
        kept = {"last_offset_delta", "base_timestamp", "max_timestamp", "producer_id", "producer_epoch", "count"}
        assert all(getattr(header, field) == getattr(was, field) for field in {*kept, "base_sequence"})
        if sent is CODECS[name]:
            assert header.crc == was.crc  # it was not touched
            assert disk.waiting == 0

    run(scenario)


def test_producer_is_the_default_and_touches_nothing(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition, door = await open_partition(), Door()
        assert target_of(partition.config) is None
        assert not partition.looks_inside  # the one question that is asked of every batch
        for codec in Compression:
            batch = records.encode(rows(), compression=codec)
            assert isinstance(await door.send(partition, batch), Produced)
        assert [header.compression for header, _ in await stored(partition)] == list(Compression)

    run(scenario)


def test_a_batch_that_came_before_is_known_though_it_was_compressed_anew(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition, door = await open_partition(compression_type="zstd"), Door()

        def numbered(sequence: int) -> bytes:
            return records.encode(rows(3), producer_id=7, producer_epoch=0, base_sequence=sequence)

        first = await door.send(partition, numbered(0))
        assert await door.send(partition, numbered(0)) == first
        assert isinstance(await door.send(partition, numbered(9)), OutOfOrderSequence)
        assert isinstance(await door.send(partition, numbered(3)), Produced)
        assert [header.base_sequence for header, _ in await stored(partition)] == [0, 3]

    run(scenario)


def test_times_that_the_broker_sets_stay_right(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        settings = {"compression_type": "gzip", "message_timestamp_type": TimestampType.APPEND}
        partition, door = await open_partition(**settings), Door()
        sent = await door.send(partition, records.encode(rows()))
        assert isinstance(sent, Produced)
        [(header, raw)] = await stored(partition)
        assert intact(raw, header)
        assert {record.timestamp for record in records.decode(raw)} == {sent.append_time_ms}

    run(scenario)


def test_a_batch_that_is_too_large_when_it_is_compressed_anew_is_refused(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition, door = await open_partition(compression_type="uncompressed", max_message_bytes=16 * KIB), Door()
        batch = records.encode(rows(100, bytes(KIB)), compression=Compression.ZSTD)
        assert len(batch) < 16 * KIB
        refused = await door.send(partition, batch)
        assert isinstance(refused, BatchTooLarge)
        assert "above max.message.bytes, 16384" in str(refused)
        assert await stored(partition) == []

    run(scenario)


@pytest.mark.parametrize("codec", [Compression.GZIP, Compression.LZ4, Compression.ZSTD])
def test_a_bomb_is_refused_before_it_has_gone_off(run: Run, codec: Compression) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        limit = 64 * KIB
        partition, door = await open_partition(compression_type="snappy", max_message_bytes=limit), Door()
        bomb = records.encode(rows(1, bytes(UNPACKED_FACTOR * limit)), compression=codec)
        assert len(bomb) < limit
        refused = await door.send(partition, bomb)
        assert isinstance(refused, InvalidRecord)
        assert "larger than 1048576 bytes when decompressed" in str(refused)
        torn = bytearray(records.encode(rows()))
        torn[22] = codec  # its records are no such thing
        recounted = bytes(assemble(read_header(torn), torn[61:]))
        assert isinstance(await door.send(partition, recounted), InvalidRecord)
        assert isinstance(await door.send(partition, records.encode(rows(), compression=codec)), Produced)

    run(scenario)


def test_a_few_batches_at_a_time_are_compressed_off_the_loop_and_the_next_request_waits(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition, door = await open_partition(compression_type="lz4"), Door()
        passed: list[int] = []

        async def send(number: int) -> Produced | RunnelError:
            appends = [Append(partition, memoryview(bytearray(records.encode(rows(1, b"%d" % number)))))]
            [result] = await door.producing.produce(appends, 1, 5_000, lambda: passed.append(number))
            return result

        disk.gate.clear()
        sending = [asyncio.ensure_future(send(number)) for number in range(3 * AT_ONCE)]
        while disk.waiting < AT_ONCE:
            await asyncio.sleep(0)
        for _ in range(100):
            await asyncio.sleep(0)
        assert disk.waiting == AT_ONCE
        assert passed == []  # the connection's next request is held until this one has its place
        disk.gate.set()
        assert all(isinstance(result, Produced) for result in await asyncio.gather(*sending))
        assert sorted(passed) == [*range(3 * AT_ONCE)]

    run(scenario)


def test_what_the_broker_appends_itself_has_the_topics_codec_too(run: Run) -> None:
    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        partition = await open_partition(compression_type="zstd", max_message_bytes=4 * KIB)
        line = Line(partition, CLOCK, lambda: Share(1_000, 0), Recompression())

        def message(name: str, value: bytes) -> OnceMessage:
            return OnceMessage(name, key=b"k", value=value, headers=[], timestamp_ms=CLOCK.wall_ms(), floor=0)

        placed = await asyncio.gather(*(line.add(message(f"m{n}", b"v" * 500)) for n in range(5)))
        assert [place.offset for place in placed] == [*range(5)]
        again = await asyncio.gather(*(line.add(message(f"m{n}", b"v" * 500)) for n in range(5)))
        assert [place.offset for place in again] == [*range(5)]
        noise = NOISE(4 * KIB)
        [last] = await asyncio.gather(line.add(message("noise", noise)))  # it grows, and is kept all the same
        found = await stored(partition)
        assert [header.compression for header, _ in found] == [Compression.ZSTD, Compression.NONE]
        assert records.decode(found[1][1])[0].value == noise
        assert last.offset == 5

    run(scenario)


def test_what_one_request_becomes_is_bounded(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce, "SIFTED_BYTES_MAX", 64 * KIB)

    async def scenario(open_partition: OpenPartition, disk: GatedDisk) -> None:
        opened = [await open_partition(n, compression_type="uncompressed") for n in range(4)]
        batch = records.encode(rows(30, bytes(KIB)), compression=Compression.ZSTD)
        appends = [Append(partition, memoryview(bytearray(batch))) for partition in opened]
        results = await Door().producing.produce(appends, 1, 5_000, lambda: None)
        assert [type(result) for result in results] == [Produced, Produced, BatchTooLarge, BatchTooLarge]
        assert "send fewer" in str(results[3])

    run(scenario)


@pytest.mark.parametrize(
    ("name", "weak", "strong"),
    [("gzip", "1", "9"), ("lz4", "9", "16"), ("zstd", "-5", "19")],  # 9 is lz4's fast one
)
def test_levels_say_how_hard(name: str, weak: str, strong: str) -> None:
    section = b"".join(b"%d is not %d times %d; " % (n, n % 7, n * n) for n in range(20_000))
    sizes = []
    for level in (weak, strong):
        config = TopicConfig().with_overrides({"compression.type": name, f"compression.{name}.level": level})
        target = target_of(config)
        assert target is not None
        sizes.append(len(compress(target.codec, section, target.level)))
    assert sizes[0] > sizes[1]
