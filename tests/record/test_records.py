"""Records: round trips, what other clients write and read, hostile bytes, and looking up by time."""

import warnings
from contextlib import suppress
from typing import Any

import pytest
from aiokafka.record.default_records import DefaultRecordBatch as AioBatch
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.model.errors import InvalidRecord
from runnel.record import batch, records
from runnel.record.batch import BatchHeader
from runnel.record.compression import Compression
from runnel.record.records import Headers, Record

with warnings.catch_warnings():  # kafka-python loads its schemas with a deprecated call
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.codec import has_snappy
    from kafka.record.default_records import DefaultRecordBatch as PyBatch
    from kafka.record.default_records import DefaultRecordBatchBuilder as PyBuilder

BLOB = st.none() | st.binary(max_size=100)
HEADERS = st.lists(st.tuples(st.text(max_size=20), BLOB), max_size=4).map(tuple)


@st.composite
def histories(draw: st.DrawFn, *, gaps: bool = True, past: bool = True) -> list[Record]:
    """Records whose offsets rise, with gaps as compaction leaves them."""
    offset = draw(st.integers(0, 2**40)) if gaps else 0
    out = []
    for _ in range(draw(st.integers(1, 12))):
        timestamp = draw(st.integers(-1 if past else 0, 2**45))
        out.append(Record(offset, timestamp, draw(BLOB), draw(BLOB), draw(HEADERS)))
        offset += draw(st.integers(1, 5000)) if gaps else 1
    return out


@settings(max_examples=80)
@given(histories(), st.sampled_from(Compression), st.integers(0, 3))
def test_what_is_written_is_read(history: list[Record], codec: Compression, lead: int) -> None:
    base = max(0, history[0].offset - lead)
    raw = records.encode(history, base_offset=base, compression=codec, leader_epoch=3)
    header = batch.read_header(raw)
    assert batch.intact(raw, header)
    assert (header.base_offset, header.last_offset, header.count) == (base, history[-1].offset, len(history))
    assert header.max_timestamp == max(record.timestamp for record in history)
    assert records.decode(raw) == history
    assert records.decode(memoryview(raw + b"the next batch")) == history
    assert records.keys(raw) == [record[:3] for record in history]
    _, data, spans = records.spans(raw)
    assert [span.tombstone for span in spans] == [record.value is None for record in history]
    assert b"".join(data[span.start : span.end] for span in spans) == data


@given(st.integers(-(2**63), 2**63 - 1))
def test_a_varint_of_any_64_bits(number: int) -> None:
    raw = records.varint(number)
    assert len(raw) <= records.VARINT_BYTES_MAX
    history = [Record(0, 0, None, None), Record(1, number, None, None)]
    assert records.decode(records.encode(history))[1].timestamp == number


def test_varints_are_zigzag_with_the_lowest_bits_first() -> None:
    shapes = {0: b"\x00", -1: b"\x01", 1: b"\x02", 63: b"\x7e", -64: b"\x7f", 64: b"\x80\x01", 300: b"\xd8\x04"}
    assert {number: records.varint(number) for number in shapes} == shapes
    assert records.varint(2**63 - 1) == b"\xfe" + b"\xff" * 8 + b"\x01"
    assert records.varint(-(2**63)) == b"\xff" * 9 + b"\x01"


def test_every_number_of_the_header_is_the_callers() -> None:
    raw = records.encode(
        [Record(5, 1, b"k", None)], base_offset=5, leader_epoch=2, producer_id=3, producer_epoch=4, base_sequence=6,
        append_time=True, transactional=True, control=True,
    )  # fmt: skip
    header = batch.read_header(raw)
    assert (header.leader_epoch, header.producer_id, header.producer_epoch, header.base_sequence) == (2, 3, 4, 6)
    assert header.append_time
    assert header.transactional
    assert header.control


def test_what_cannot_be_a_batch() -> None:
    with pytest.raises(InvalidRecord):
        records.encode([])
    with pytest.raises(InvalidRecord):
        records.encode([Record(4, 0, None, None)], base_offset=5)
    with pytest.raises(InvalidRecord):
        records.encode([Record(1, 0, None, None), Record(1, 0, None, None)])
    with pytest.raises(InvalidRecord):
        records.encode([Record(0, 2**63, None, None)])
    with pytest.raises(InvalidRecord):
        records.encode([Record(0, 0, None, None), Record(2**31, 0, None, None)])


# --- other clients as peers
def peers(kafka_python: Any, aiokafka: Any) -> list[tuple[Any, Compression]]:
    """Each with the codecs it has: kafka-python needs a library of its own for snappy."""
    both = [(peer, codec) for codec in Compression for peer in (kafka_python, aiokafka)]
    return [
        (peer, codec) for peer, codec in both if peer is aiokafka or codec is not Compression.SNAPPY or has_snappy()
    ]


WRITERS = peers(PyBuilder, AioBuilder)
READERS = peers(PyBatch, AioBatch)


def build(builder: Any, history: list[Record], codec: Compression) -> bytes:
    made = builder(
        magic=2, compression_type=int(codec), is_transactional=0, producer_id=-1, producer_epoch=-1, base_sequence=-1,
        batch_size=1 << 20,
    )  # fmt: skip
    for record in history:
        made.append(record.offset, record.timestamp, record.key, record.value, list(record.headers))
    return bytes(made.build())


def read(reader: Any, raw: bytes) -> list[Record]:
    opened = reader(bytearray(raw))
    assert opened.validate_crc()
    return [Record(r.offset, r.timestamp, r.key, r.value, headers_of(r.headers)) for r in opened]


def headers_of(pairs: Any) -> Headers:
    return tuple((name, None if value is None else bytes(value)) for name, value in pairs)


@settings(max_examples=60)
@given(histories(gaps=False, past=False), st.sampled_from(WRITERS))
def test_batches_of_other_clients_are_read(history: list[Record], writer: tuple[Any, Compression]) -> None:
    builder, codec = writer
    raw = build(builder, history, codec)
    assert batch.check_produced(raw).count == len(history)
    assert records.decode(raw) == history


@settings(max_examples=60)
@given(histories(past=False), st.sampled_from(READERS))
def test_other_clients_read_our_batches(history: list[Record], peer: tuple[Any, Compression]) -> None:
    reader, codec = peer
    raw = records.encode(history, base_offset=history[0].offset, compression=codec)
    assert read(reader, raw) == history


# --- hostile bytes
def section(*raw_records: bytes, count: int | None = None, last_delta: int = 10) -> bytes:
    count = len(raw_records) if count is None else count
    header = BatchHeader(0, 0, 0, 2, 0, 0, last_delta, 0, 0, -1, -1, -1, count)
    return batch.assemble(header, b"".join(raw_records))


def framed(body: bytes) -> bytes:
    return records.varint(len(body)) + body


def timed(base: int, delta: int) -> bytes:
    header = BatchHeader(0, 0, 0, 2, 0, 0, 0, base, 0, -1, -1, -1, 1)
    return batch.assemble(header, framed(b"\x00" + records.varint(delta) + b"\x00\x01\x01\x00"))


GOOD = framed(b"\x00\x00\x00\x01\x01\x00")  # delta 0, no key, no value, no headers
BAD: dict[str, bytes] = {
    "fewer records than the count says": section(GOOD, count=2),
    "more records than the count says": section(GOOD, GOOD, count=1),
    "no records, some bytes": section(b"\x00", count=0),
    "a record length that is too small": section(b"\x0a" + GOOD[1:]),
    "a record length that is too large": section(b"\x0e" + GOOD[1:]),
    "a negative record length": section(b"\x03" + GOOD[1:]),
    "a negative key length": section(framed(b"\x00\x00\x00\x03\x01\x00")),
    "a negative value length": section(framed(b"\x00\x00\x00\x01\x03\x00")),
    "a key that ends in the next record": section(framed(b"\x00\x00\x00\x04ab"), framed(b"\x00\x00\x02\x01\x01\x00")),
    "a key beyond the end": section(framed(b"\x00\x00\x00\x7e\x01\x00")),
    "a value beyond the end": section(framed(b"\x00\x00\x00\x01\x7e\x00")),
    "a negative count of headers": section(framed(b"\x00\x00\x00\x01\x01\x01")),
    "a huge count of headers": section(framed(b"\x00\x00\x00\x01\x01" + records.varint(2**40))),
    "a header without a name": section(framed(b"\x00\x00\x00\x01\x01\x02\x01\x01")),
    "a negative header length": section(framed(b"\x00\x00\x00\x01\x01\x02\x00\x05")),
    "an offset beyond the batch": section(framed(b"\x00\x00\x16\x01\x01\x00")),
    "a negative offset": section(framed(b"\x00\x00\x01\x01\x01\x00")),
    "the same offset twice": section(GOOD, GOOD),
    "a number of 70 bits": section(framed(b"\x00" + b"\xff" * 9 + b"\x7f" + b"\x00\x01\x01\x00")),
    "a time beyond 64 bits": timed(2**63 - 1, 1),
    "a time before 64 bits": timed(-(2**63), -1),
    "an offset beyond 64 bits": batch.assemble(BatchHeader(2**63 - 5, 0, 0, 2, 0, 0, 10, 0, 0, -1, -1, -1, 1), GOOD),
    "more records than there is room for": section(GOOD, count=2**31 - 1, last_delta=2**31 - 2),
    "a number without end": section(framed(b"\x00" + b"\xff" * 40)),
    "an unknown codec": batch.assemble(BatchHeader(0, 0, 0, 2, 0, 5, 0, 0, 0, -1, -1, -1, 1), GOOD),
    "an old format": bytes(16) + b"\x01" + bytes(60),
    "half a header": GOOD,
}


@pytest.mark.parametrize("raw", BAD.values(), ids=BAD.keys())
def test_broken_records_are_refused(raw: bytes) -> None:
    with pytest.raises(InvalidRecord):
        records.decode(raw)


SEEN_BY_KEY = [name for name in BAD if name == "half a header" or not ("header" in name or "value" in name)]


@pytest.mark.parametrize("name", SEEN_BY_KEY)
def test_broken_records_are_refused_when_only_keys_are_read(name: str) -> None:
    with pytest.raises(InvalidRecord):
        records.keys(BAD[name])


def test_the_good_record_of_these_tests_is_good() -> None:
    assert records.decode(section(GOOD)) == [Record(0, 0, None, None)]
    assert records.decode(section(count=0)) == []


def test_times_reach_to_both_ends_of_64_bits() -> None:
    for base, delta in ((0, 2**63 - 1), (-1, -(2**63) + 1), (2**63 - 1, 0)):
        assert records.decode(timed(base, delta)) == [Record(0, base + delta, None, None)]
        header, data, spans = records.spans(timed(base, delta))
        assert records.decode(records.thinned(header, data, spans)) == [Record(0, base + delta, None, None)]


def test_a_header_name_that_is_not_utf8_loses_no_message() -> None:
    raw = section(framed(b"\x00\x00\x00\x01\x01\x02\x02\xff\x02v"))
    assert records.decode(raw) == [Record(0, 0, None, None, (("\ufffd", b"v"),))]


@settings(max_examples=150)
@given(histories(), st.data())
def test_changed_bytes_give_records_or_invalid_record(history: list[Record], data: st.DataObject) -> None:
    raw = bytearray(
        records.encode(history, base_offset=history[0].offset, compression=data.draw(st.sampled_from(Compression)))
    )
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    raw = raw[: data.draw(st.integers(0, len(raw)))] if data.draw(st.booleans()) else raw
    for reader in (records.decode, records.keys, records.offset_of_max_timestamp):
        with suppress(InvalidRecord):
            reader(bytes(raw))


@settings(max_examples=200)
@given(st.binary(max_size=120), st.integers(0, 8))
def test_noise_after_a_header_gives_records_or_invalid_record(noise: bytes, count: int) -> None:
    raw = section(noise, count=count)
    try:
        assert len(records.decode(raw)) == count
    except InvalidRecord:
        return
    assert len(records.keys(raw)) == count


def test_a_bomb_in_a_batch_is_bounded() -> None:
    raw = records.encode([Record(0, 0, None, bytes(1 << 22))], compression=Compression.ZSTD)
    assert len(raw) < 4096
    with pytest.raises(InvalidRecord):
        records.decode(raw, bytes_max=1 << 20)


# --- by time
@given(histories(), st.integers(-2, 2**45))
def test_offsets_by_time(history: list[Record], timestamp: int) -> None:
    raw = records.encode(history, base_offset=history[0].offset)
    expected = next(((r.offset, r.timestamp) for r in history if r.timestamp >= timestamp), None)
    assert records.first_offset_at_or_after(raw, timestamp) == expected
    newest = max(record.timestamp for record in history)
    first = next(record.offset for record in history if record.timestamp == newest)
    assert records.offset_of_max_timestamp(raw) == (first, newest)


def test_offsets_by_append_time_are_the_first_of_the_batch() -> None:
    raw = bytearray(records.encode([Record(i, 50 - i, None, b"v") for i in range(3)]))
    batch.stamp_append_time(raw, 99)
    assert records.first_offset_at_or_after(raw, 99) == (0, 99)
    assert records.first_offset_at_or_after(raw, 100) is None
    assert records.offset_of_max_timestamp(raw) == (0, 99)
    assert records.offset_of_max_timestamp(section(count=0)) is None
