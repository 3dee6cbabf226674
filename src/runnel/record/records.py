"""Records inside a batch: what doors, queues, compaction and tools read; the Kafka path never looks inside.

Rule 1: whatever the bytes are, reading returns records or raises InvalidRecord. Checksums are the caller's business.
Rule 2: what is read fits into a header again: offsets and timestamps have 64 bits.
Rule 3: within a batch, offsets rise, and none lies beyond the batch's last; gaps are what compaction left.

    record: length | attributes i8 | timestamp delta | offset delta | key | value | header count | headers
    key, value, header value: length (-1: null), bytes.  header key: length, UTF-8.  Numbers are zigzag varints.
"""

from collections.abc import Callable, Sequence
from functools import partial
from struct import error as StructError
from typing import Any, NamedTuple, TypeAlias

from runnel.model.errors import InvalidRecord
from runnel.model.limits import FRAME_BYTES_MAX
from runnel.model.seams import Buffer
from runnel.record.batch import (
    APPEND_TIME,
    COMPRESSION_MASK,
    CONTROL,
    HEADER_BYTES,
    MAGIC,
    TRANSACTIONAL,
    BatchHeader,
    assemble,
    assemble_writable,
    may_hold,
    read_header,
)
from runnel.record.compression import Compression, compress, decompress

COUNTED_BYTES = 32  # of a record at least, in what a batch may become: an object of Python takes more
RECORDS_BYTES_MAX = FRAME_BYTES_MAX  # a client could have sent as much uncompressed
I64_MIN, I64_MAX = -(1 << 63), (1 << 63) - 1
VARINT_BYTES_MAX = 10  # 64 bits, 7 in each

Headers: TypeAlias = tuple[tuple[str, bytes | None], ...]


class Record(NamedTuple):
    """One message. The timestamp is in milliseconds since 1970, -1 if it has none."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


class Span(NamedTuple):
    """Where one record lies in its decompressed section, with what is asked about most."""

    offset: int
    timestamp: int
    key: bytes | None
    tombstone: bool  # the value is null
    start: int  # of the record, at its length
    key_start: int  # behind the deltas, at the key's length
    end: int


# The constructor of a named tuple written in Python costs as much as reading a record: this one is C throughout.
record_of: Callable[[tuple[int, int, bytes | None, bytes | None, Headers]], Record] = partial(tuple.__new__, Record)
_span: Callable[[tuple[int, int, bytes | None, bool, int, int, int]], Span] = partial(tuple.__new__, Span)


# --- varints
def varint(number: int) -> bytes:
    """A signed 64-bit number: zigzag, seven bits a byte, the lowest first."""
    rest = (number << 1) ^ (number >> 63)
    out = bytearray()
    while rest > 0x7F:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


_VARINT = tuple(varint(number) for number in range(4096))  # almost every length, count and delta
_VARINTS = len(_VARINT)
# What a first byte means alone; None: more bytes follow.
_NUMBER: tuple[int | None, ...] = tuple((byte >> 1) ^ -(byte & 1) for byte in range(128)) + (None,) * 128


def _long_varint(data: bytes, position: int) -> tuple[int, int]:
    """The number whose first byte stands before `position` and said that more follow, and where it ends."""
    byte = data[position]
    raw = data[position - 1] - 0x80 | (byte & 0x7F) << 7
    if byte < 0x80:  # two bytes: the length of most records and values
        return (raw >> 1) ^ -(raw & 1), position + 1
    shift = 14
    for place in range(position + 1, position + VARINT_BYTES_MAX - 1):
        byte = data[place]
        raw |= (byte & 0x7F) << shift
        if byte < 0x80 and raw < 1 << 64:
            return (raw >> 1) ^ -(raw & 1), place + 1
        shift += 7
    raise InvalidRecord("a number in a record is longer than 64 bits")


# --- reading
def open_batch(batch: Buffer, *, bytes_max: int = RECORDS_BYTES_MAX) -> tuple[BatchHeader, bytes]:
    """The header of the batch at the start of the buffer, and its records section, decompressed."""
    if len(batch) < HEADER_BYTES:
        raise InvalidRecord(f"a batch has at least {HEADER_BYTES} bytes, here are {len(batch)}")
    header = read_header(batch)
    if header.magic != MAGIC or not HEADER_BYTES <= header.size <= len(batch):
        raise InvalidRecord(f"not a whole batch: magic {header.magic}, {header.size} bytes long, {len(batch)} are here")
    if header.count * COUNTED_BYTES > bytes_max:
        raise InvalidRecord(f"a batch of {header.count} records: send smaller batches")
    packed = memoryview(batch)[HEADER_BYTES : header.size]
    section = decompress(header.compression, packed, bytes_max=bytes_max)
    if not may_hold(header, len(section)):
        raise InvalidRecord(f"the batch claims {header.count} records in {len(section)} bytes")
    return header, section


def decode(batch: Buffer, *, bytes_max: int = RECORDS_BYTES_MAX) -> list[Record]:
    """The records of one batch. Header names that are not UTF-8 get replacement characters, as in Kafka's client."""
    return _walk(_decode, *open_batch(batch, bytes_max=bytes_max))


def decode_section(header: BatchHeader, section: bytes) -> list[Record]:
    """The records of a batch that was opened."""
    return _walk(_decode, header, section)


def spans(batch: Buffer, *, bytes_max: int = RECORDS_BYTES_MAX) -> tuple[BatchHeader, bytes, list[Span]]:
    """Header, decompressed section, and the place of each record in it: cheaper than `decode` by half."""
    header, data = open_batch(batch, bytes_max=bytes_max)
    return header, data, _walk(_spans, header, data)


def keys(batch: Buffer, *, bytes_max: int = RECORDS_BYTES_MAX) -> list[tuple[int, int, bytes | None]]:
    """(offset, timestamp, key) of each record."""
    return [span[:3] for span in spans(batch, bytes_max=bytes_max)[2]]


def first_offset_at_or_after(batch: Buffer, timestamp: int) -> tuple[int, int] | None:
    """(offset, timestamp) of the first record that is not older than `timestamp`; None if all are."""
    return next(((span.offset, span.timestamp) for span in spans(batch)[2] if span.timestamp >= timestamp), None)


def offset_of_max_timestamp(batch: Buffer) -> tuple[int, int] | None:
    """(offset, timestamp) of the first of the newest records; None if the batch is empty."""
    newest = max(spans(batch)[2], key=lambda span: span.timestamp, default=None)
    return None if newest is None else (newest.offset, newest.timestamp)


def _walk(reader: Callable[[BatchHeader, bytes], list[Any]], header: BatchHeader, data: bytes) -> list[Any]:
    if header.last_offset > I64_MAX:
        raise InvalidRecord(f"offset {header.last_offset} does not fit into 64 bits")
    try:
        return reader(header, data)
    except IndexError:
        raise InvalidRecord(f"the records end before the last of {header.count}") from None


# The two loops below are written out: a call for each number would double their time. A length that is too large moves
# `at` beyond the data, where reading on raises IndexError, and where the last check fails if nothing is left to read.
def _decode(header: BatchHeader, data: bytes) -> list[Record]:
    number, long_varint, record = _NUMBER, _long_varint, record_of
    base_offset, last_delta, previous = header.base_offset, header.last_offset_delta, -1
    time_min, time_max = I64_MIN, I64_MAX
    base_time, append_time = (header.max_timestamp, True) if header.append_time else (header.base_timestamp, False)
    out = []
    at = 0
    for _ in range(header.count):
        size = number[data[at]]
        at += 1
        if size is None:
            size, at = long_varint(data, at)
        end = at + size
        at += 1  # attributes: no bit is in use
        age = number[data[at]]
        at += 1
        if age is None:
            age, at = long_varint(data, at)
        delta = number[data[at]]
        at += 1
        if delta is None:
            delta, at = long_varint(data, at)
        if not previous < delta <= last_delta:
            raise _bad_delta(delta, previous, last_delta)
        previous = delta
        size = number[data[at]]
        at += 1
        if size is None:
            size, at = long_varint(data, at)
        key = None
        if size >= 0:
            key = data[at : at + size]
            at += size
        elif size != -1:
            raise _bad_length("key", size)
        size = number[data[at]]
        at += 1
        if size is None:
            size, at = long_varint(data, at)
        value = None
        if size >= 0:
            value = data[at : at + size]
            at += size
        elif size != -1:
            raise _bad_length("value", size)
        size = number[data[at]]
        at += 1
        headers: Headers = ()
        if size != 0:
            headers, at = _read_headers(data, at, size)
        if at != end:
            raise InvalidRecord(f"the record with offset delta {delta} does not end where its length says")
        when = base_time if append_time else base_time + age
        if not time_min <= when <= time_max:
            raise _bad_time(base_time, age)
        out.append(record((base_offset + delta, when, key, value, headers)))
    if at != len(data):
        raise _bad_end(header.count)
    return out


def _spans(header: BatchHeader, data: bytes) -> list[Span]:
    number, long_varint, span = _NUMBER, _long_varint, _span
    base_offset, last_delta, previous = header.base_offset, header.last_offset_delta, -1
    time_min, time_max = I64_MIN, I64_MAX
    base_time, append_time = (header.max_timestamp, True) if header.append_time else (header.base_timestamp, False)
    out = []
    end = 0
    for _ in range(header.count):
        start = end
        size = number[data[start]]
        at = start + 1
        if size is None:
            size, at = long_varint(data, at)
        end = at + size
        at += 1
        age = number[data[at]]
        at += 1
        if age is None:
            age, at = long_varint(data, at)
        delta = number[data[at]]
        at += 1
        if delta is None:
            delta, at = long_varint(data, at)
        if not previous < delta <= last_delta:
            raise _bad_delta(delta, previous, last_delta)
        previous = delta
        key_start = at
        size = number[data[at]]
        at += 1
        if size is None:
            size, at = long_varint(data, at)
        key = None
        if size >= 0:
            key = data[at : at + size]
            at += size
        elif size != -1:
            raise _bad_length("key", size)
        tombstone = data[at] == 1  # -1 in zigzag
        if at >= end:
            raise InvalidRecord(f"the record with offset delta {delta} does not end where its length says")
        when = base_time if append_time else base_time + age
        if not time_min <= when <= time_max:
            raise _bad_time(base_time, age)
        out.append(span((base_offset + delta, when, key, tombstone, start, key_start, end)))
    if end != len(data):
        raise _bad_end(header.count)
    return out


def _read_headers(data: bytes, at: int, count: int | None) -> tuple[Headers, int]:
    if count is None:
        count, at = _long_varint(data, at)
    if count < 0:
        raise _bad_length("list of headers", count)
    out: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, at = _read_bytes(data, at)
        if name is None:
            raise _bad_length("header name", -1)
        value, at = _read_bytes(data, at)
        out.append((str(name, "utf-8", "replace"), value))
    return tuple(out), at


def _read_bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    size = _NUMBER[data[at]]
    at += 1
    if size is None:
        size, at = _long_varint(data, at)
    if size >= 0:
        return data[at : at + size], at + size
    if size != -1:
        raise _bad_length("header", size)
    return None, at


def _bad_delta(delta: int, previous: int, last_delta: int) -> InvalidRecord:
    return InvalidRecord(f"offset delta {delta} follows {previous} in a batch whose last is {last_delta}")


def _bad_time(base_time: int, age: int) -> InvalidRecord:
    return InvalidRecord(f"timestamp delta {age} from {base_time} on does not fit into 64 bits")


def _bad_length(what: str, size: int) -> InvalidRecord:
    return InvalidRecord(f"the {what} of a record has length {size}")


def _bad_end(count: int) -> InvalidRecord:
    return InvalidRecord(f"the records section does not end with record {count}, its last")


# --- writing
def encode(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    compression: Compression = Compression.NONE,
    leader_epoch: int = -1,
    producer_id: int = -1,
    producer_epoch: int = -1,
    base_sequence: int = -1,
    append_time: bool = False,
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """One batch of these records; their offsets must rise from `base_offset` on."""
    if not records:
        raise InvalidRecord("a batch needs records")
    base_time = records[0].timestamp
    flags = APPEND_TIME * append_time | TRANSACTIONAL * transactional | CONTROL * control
    section = b"".join(_encode(records, base_offset, base_time))
    header = BatchHeader(
        base_offset=base_offset,
        size=0,
        leader_epoch=leader_epoch,
        magic=MAGIC,
        crc=0,
        attributes=compression | flags,
        last_offset_delta=records[-1].offset - base_offset,
        base_timestamp=base_time,
        max_timestamp=max(record.timestamp for record in records),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        count=len(records),
    )
    try:
        return assemble(header, section if compression is Compression.NONE else compress(compression, section))
    except StructError as problem:
        raise InvalidRecord(f"a number does not fit into a batch header: {problem}") from None


def thinned(header: BatchHeader, section: bytes, kept: Sequence[Span]) -> bytes:
    """A batch with some of its records (one at least), at the same offsets; it ends where it ended."""
    left = b"".join([section[span.start : span.end] for span in kept])
    header = header._replace(max_timestamp=max(span.timestamp for span in kept), count=len(kept))
    return assemble(header, compress(header.compression, left))


def recompressed(batch: Buffer, codec: Compression, level: int | None, *, bytes_max: int) -> bytearray:
    """The same records in another codec, in a buffer that can be changed; InvalidRecord if they are too large."""
    header, section = open_batch(batch, bytes_max=bytes_max)
    attributes = header.attributes & ~COMPRESSION_MASK | codec
    return assemble_writable(header._replace(attributes=attributes), compress(codec, section, level))


def emptied(header: BatchHeader) -> bytes:
    """A batch without records: no codec, as readers would try to decompress nothing, and no time to be found by."""
    attributes = header.attributes & ~COMPRESSION_MASK
    return assemble(header._replace(attributes=attributes, max_timestamp=-1, count=0), b"")


def _encode(records: Sequence[Record], base_offset: int, base_time: int) -> list[bytes]:
    small, bound, long = _VARINT, _VARINTS, varint
    out: list[bytes] = []
    previous = -1
    for offset, timestamp, key, value, headers in records:
        age = timestamp - base_time
        delta = offset - base_offset
        if delta <= previous:
            raise InvalidRecord(f"offset {offset} does not follow {base_offset + previous} in a batch")
        previous = delta
        parts = [b"\x00", small[age] if 0 <= age < bound else long(age), small[delta] if delta < bound else long(delta)]
        if key is None:
            parts.append(b"\x01")
        else:
            size = len(key)
            parts += (small[size] if size < bound else long(size), key)
        if value is None:
            parts.append(b"\x01")
        else:
            size = len(value)
            parts += (small[size] if size < bound else long(size), value)
        if headers:
            _put_headers(parts, headers)
        else:
            parts.append(b"\x00")
        body = b"".join(parts)
        size = len(body)
        out += (small[size] if size < bound else long(size), body)
    return out


def _put_headers(parts: list[bytes], headers: Headers) -> None:
    small, bound = _VARINT, _VARINTS
    count = len(headers)
    parts.append(small[count] if count < bound else varint(count))
    for name, value in headers:
        raw = name.encode()
        size = len(raw)
        parts += (small[size] if size < bound else varint(size), raw)
        if value is None:
            parts.append(b"\x01")
        else:
            size = len(value)
            parts += (small[size] if size < bound else varint(size), value)
