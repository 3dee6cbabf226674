"""The sparse index of one segment: by offset and by time, in one file.

Rule 1: an index only says where to begin looking. It is never trusted: it has a checksum, and the batch it points to
        must have the offset it claims; what does not fit is rebuilt from the log.
Rule 2: memory is bounded: entries wait in a small tail, and go to the file when that is full; look-ups bisect the file.

An entry stands for one batch about every index.interval.bytes:

    offset u32 (less the segment's base) | position u32 | latest timestamp of all batches before it i64

so one bisection serves both questions: offsets rise, and so does the latest timestamp so far. A sealed segment's index
ends with a footer; that of the active segment has none, its facts are in the checkpoint.
"""

from bisect import bisect_right
from collections.abc import Callable
from errno import EIO
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from runnel.log.checkpoint import IndexMark
from runnel.model.limits import KIB
from runnel.model.seams import File

NO_TIMESTAMP = -1
TAIL_BYTES_MAX = 4 * KIB  # entries for about 1 MiB of log
RELATIVE_MAX = 2**32 - 1  # a follower may get a first batch that is further away; it is found without an entry

_ENTRY = Struct(">IIq")
ENTRY_BYTES = _ENTRY.size
_FOOTER = Struct(">4sBBHIIIqII")  # magic, version, gaps, -, count, log bytes, offsets, latest timestamp, crcs
_MAGIC = b"RIdx"
_VERSION = 1

Read = Callable[[int, int], bytes | memoryview | None]
Entry = tuple[int, int, int]


class NotCached(Exception):
    """The page cache lacks it: ask again off the loop."""


class Shortened(OSError):
    """The file of an index is shorter than it was: it was exchanged under our hands, or somebody cut it."""


class Footer(NamedTuple):
    """What a sealed segment's index says about the segment."""

    mark: IndexMark
    log_bytes: int
    offsets: int  # from the segment's base to that of the next


class Index:
    """The index of one segment, as far as it has been built."""

    __slots__ = ("count", "crc", "gaps", "latest_timestamp", "next_at", "tail", "verified")

    def __init__(self, mark: IndexMark | None = None, *, next_at: int = 0) -> None:
        self.count = mark.count if mark else 0  # entries in the file
        self.crc = mark.crc if mark else 0  # of the entries in the file
        self.gaps = mark.gaps if mark else False  # offsets are missing between batches: compaction removed them
        self.latest_timestamp = mark.latest_timestamp if mark else NO_TIMESTAMP
        self.next_at = next_at  # a batch at this position or later gets an entry
        self.tail = bytearray()  # entries that are not in the file yet
        self.verified = not self.count

    @property
    def size(self) -> int:
        return self.count * ENTRY_BYTES + len(self.tail)

    def frozen(self) -> "Index":
        """The same for look-ups off the loop, while this one grows."""
        copy = Index(self.mark())
        copy.tail = self.tail[:]
        return copy

    def mark(self) -> IndexMark:
        """What the checkpoint keeps; the tail must have been flushed."""
        return IndexMark(self.count, self.crc, self.latest_timestamp, self.gaps)

    def note(self, relative: int, position: int, timestamp: int, interval_bytes: int) -> None:
        """A batch was written at `position`."""
        if position >= self.next_at and relative <= RELATIVE_MAX:
            self.tail += _ENTRY.pack(relative, position, self.latest_timestamp)
            self.next_at = position + interval_bytes
        if timestamp > self.latest_timestamp:
            self.latest_timestamp = timestamp

    def flush(self, file: File) -> None:
        """Move the tail to the file. If that fails the tail stays, and the next try writes it to the same place."""
        if self.tail:
            file.write([self.tail], self.count * ENTRY_BYTES)
            self.count += len(self.tail) // ENTRY_BYTES
            self.crc = crc32c(self.tail, self.crc)
            self.tail.clear()

    def position_of(self, relative: int, read: Read) -> tuple[int, int]:
        """(offset, position) of the last entry not above `relative`: begin there, and go forward."""
        return self._last(read, lambda entry: entry[0] <= relative)

    def position_before(self, timestamp: int, read: Read) -> tuple[int, int]:
        """(offset, position) of a batch before which every batch is older than `timestamp`."""
        return self._last(read, lambda entry: entry[2] < timestamp)

    def _last(self, read: Read, wanted: Callable[[Entry], bool]) -> tuple[int, int]:
        number = self._count_where(read, wanted)
        return self._entry(number - 1, read)[:2] if number else (0, 0)

    def cut(self, position: int, read: Read) -> tuple["Index", int]:
        """The index of what lies before `position`; its latest timestamp lacks the batches from the place returned."""
        number = self._count_where(read, lambda entry: entry[1] < position)
        _, last, latest = self._entry(number - 1, read) if number else (0, 0, NO_TIMESTAMP)
        on_disk = min(number, self.count)
        crc = crc32c((read(on_disk * ENTRY_BYTES, 0) or b"") if on_disk else b"")
        made = Index(IndexMark(on_disk, crc, latest, self.gaps), next_at=position)
        made.tail = self.tail[: (number - on_disk) * ENTRY_BYTES]
        made.verified = True
        return made, last

    def _count_where(self, read: Read, wanted: Callable[[Entry], bool]) -> int:
        total = self.count + len(self.tail) // ENTRY_BYTES
        low = self.count if self.tail and wanted(self._entry(self.count, read)) else 0
        high = total if low or not self.count else self.count
        return bisect_right(range(total), False, low, high, key=lambda number: not wanted(self._entry(number, read)))

    def _entry(self, number: int, read: Read) -> Entry:
        if number >= self.count:
            return _ENTRY.unpack_from(self.tail, (number - self.count) * ENTRY_BYTES)
        data = read(ENTRY_BYTES, number * ENTRY_BYTES)
        if data is None:
            raise NotCached
        if len(data) < ENTRY_BYTES:
            raise Shortened(EIO, "its index is shorter than it was")
        return _ENTRY.unpack(data)


def footer(index: Index, log_bytes: int, offsets: int) -> bytes:
    """What seals an index whose entries are all in its file."""
    body = _FOOTER.pack(
        _MAGIC, _VERSION, index.gaps, 0, index.count, log_bytes, offsets, index.latest_timestamp, index.crc, 0
    )
    return body[:-4] + crc32c(body[:-4]).to_bytes(4, "big")


def read_footer(data: bytes) -> Footer | None:
    """The footer at the end of a sealed index; None if it is not one."""
    if len(data) < _FOOTER.size:
        return None
    body = data[-_FOOTER.size :]
    magic, version, gaps, _, count, log_bytes, offsets, timestamp, crc, own_crc = _FOOTER.unpack(body)
    if magic != _MAGIC or version != _VERSION or crc32c(body[:-4]) != own_crc:
        return None
    return Footer(IndexMark(count, crc, timestamp, bool(gaps)), log_bytes, offsets)


def load(file: File) -> Footer | None:
    """The footer of a sealed index if the file is whole: entries and footer have their checksums."""
    data = file.read(file.size(), 0)
    found = read_footer(data)
    if found is None or len(data) - _FOOTER.size != found.mark.count * ENTRY_BYTES:
        return None
    return found if crc32c(data[: -_FOOTER.size]) == found.mark.crc else None


def load_footer(file: File) -> Footer | None:
    """The footer alone: the entries are not looked at."""
    return read_footer(file.read(_FOOTER.size, max(0, file.size() - _FOOTER.size)))


def sealed_latest(file: File, log_bytes: int) -> int | None:
    """The latest timestamp of a sealed segment by the footer alone; None if that is missing or does not fit."""
    found = load_footer(file)
    return found.mark.latest_timestamp if found is not None and found.log_bytes == log_bytes else None


def entries_intact(file: File, mark: IndexMark) -> bool:
    """Whether the entries that a checkpoint speaks of are in the file as they were."""
    data = file.read(mark.count * ENTRY_BYTES, 0)
    return len(data) == mark.count * ENTRY_BYTES and crc32c(data) == mark.crc
