"""What became of the transactions of one segment: in a small file beside it, once there was one in the log.

Rule 1: it follows from what was open where the segment begins, and from its batches. It is never trusted: it has a
        checksum, and names the size of the log file and the offset behind it. What is missing or does not fit is built
        again, from that of the segment before; where this is missing too, from further back.
Rule 2: an aborted transaction belongs to the segment with its marker.
Rule 3: memory is bounded: few are kept, the latest to be looked at.

It ends where the segment did when it was written: the active segment's is as old as the checkpoint.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from runnel.log.checkpoint import read_small, replace
from runnel.log.layout import TRANSACTIONS, numbered
from runnel.log.scan import marker_at, walk_over_rot
from runnel.log.segment import Segment
from runnel.log.transactions import ABORTED_MAX, FIELDS, NEVER, Aborted, Open, Transactions
from runnel.model.seams import Disk
from runnel.record.batch import CONTROL, TRANSACTIONAL, BatchHeader
from runnel.record.control import Marker

KEPT_MAX = 2 * ABORTED_MAX  # aborted transactions of sealed segments in memory, 3.2 MB of one log

_HEAD = Struct(">4sHIqqII")  # magic, version, crc32c of what follows, size of the log, next offset, aborted, open
_CRC_STARTS = 10
_MAGIC = b"RTxn"
_VERSION = 1
ABORTED_BYTES = FIELDS * 8
_OPEN = Struct(">qq")  # producer id, first offset


class Outcomes(NamedTuple):
    """The transactions that were aborted in a segment, and those that were open at its end."""

    aborted: Aborted
    opened: Sequence[tuple[int, int]]  # producer id, first offset; in the order of offsets

    @property
    def unstable(self) -> int:
        """Whatever ends behind this segment began here or later."""
        return self.opened[0][1] if self.opened else NEVER


class Extent(NamedTuple):
    """A segment as long as it is at some moment: work off the loop gets this."""

    segment: Segment
    size: int
    next_offset: int


class Kept:
    """The outcomes of the segments that were looked at last."""

    __slots__ = ("_by_segment", "_count", "_order")

    def __init__(self) -> None:
        self._by_segment: dict[Segment, Outcomes] = {}
        self._order: deque[Segment] = deque()
        self._count = 0

    def get(self, segment: Segment) -> Outcomes | None:
        return self._by_segment.get(segment)

    def put(self, segment: Segment, outcomes: Outcomes) -> None:
        if segment not in self._by_segment:
            self._by_segment[segment] = outcomes
            self._order.append(segment)
            self._count += _weight(outcomes)
        while self._count > KEPT_MAX and len(self._order) > 1:
            self._count -= _weight(self._by_segment.pop(self._order.popleft()))

    def clear(self) -> None:
        """Segments were cut or exchanged."""
        self._by_segment.clear()
        self._order.clear()
        self._count = 0


def _weight(outcomes: Outcomes) -> int:
    return len(outcomes.aborted) + len(outcomes.opened) + 1


class Follower:
    """Follows the batches of one segment, from what was open before it."""

    __slots__ = ("_aborted", "_open")

    def __init__(self, opened: Iterable[tuple[int, int]]) -> None:
        self._open = Open(opened)
        self._aborted = Aborted()

    def take(self, header: BatchHeader, marker: Marker | None) -> None:
        """The next batch, and what it says if it is a control batch."""
        if not header.attributes & TRANSACTIONAL:
            return
        if not header.attributes & CONTROL:
            self._open.begin(header.producer_id, header.base_offset)
        elif marker is not None:
            first, at = self._open.end(header.producer_id), header.base_offset
            if first is not None and not marker.commit:
                self._aborted.add(header.producer_id, first, at, self._open.stable(at))

    def outcomes(self) -> Outcomes:
        return Outcomes(self._aborted, list(self._open))


def outcomes_at_end(transactions: Transactions) -> Outcomes:
    """Those of the segment that is written to, as long as it is now."""
    return Outcomes(transactions.aborted, transactions.opened())


# --- files
def save(disk: Disk, folder: str, base: int, size: int, next_offset: int, found: Outcomes, *, durable: bool) -> None:
    replace(disk, folder, numbered(base, TRANSACTIONS), encode(found, size, next_offset), durable=durable)


def save_or_leave(disk: Disk, extent: Extent, found: Outcomes) -> None:
    """A file that the disk refuses is built again when it is needed."""
    segment = extent.segment
    with suppress(OSError):
        save(disk, segment.folder, segment.base_offset, extent.size, extent.next_offset, found, durable=False)


def load(disk: Disk, extent: Extent) -> Outcomes | None:
    """The outcomes of a segment of this extent by its file; None if that is missing or does not fit."""
    try:
        data = read_small(disk, extent.segment.transactions_path)
    except OSError:
        return None
    return None if data is None else decode(data, extent.size, extent.next_offset)


def build(disk: Disk, extent: Extent, opened: Iterable[tuple[int, int]]) -> Outcomes:
    """The outcomes of a segment by its batches, and by what was open before it."""
    segment, size, next_offset = extent
    follower = Follower(opened)
    file = disk.open(segment.log_path)
    try:
        for at, header in walk_over_rot(file, 0, size, segment.base_offset, next_offset):
            follower.take(header, marker_at(file, at, header))
    finally:
        file.close()
    return follower.outcomes()


def load_or_build(disk: Disk, extents: Sequence[Extent], since: int) -> list[Outcomes]:
    """Outcomes of the last of these extents, which follow each other, and of as many before it as had to be built.

    No transaction has anything below `since`.
    """
    missing: list[Extent] = []
    found: Outcomes | None = None
    for extent in reversed(extents):
        if extent.next_offset <= since:
            break
        found = load(disk, extent)
        if found is not None:
            break
        missing.append(extent)
    out = [found or Outcomes(Aborted(), ())]
    for extent in reversed(missing):
        out.append(build(disk, extent, out[-1].opened))
    return out


# --- bytes, as drawn in docs/formats/log.md
def encode(found: Outcomes, size: int, next_offset: int) -> bytes:
    aborted, opened = found
    numbers = aborted.numbers
    parts = [Struct(f">{len(numbers)}q").pack(*numbers), *(_OPEN.pack(*one) for one in opened)]
    head = _HEAD.pack(_MAGIC, _VERSION, 0, size, next_offset, len(aborted), len(opened))
    body = b"".join((head[_CRC_STARTS:], *parts))
    return b"".join((head[: _CRC_STARTS - 4], crc32c(body).to_bytes(4, "big"), body))


def decode(data: bytes, size: int, next_offset: int) -> Outcomes | None:
    """What these bytes say of a segment of this size, with this offset behind it; None if they do not."""
    if len(data) < _HEAD.size:
        return None
    magic, version, crc, log_bytes, at, aborted, opened = _HEAD.unpack_from(data)
    if (magic, version, log_bytes, at) != (_MAGIC, _VERSION, size, next_offset):
        return None
    if crc32c(memoryview(data)[_CRC_STARTS:]) != crc:
        return None
    split = _HEAD.size + aborted * ABORTED_BYTES
    numbers = Struct(f">{aborted * FIELDS}q").unpack_from(data, _HEAD.size)
    return Outcomes(Aborted(numbers), list(_OPEN.iter_unpack(data[split : split + opened * _OPEN.size])))
