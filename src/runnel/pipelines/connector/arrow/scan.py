"""Where the fields of records lie: many record batches at once.

Rule 1: the one step taken for each record finds where the next begins; the rest is arithmetic on whole columns.
Rule 2: whatever the bytes are, scanning returns places inside of them or raises InvalidRecord.
Rule 3: records come in the order of their offsets, within a batch and from batch to batch.

See `record.records` for the layout of a record.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from runnel.model.errors import InvalidRecord
from runnel.model.seams import Buffer
from runnel.record.batch import BatchHeader

Numbers: TypeAlias = NDArray[np.int64]
Bytes: TypeAlias = NDArray[np.uint8]

VARINT_BITS_MAX = 63  # of ten bytes, the last holds one bit


class Section(NamedTuple):
    """The records of one batch, decompressed: where they lie in a buffer, beside those of other batches perhaps."""

    header: BatchHeader
    buffer: Buffer
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start


class Span(NamedTuple):
    """Where a column of byte strings lies in the data: at `at`, `size` long; -1 is null."""

    at: Numbers
    size: Numbers

    def ends(self) -> Numbers:
        return self.at + np.maximum(self.size, 0)


@dataclass(frozen=True, slots=True)
class Scan:
    """Records in a row, each column one array: what the offsets and times are, and where the rest lies in `data`."""

    data: Buffer
    raw: Bytes  # the same
    offsets: Numbers
    timestamps_ms: Numbers
    append_time: NDArray[np.bool_]
    sizes: Numbers  # of the whole record
    key_at: Numbers  # at its length
    ends: Numbers

    def __len__(self) -> int:
        return len(self.offsets)

    def part(self, low: int, high: int) -> "Scan":
        """Some of the records, by their numbers."""
        return self._picked(slice(low, high))

    def _picked(self, some: "slice | NDArray[np.bool_]") -> "Scan":
        return Scan(
            self.data, self.raw, self.offsets[some], self.timestamps_ms[some], self.append_time[some],
            self.sizes[some], self.key_at[some], self.ends[some],
        )  # fmt: skip

    def between(self, first: int, end: int) -> "Scan":
        """The records whose offsets lie in [first, end)."""
        low, high = np.searchsorted(self.offsets, [first, end]).tolist()
        return self if high - low == len(self) else self.part(low, high)

    def only(self, wanted: Sequence[tuple[int, int]]) -> "Scan":
        """The records whose offsets lie in these stretches, from the first to the last of each; the stretches rise."""
        edges = np.array([(-1, -1), *wanted], np.int64)  # before all of them, one that no offset lies in
        last_begun = np.searchsorted(edges[:, 0], self.offsets, "right") - 1
        inside = self.offsets <= edges[last_begun, 1]
        return self if inside.all() else self._picked(inside)

    def keys(self) -> Span:
        return self._span(self.key_at, "key")

    def values(self, keys: Span) -> Span:
        return self._span(keys.ends(), "value")

    def _span(self, at: Numbers, what: str) -> Span:
        size, at = varints(self.raw, at)
        span = Span(at, size)
        if (size < -1).any() or (span.ends() > self.ends).any():
            raise InvalidRecord(f"the {what} of a record does not end within it")
        return span

    def header_counts(self, values: Span) -> tuple[Numbers, Numbers]:
        """How many headers each record has, and where the first begins."""
        count, at = varints(self.raw, values.ends())
        bare = count == 0
        if (count < 0).any() or (at > self.ends).any() or (at[bare] != self.ends[bare]).any():
            raise InvalidRecord("a record does not end where its length says")
        return count, at


def scan(sections: Sequence[Section]) -> Scan:
    """The records of these batches, which follow each other in one partition."""
    sections = _together(sections)
    data = sections[0].buffer
    raw = np.frombuffer(data, np.uint8)
    counts = [section.header.count for section in sections]
    starts = np.array(_starts(data, sections), np.int64)
    size, body = varints(raw, starts)
    ages, at = varints(raw, body + 1)  # behind the attributes, of which no bit is in use
    deltas, key_at = varints(raw, at)
    ends = body + size
    if (size < 0).any() or (key_at >= ends).any():
        raise InvalidRecord("a record is shorter than its fields")
    offsets = _each([s.header.base_offset for s in sections], counts) + deltas
    last = _each([s.header.last_offset for s in sections], counts)
    if (np.diff(offsets) <= 0).any() or (deltas < 0).any() or (offsets > last).any():
        raise InvalidRecord("the offsets of the records do not rise from the first of their batch to its last")
    append_time = _each([s.header.append_time for s in sections], counts).astype(np.bool_)
    return Scan(data, raw, offsets, _timestamps(sections, counts, ages), append_time, ends - starts, key_at, ends)


def _together(sections: Sequence[Section]) -> Sequence[Section]:
    """The same in one buffer, which is copied only if there are several."""
    if all(section.buffer is sections[0].buffer for section in sections):
        return sections
    joined = b"".join([memoryview(section.buffer)[section.start : section.end] for section in sections])
    ends = list(accumulate(section.size for section in sections))
    return [Section(s.header, joined, end - s.size, end) for s, end in zip(sections, ends, strict=True)]


def _each(of_batch: Sequence[int], counts: Sequence[int]) -> Numbers:
    """What is said once of a batch, for each of its records."""
    return np.repeat(np.array(of_batch, np.int64), counts)


def varints(raw: Bytes, at: Numbers) -> tuple[Numbers, Numbers]:
    """The zigzag numbers at these places, and where each ends."""
    try:
        return _varints(raw, at)
    except IndexError:
        raise InvalidRecord("a record ends before its fields do") from None


def _varints(raw: Bytes, at: Numbers) -> tuple[Numbers, Numbers]:
    byte = raw[at]
    number = (byte & 0x7F).astype(np.uint64)
    at = at + 1
    more = np.flatnonzero(byte > 0x7F)
    shift = 7
    while len(more):
        if shift > VARINT_BITS_MAX:
            raise InvalidRecord("a number in a record is longer than 64 bits")
        byte = raw[at[more]]
        number[more] |= (byte & np.uint8(0x7F)).astype(np.uint64) << np.uint64(shift)
        at[more] += 1
        more = more[byte > 0x7F]
        shift += 7
    half: Numbers = (number >> np.uint64(1)).view(np.int64)
    return half ^ -(number & np.uint64(1)).view(np.int64), at


def _timestamps(sections: Sequence[Section], counts: Sequence[int], ages: Numbers) -> Numbers:
    """The records' own times, or those of the broker, which all records of a batch share."""
    base = [s.header.max_timestamp if s.header.append_time else s.header.base_timestamp for s in sections]
    own = _each([not s.header.append_time for s in sections], counts)
    return _each(base, counts) + ages * own


def _starts(data: Buffer, sections: Sequence[Section]) -> list[int]:
    """Where each record begins, at its length."""
    try:
        return [at for s in sections for at in _chain(data, s.start, s.end, s.header.count)]
    except IndexError:
        raise InvalidRecord("the records of a batch end before the last of them") from None


def _chain(data: Buffer, at: int, end: int, count: int) -> list[int]:
    """Follow the lengths of `count` records, which must lead from `at` to `end` exactly."""
    starts: list[int] = []
    keep = starts.append
    for _ in range(count):
        keep(at)
        byte = data[at]
        if byte < 0x80:
            at += 1 + (byte >> 1)
        elif (high := data[at + 1]) < 0x80:
            at += 2 + (byte - 0x80 + (high << 7) >> 1)
        else:
            at = _beyond(data, at)
    if at != end:
        raise InvalidRecord(f"the {count} records of a batch do not fill it exactly")
    return starts


def _beyond(data: Buffer, at: int) -> int:
    """Where a record of 8 KiB and more ends."""
    number, shift = 0, 0
    while (byte := data[at]) > 0x7F:
        number |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > VARINT_BITS_MAX:
            raise InvalidRecord("a number in a record is longer than 64 bits")
    return at + 1 + ((number | byte << shift) >> 1)
