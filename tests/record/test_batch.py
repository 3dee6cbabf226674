"""Every row of the table of what a broker checks in a produced batch, and the laws of placing and stamping one."""

from collections.abc import Callable
from struct import pack_into, unpack_from
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.model.errors import (
    CorruptBatch,
    InvalidRecord,
    InvalidTimestamp,
    RunnelError,
    UnsupportedCompression,
    UnsupportedFormat,
)
from runnel.record import batch, records
from runnel.record.batch import BatchHeader
from runnel.record.compression import Compression
from runnel.record.records import Record


def three(**options: Any) -> bytearray:
    return bytearray(records.encode([Record(i, 100 + i, b"k%d" % i, b"v%d" % i) for i in range(3)], **options))


def changed(code: str, position: int, value: int) -> bytearray:
    """A good batch with one number of its header changed, and the checksum made right again."""
    raw = three()
    pack_into(code, raw, position, value)
    return resealed(raw)


def resealed(raw: bytearray) -> bytearray:
    header = batch.read_header(raw)
    return bytearray(batch.assemble(header, bytes(raw[batch.HEADER_BYTES :])))


def test_a_good_batch_is_read_as_it_was_written() -> None:
    header = batch.check_produced(memoryview(three(producer_id=7, producer_epoch=1, base_sequence=4)))
    assert header.size == len(three())
    assert (header.base_offset, header.last_offset, header.count) == (0, 2, 3)
    assert (header.base_timestamp, header.max_timestamp) == (100, 102)
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (7, 1, 4)
    assert header.compression is Compression.NONE
    assert (header.append_time, header.transactional, header.control) == (False, False, False)
    assert header.delete_horizon_ms is None


def longer_length() -> bytearray:
    raw = three()
    pack_into(">i", raw, 8, len(raw))
    return raw


def flipped() -> bytearray:
    raw = three()
    raw[-1] ^= 1
    return raw


ROWS: list[tuple[str, Callable[[], bytearray], type[RunnelError]]] = [
    ("nothing", bytearray, InvalidRecord),
    ("a few bytes", lambda: three()[:10], CorruptBatch),
    ("a cut header", lambda: three()[:60], CorruptBatch),
    ("a cut batch", lambda: three()[:-1], CorruptBatch),
    ("a length beyond the buffer", longer_length, CorruptBatch),
    ("a length below the header", lambda: changed_length(48), CorruptBatch),
    ("a negative length", lambda: changed_length(-1), CorruptBatch),
    ("bytes after the batch", lambda: three() + b"x", InvalidRecord),
    ("two batches", lambda: three() + three(), InvalidRecord),
    ("format 1", lambda: changed_magic(1), UnsupportedFormat),
    ("format 0, shorter than a header", lambda: changed_magic(0)[:40], UnsupportedFormat),
    ("format 3", lambda: changed_magic(3), UnsupportedFormat),
    ("a wrong checksum", flipped, CorruptBatch),
    ("more records than offsets", lambda: changed(">i", 57, 4), InvalidRecord),
    ("no records", lambda: changed(">i", 57, 0), InvalidRecord),
    ("no records and no offsets", lambda: no_records(), InvalidRecord),
    ("a negative count", lambda: changed(">i", 57, -1), InvalidRecord),
    ("more records than there is room for", lambda: claiming(2**31 - 1), InvalidRecord),
    (
        "one record more than there is room for",
        lambda: claiming(len(three()[batch.HEADER_BYTES :]) // 7 + 1),
        InvalidRecord,
    ),
    *(
        (
            f"more records than {codec.name} can have packed",
            lambda codec=codec: claiming(2**31 - 1, codec),
            InvalidRecord,
        )
        for codec in Compression
    ),
    ("a control batch", lambda: changed(">h", 21, batch.CONTROL), InvalidRecord),
    ("a delete horizon", lambda: changed(">h", 21, batch.DELETE_HORIZON), InvalidRecord),
    ("append time", lambda: changed(">h", 21, batch.APPEND_TIME), InvalidTimestamp),
    ("compression 5", lambda: changed(">h", 21, 5), UnsupportedCompression),
    ("compression 7", lambda: changed(">h", 21, 7), UnsupportedCompression),
    ("a producer without sequence", lambda: three(producer_id=1, producer_epoch=0), InvalidRecord),
    ("a producer without epoch", lambda: three(producer_id=1, base_sequence=0), InvalidRecord),
]


def changed_length(length: int) -> bytearray:
    raw = three()
    pack_into(">i", raw, 8, length)
    return raw


def changed_magic(magic: int) -> bytearray:
    raw = three()
    raw[16] = magic
    return raw


def claiming(count: int, codec: Compression = Compression.NONE) -> bytearray:
    """A batch of three records, whose header claims another count."""
    raw = three(compression=codec)
    pack_into(">i", raw, 57, count)
    pack_into(">i", raw, 23, count - 1)
    return resealed(raw)


def no_records() -> bytearray:
    raw = three()
    pack_into(">i", raw, 57, 0)
    pack_into(">i", raw, 23, -1)
    return resealed(raw)


@pytest.mark.parametrize(("make", "error"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_what_is_refused(make: Callable[[], bytearray], error: type[RunnelError]) -> None:
    with pytest.raises(error) as raised:
        batch.check_produced(memoryview(make()))
    assert type(raised.value) is error


@pytest.mark.parametrize("codec", Compression)
def test_as_many_of_the_smallest_records_as_there_is_room_for_are_taken(codec: Compression) -> None:
    raw = records.encode([Record(i, 0, None, None) for i in range(64)], compression=codec)
    assert batch.check_produced(raw).count == 64
    if codec is Compression.NONE:
        assert len(raw) == batch.HEADER_BYTES + 64 * batch.RECORD_BYTES_MIN
    assert len(records.decode(raw)) == 64


def test_a_sequence_without_a_producer_is_no_matter() -> None:
    """aiokafka's plain producer sends producer id -1 with sequence 0."""
    assert batch.check_produced(three(base_sequence=0)).producer_id == -1


def test_every_codec_passes() -> None:
    for codec in Compression:
        assert batch.check_produced(three(compression=codec)).compression is codec


@given(st.binary(max_size=200))
def test_random_bytes_are_refused(raw: bytes) -> None:
    with pytest.raises((CorruptBatch, InvalidRecord, UnsupportedFormat)):
        batch.check_produced(raw)


@given(st.integers(0, len(three()) * 8 - 1))
def test_every_flipped_bit_is_seen_or_is_the_brokers_to_set(bit: int) -> None:
    raw = three()
    raw[bit // 8] ^= 1 << bit % 8
    outside_the_checksum = bit // 8 in (*range(8), *range(12, 16))
    if outside_the_checksum:
        assert batch.check_produced(raw).count == 3
    else:
        with pytest.raises((CorruptBatch, InvalidRecord, UnsupportedFormat)):
            batch.check_produced(raw)


@given(st.integers(0, 2**62), st.integers(-1, 2**31 - 1))
def test_a_place_in_the_log_leaves_the_checksum_right(offset: int, epoch: int) -> None:
    raw = three()
    before = batch.read_header(raw)
    batch.patch(memoryview(raw), offset, epoch)
    after = batch.read_header(raw)
    assert after == before._replace(base_offset=offset, leader_epoch=epoch)
    assert batch.intact(raw, after)


@given(st.integers(0, 2**62))
def test_append_time_is_the_time_of_every_record(now_ms: int) -> None:
    raw = three()
    batch.stamp_append_time(raw, now_ms)
    header = batch.read_header(raw)
    assert header.append_time
    assert batch.intact(raw, header)
    assert [record.timestamp for record in records.decode(raw)] == [now_ms] * 3


def test_batches_in_a_row_are_found_and_a_torn_one_ends_them() -> None:
    first, second = three(), three(compression=Compression.LZ4)
    batch.patch(second, 3, 0)
    row = bytes(first + second)
    found = list(batch.headers(row))
    assert [(position, header.base_offset) for position, header in found] == [(0, 0), (len(first), 3)]
    assert all(batch.intact(row, header, position) for position, header in found)
    for cut in range(len(row)):
        assert len(list(batch.headers(row[:cut]))) == (cut >= len(first))


def test_a_length_below_the_header_is_not_walked_over_for_ever() -> None:
    raw = three()
    pack_into(">i", raw, 8, 0)
    with pytest.raises(CorruptBatch):
        list(batch.headers(raw))
    assert not batch.intact(raw, batch.read_header(raw))


def test_intact_sees_damage_other_formats_and_torn_ends() -> None:
    raw = three()
    assert batch.intact(raw, batch.read_header(raw))
    assert not batch.intact(raw[:-1], batch.read_header(raw))
    assert not batch.intact(flipped(), batch.read_header(raw))
    assert not batch.intact(changed_magic(1), batch.read_header(changed_magic(1)))


def test_a_short_header_is_corrupt() -> None:
    with pytest.raises(CorruptBatch):
        batch.read_header(three(), 20 + len(three()) - batch.HEADER_BYTES)


def test_the_header_is_what_the_format_says() -> None:
    raw = three(base_offset=0, leader_epoch=9, producer_id=5, producer_epoch=6, base_sequence=7)
    header = batch.read_header(raw)
    fields = unpack_from(">qiibIhiqqqhii", raw)
    assert header == BatchHeader(fields[0], fields[1] + 12, *fields[2:])
    assert (header.leader_epoch, header.magic) == (9, 2)


def test_the_offset_after_some_batches() -> None:
    first, second = three(), three()
    batch.patch(first, 10, 1)
    batch.patch(second, 20, 1)  # compaction left a gap
    assert batch.next_offset(first) == 13
    assert batch.next_offset(first + second) == 23


def test_a_batch_is_told_who_sends_it_where_it_lies() -> None:
    """As if it had been encoded so."""
    one = three(compression=Compression.LZ4)
    batch.stamp_producer(one, 7, 3, 11, transactional=True)
    wanted = three(compression=Compression.LZ4, producer_id=7, producer_epoch=3, base_sequence=11, transactional=True)
    assert one == wanted
    assert batch.assemble_writable(batch.read_header(one), one[batch.HEADER_BYTES :]) == one
