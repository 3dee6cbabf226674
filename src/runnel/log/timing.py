"""Finding messages by their time."""

from typing import NamedTuple

from runnel.log.files import Files
from runnel.log.index import NO_TIMESTAMP, Index, Read
from runnel.log.reader import Reader
from runnel.log.scan import walk_over_rot
from runnel.log.segment import Segment
from runnel.log.state import State
from runnel.model.errors import InvalidRecord
from runnel.model.ids import Epoch, Offset
from runnel.model.seams import Disk, File
from runnel.record import records
from runnel.record.batch import BatchHeader, intact


class Timed(NamedTuple):
    """A message, and when it was sent."""

    offset: Offset
    timestamp: int
    leader_epoch: Epoch


class TimeReader:
    """Looks messages up by time."""

    __slots__ = ("_disk", "_files", "_reader", "_state")

    def __init__(self, disk: Disk, files: Files, state: State, reader: Reader) -> None:
        self._disk = disk
        self._files = files
        self._state = state
        self._reader = reader

    async def max_timestamp(self) -> int:
        """The latest timestamp of all; -1 if there is none."""
        latest = NO_TIMESTAMP
        for segment in list(self._state.segments):
            latest = max(latest, await self._reader.latest_timestamp(segment))
        return latest

    async def first_at_or_after(self, timestamp: int) -> Timed | None:
        """The first message that is not older than `timestamp`."""
        for segment in list(self._state.segments):
            if await self._reader.latest_timestamp(segment) >= timestamp:
                found = await self._search(segment, timestamp)
                if found is not None:
                    return found
        return None

    async def _search(self, segment: Segment, timestamp: int) -> Timed | None:
        index = (await self._reader.index_of(segment)).frozen()
        size, start, next_base = segment.size, self._state.start_offset, self._state.end_of(segment)
        async with (
            self._files.pinned(segment.log_path) as log_file,
            self._reader.entries_of(segment, index) as read_index,
        ):
            return await self._disk.offload(
                lambda: _search(segment, index, size, next_base, log_file, read_index, timestamp, start)
            )


def _search(
    segment: Segment, index: Index, size: int, next_base: int, log_file: File, read_index: Read,
    timestamp: int, start: int,
) -> Timed | None:  # fmt: skip
    relative, position = index.position_before(timestamp, read_index)
    base = segment.base_offset + relative
    for at, header in walk_over_rot(log_file, position, size, base, next_base):
        if header.max_timestamp >= timestamp and header.last_offset >= start:
            found = _in_batch(log_file.read(header.size, at), header, timestamp, start)
            if found is not None:
                return Timed(Offset(found[0]), found[1], Epoch(header.leader_epoch))
    return None


def _in_batch(data: bytes, header: BatchHeader, timestamp: int, start: int) -> tuple[int, int] | None:
    if not intact(data, header):
        return None
    try:
        spans = records.spans(data)[2]
    except InvalidRecord:  # nobody can read it: point to where it begins
        return max(header.base_offset, start), header.max_timestamp
    return next(((s.offset, s.timestamp) for s in spans if s.timestamp >= timestamp and s.offset >= start), None)
