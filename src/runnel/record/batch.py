"""The envelope of a record batch: 61 bytes of header, then records that the broker does not look into.

Rule 1: base offset and leader epoch lie outside the checksum, so a broker sets them without touching the rest.
Rule 2: what a client sent is a batch only after `check_produced`; what a disk returned, only after `intact`.

     0 base offset i64 |  8 length i32 (of what follows) | 12 leader epoch i32 | 16 magic i8 = 2 | 17 crc32c u32
    21 attributes i16  | 23 last offset delta i32 | 27 base timestamp i64 | 35 max timestamp i64
    43 producer id i64 | 51 producer epoch i16    | 53 base sequence i32  | 57 count i32 | 61 records
"""

from collections.abc import Callable, Iterator
from functools import partial
from struct import Struct
from typing import NamedTuple, Never

from crc32c import crc32c

from runnel.model.errors import CorruptBatch, InvalidRecord, InvalidTimestamp, UnsupportedCompression, UnsupportedFormat
from runnel.model.seams import Buffer
from runnel.record.compression import GROWTH_MAX, Compression

MAGIC = 2
HEADER_BYTES = 61
FRAMING_BYTES = 12  # base offset and length: what the length does not count
CRC_STARTS = 21
MAGIC_AT = 16
RECORD_BYTES_MIN = 7  # its length, attributes, two deltas, and the lengths of key, value and headers

COMPRESSION_MASK = 0x07
APPEND_TIME = 0x08
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40  # the base timestamp is the time when compaction may drop the tombstones
BROKER_ONLY = APPEND_TIME | CONTROL | DELETE_HORIZON  # bits that no client may set

_HEADER = Struct(">qiibIhiqqqhii")
_FRONT = Struct(">qiibI")  # up to the checksum
_CHECKED = Struct(">hiqqqhii")  # the rest of the header, under the checksum
_I64 = Struct(">q")
_I32 = Struct(">i")
_U32 = Struct(">I")
_I16 = Struct(">h")
_PRODUCER = Struct(">qhi")  # id, epoch and sequence
_ATTRIBUTES_AT, _MAX_TIMESTAMP_AT, _LEADER_EPOCH_AT, _CRC_AT, _LAST_DELTA_AT = 21, 35, 12, 17, 23
_PRODUCER_AT = 43

_unpack = _HEADER.unpack_from
_put_i64, _put_i32 = _I64.pack_into, _I32.pack_into
_unpack_framing, _unpack_i32 = Struct(">qi").unpack_from, _I32.unpack_from


class BatchHeader(NamedTuple):
    """The header of one batch; `size` is that of the whole batch."""

    base_offset: int
    size: int
    leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which no header needs

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def compression(self) -> Compression:
        """The codec; InvalidRecord if there is none of this number."""
        try:
            return Compression(self.attributes & COMPRESSION_MASK)
        except ValueError:
            raise InvalidRecord(f"no compression has number {self.attributes & COMPRESSION_MASK}") from None

    @property
    def append_time(self) -> bool:
        """All records have the max timestamp, set by the broker."""
        return self.attributes & APPEND_TIME != 0

    @property
    def transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL != 0

    @property
    def control(self) -> bool:
        return self.attributes & CONTROL != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """When compaction may drop the tombstones of this batch; None if it was not compacted with tombstones yet."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON else None


_new: Callable[[tuple[int, ...]], BatchHeader] = partial(tuple.__new__, BatchHeader)


def read_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header at `position`, unchecked; CorruptBatch if the buffer ends before it does."""
    if len(buffer) - position < HEADER_BYTES:
        raise CorruptBatch(f"a batch header has {HEADER_BYTES} bytes, here are {len(buffer) - position}")
    return _header(buffer, position)


def _header(buffer: Buffer, position: int) -> BatchHeader:
    # Names instead of a slice, and no constructor written in Python: a third of the time, once for each produce.
    base, length, epoch, magic, crc, attributes, delta, begin, newest, pid, pid_epoch, seq, count = _unpack(
        buffer, position
    )
    size = length + FRAMING_BYTES
    return _new((base, size, epoch, magic, crc, attributes, delta, begin, newest, pid, pid_epoch, seq, count))


def intact(buffer: Buffer, header: BatchHeader, position: int = 0) -> bool:
    """Whether the whole batch at `position` is here, is of this format, and has the checksum its header says."""
    end = position + header.size
    if header.magic != MAGIC or header.size < HEADER_BYTES or end > len(buffer):
        return False
    return crc32c(memoryview(buffer)[position + CRC_STARTS : end]) == header.crc


def headers(buffer: Buffer, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
    """Each whole batch and where it begins; ends before a batch that is cut off. Checksums are not looked at."""
    end = len(buffer)
    while end - position >= HEADER_BYTES:
        header = _header(buffer, position)
        if header.size < HEADER_BYTES:
            raise CorruptBatch(f"the batch at byte {position} claims {header.size} bytes, fewer than its header has")
        if header.size > end - position:
            return
        yield position, header
        position += header.size


def next_offset(buffer: Buffer) -> int:
    """The first offset after these whole batches, of which there must be one."""
    end, position, at, base = len(buffer), 0, 0, 0
    while position < end:  # nothing else of the headers is unpacked: there may be thousands
        at = position
        base, length = _unpack_framing(buffer, at)
        position += length + FRAMING_BYTES
    delta: int = _unpack_i32(buffer, at + _LAST_DELTA_AT)[0]
    return base + delta + 1


def first_epoch(buffer: Buffer) -> int:
    """The leader epoch of the first of these whole batches, of which there must be one."""
    epoch: int = _unpack_i32(buffer, _LEADER_EPOCH_AT)[0]
    return epoch


def check_produced(buffer: Buffer) -> BatchHeader:
    """The header of what a client sent for one partition, if it is exactly one whole and valid batch."""
    if len(buffer) < HEADER_BYTES:
        _refuse_short(buffer)
    header = _header(buffer, 0)
    if header.size != len(buffer) or header.magic != MAGIC:
        _refuse_framing(header, len(buffer))
    if crc32c(memoryview(buffer)[CRC_STARTS:]) != header.crc:
        raise CorruptBatch("the checksum of the batch is wrong: it was damaged on its way, send it again")
    if header.attributes & BROKER_ONLY or header.attributes & COMPRESSION_MASK > Compression.ZSTD:
        _refuse_attributes(header)
    if header.last_offset_delta + 1 != header.count or header.count <= 0:
        raise InvalidRecord(
            f"the batch has {header.count} records but a last offset delta of {header.last_offset_delta}"
        )
    if not may_hold(header, (header.size - HEADER_BYTES) * GROWTH_MAX[header.attributes & COMPRESSION_MASK]):
        raise InvalidRecord(f"the batch claims {header.count} records in {header.size - HEADER_BYTES} bytes")
    if header.producer_id >= 0 and (header.base_sequence < 0 or header.producer_epoch < 0):
        raise InvalidRecord(
            f"producer {header.producer_id} sent epoch {header.producer_epoch} and sequence {header.base_sequence}: "
            "an idempotent producer numbers both from 0"
        )
    return header


def may_hold(header: BatchHeader, section_bytes: int) -> bool:
    """Whether so many bytes of records have room for as many as the header claims: its checksum proves no count."""
    return header.count * RECORD_BYTES_MIN <= section_bytes


def _refuse_short(buffer: Buffer) -> Never:
    if not buffer:
        raise InvalidRecord("no record batch was sent: send exactly one for a partition")
    if len(buffer) > MAGIC_AT:
        _refuse_old(buffer[MAGIC_AT])
    raise CorruptBatch(f"a batch has at least {HEADER_BYTES} bytes, {len(buffer)} were sent")


def _refuse_old(magic: int) -> None:
    if magic != MAGIC:
        raise UnsupportedFormat(f"message format {magic} is not supported: send record batches (format {MAGIC})")


def _refuse_framing(header: BatchHeader, size: int) -> Never:
    _refuse_old(header.magic)
    if HEADER_BYTES <= header.size < size:
        raise InvalidRecord(f"{size - header.size} bytes follow the batch: send exactly one batch for a partition")
    raise CorruptBatch(f"the batch claims {header.size} bytes, {size} were sent")


def _refuse_attributes(header: BatchHeader) -> Never:
    if header.attributes & COMPRESSION_MASK > Compression.ZSTD:
        raise UnsupportedCompression(f"no compression has number {header.attributes & COMPRESSION_MASK}")
    if header.attributes & APPEND_TIME:
        raise InvalidTimestamp("the batch says LogAppendTime, which only the broker may set")
    raise InvalidRecord("the batch is marked as a control or compacted batch, which only the broker may write")


def patch(buffer: bytearray | memoryview, base_offset: int, leader_epoch: int) -> None:
    """Give a batch its place in the log, in the buffer it lies in; its checksum stays right."""
    _put_i64(buffer, 0, base_offset)
    _put_i32(buffer, _LEADER_EPOCH_AT, leader_epoch)


def stamp_append_time(buffer: bytearray | memoryview, now_ms: int) -> None:
    """Make `now_ms` the time of every record of the one batch in this buffer (LogAppendTime)."""
    (attributes,) = _I16.unpack_from(buffer, _ATTRIBUTES_AT)
    _I16.pack_into(buffer, _ATTRIBUTES_AT, attributes | APPEND_TIME)
    _put_i64(buffer, _MAX_TIMESTAMP_AT, now_ms)
    _U32.pack_into(buffer, _CRC_AT, crc32c(memoryview(buffer)[CRC_STARTS:]))


def stamp_producer(buffer: bytearray, producer_id: int, epoch: int, sequence: int, *, transactional: bool) -> None:
    """Say who sends the one batch in this buffer, and under which number."""
    (attributes,) = _I16.unpack_from(buffer, _ATTRIBUTES_AT)
    _I16.pack_into(buffer, _ATTRIBUTES_AT, attributes | TRANSACTIONAL * transactional)
    _PRODUCER.pack_into(buffer, _PRODUCER_AT, producer_id, epoch, sequence)
    _U32.pack_into(buffer, _CRC_AT, crc32c(memoryview(buffer)[CRC_STARTS:]))


def assemble(header: BatchHeader, records: Buffer) -> bytes:
    """A whole batch of this header and records section; size and checksum are reckoned, not taken from the header."""
    return b"".join(_parts(header, records))


def assemble_writable(header: BatchHeader, records: Buffer) -> bytearray:
    """The same in a buffer that can be changed: for whoever learns later what else the header is to say."""
    return bytearray().join(_parts(header, records))


def _parts(header: BatchHeader, records: Buffer) -> tuple[bytes, bytes, Buffer]:
    checked = _CHECKED.pack(*header[5:])
    crc = crc32c(records, crc32c(checked))
    length = HEADER_BYTES + len(records) - FRAMING_BYTES
    return _FRONT.pack(header.base_offset, length, header.leader_epoch, MAGIC, crc), checked, records
