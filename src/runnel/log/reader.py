"""Reading a log: whole batches, checked, from the page cache on the loop or from the disk off it.

Rule 1: no batch leaves without its checksum being right and its offset being the one that is due.
Rule 2: what is rotten is reported with its place and never served; what lies before and after it is.
Rule 3: a reader that goes on where it stopped needs no index: its place is remembered.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from runnel.log.appending import closed
from runnel.log.damage import rotten
from runnel.log.epochs import Epochs
from runnel.log.files import Files
from runnel.log.index import NO_TIMESTAMP, Index, NotCached, Read, Shortened, entries_intact, sealed_latest
from runnel.log.indexing import build, load_or_build
from runnel.log.scan import find_hole, misplaced, walk
from runnel.log.segment import Hole, Segment
from runnel.log.state import State
from runnel.log.writer import Writer
from runnel.model.errors import OffsetOutOfRange, StorageFailed
from runnel.model.seams import Disk, File
from runnel.record.batch import CRC_STARTS, FRAMING_BYTES, HEADER_BYTES, MAGIC

CURSORS_MAX = 16  # readers of one partition whose places are remembered

_FRONT = Struct(">qiibIhi")  # base offset, length, leader epoch, magic, crc, attributes, last offset delta
_unpack = _FRONT.unpack_from


class Rot(Exception):
    """The batch at this place is not what was written."""

    def __init__(self, position: int, offset: int) -> None:
        super().__init__(position, offset)
        self.position = position
        self.offset = offset


class _Found(NamedTuple):
    data: bytes | memoryview
    next_offset: int
    next_position: int


class Reader:
    """Reads the segments that a writer fills."""

    __slots__ = (
        "_changes", "_cursors", "_disk", "_files", "_generation", "_loading", "_settled", "_state", "_writer",
        "interval_bytes",
    )  # fmt: skip

    def __init__(self, disk: Disk, files: Files, state: State, writer: Writer, interval_bytes: int) -> None:
        self._disk = disk
        self._files = files
        self._state = state
        self._writer = writer
        self.interval_bytes = interval_bytes
        self._cursors: dict[int, tuple[Segment, int, int]] = {}
        self._generation = 0
        self._changes = 0  # under way
        self._settled: asyncio.Event | None = None  # set when they are done
        self._loading: asyncio.Lock | None = None
        writer.changing = self.changing

    def forget(self) -> None:
        """Segments were truncated or replaced: remembered places mean nothing any more."""
        self._cursors.clear()
        self._generation += 1

    @contextmanager
    def changing(self) -> Iterator[None]:
        """Files of segments are cut or exchanged meanwhile: an old place in a new file may look well, or rotten.

        Whoever reads waits until it is done.
        """
        self._changes += 1
        self._generation += 1
        self._settled = self._settled or asyncio.Event()
        try:
            yield
        finally:
            self._changes -= 1
            self.forget()
            if not self._changes:
                self._settled.set()
                self._settled = None

    @property
    def generation(self) -> int:
        return self._generation

    async def settled(self) -> None:
        """Return when no files are cut or exchanged."""
        while self._settled is not None:
            await self._settled.wait()

    def stands(self, generation: int) -> bool:
        """Whether the files are still those that were looked at."""
        return generation == self._generation and not self._changes

    # --- by offset

    def read_cached(self, offset: int, bytes_max: int, upto: int) -> bytes | memoryview | None:
        """What `read` would return if it needs no disk, else None."""
        state = self._state
        if not state.start_offset <= offset <= state.end_offset:
            raise self._out_of_range(offset)
        bound = state.damage.bound(offset, upto) if state.damage else upto
        if offset >= upto or offset == state.end_offset:
            return b""
        if self._changes or state.lost:
            return None
        try:
            segment, position, due = self._cursors.get(offset) or self._place_cached(offset)
            file = self._files.get(segment.log_path)
            if file is None or position >= segment.size:
                self._cursors.pop(offset, None)
                return None
            found = _gather(
                segment,
                segment.size,
                state.epochs,
                file.read_cached,
                position,
                due,
                bytes_max,
                bound,
                state.end_of(segment),
            )
        except (NotCached, Rot, OSError):
            return None  # `read` finds out more
        if not found.data and bound < upto:
            return None
        self._remember(segment, found)
        return found.data

    async def read(self, offset: int, bytes_max: int, upto: int) -> bytes | memoryview:
        """Whole batches from the one with `offset` on, at least one, and all below `upto`."""
        try:
            return await self._read(offset, bytes_max, upto)
        except OSError as error:
            raise StorageFailed(
                f"could not read offset {offset} of {self._state.folder}: {error.strerror}. Check the disk"
            ) from error

    async def _read(self, offset: int, bytes_max: int, upto: int) -> bytes | memoryview:
        while (data := self.read_cached(offset, bytes_max, upto)) is None:
            if self._settled is not None:
                await self._settled.wait()
                continue
            self._must_be_known()
            segment = self._state.segment_of(offset)
            generation = self._generation
            index = await self.index_of(segment)
            bound = self._state.damage.bound(offset, upto)
            try:
                found = await self._fetch(segment, index, offset, bytes_max, bound)
            except Rot as rot:
                if self.stands(generation):
                    await self._locate_rot(segment, index, rot, generation)
                continue
            except OSError as error:
                if self.stands(generation):
                    if not isinstance(error, Shortened | FileNotFoundError):
                        raise
                    self._files.forget(segment.index_path)
                    segment.index = None  # to be built again
                continue
            if not self.stands(generation):
                continue
            if found is not None and (found.data or bound == upto):
                self._remember(segment, found)
                return found.data
            if segment is self._state.active and bound == upto:
                return b""
            # Nothing before the next segment, or before damage: that is not to be passed over.
            offset = bound if found is not None else min(self._state.end_of(segment), bound)
        return data

    def _must_be_known(self) -> None:
        if self._writer.closed:
            raise closed(self._state.folder)  # what has its name now may be another log
        if self._state.lost:
            raise StorageFailed(
                f"could not read {self._state.folder}: a change of its files failed half-way, and they can't be looked "
                "through. Check the disk; it is tried again every second"
            )

    def _out_of_range(self, offset: int) -> OffsetOutOfRange:
        return OffsetOutOfRange(
            f"offset {offset} is not in the log, which has {self._state.start_offset} to {self._state.end_offset}: "
            "begin at the earliest or the latest offset"
        )

    def _place_cached(self, offset: int) -> tuple[Segment, int, int]:
        segment = self._state.segment_of(offset)
        if offset == segment.base_offset and not segment.holes:
            return segment, 0, offset
        index, log_file = segment.index, self._files.get(segment.log_path)
        index_file = self._files.get(segment.index_path)
        if index is None or not index.verified or segment.holes or log_file is None or (index.count and not index_file):
            raise NotCached
        read_index = index_file.read_cached if index_file is not None else _nothing
        place = _seek(segment, segment.size, index, log_file.read_cached, read_index, offset)
        if place is None:
            raise NotCached
        return segment, *place

    def _remember(self, segment: Segment, found: _Found) -> None:
        if found.data:
            cursors = self._cursors
            if len(cursors) >= CURSORS_MAX:
                del cursors[next(iter(cursors))]
            cursors[found.next_offset] = (segment, found.next_position, found.next_offset)

    async def _fetch(self, segment: Segment, index: Index, offset: int, bytes_max: int, upto: int) -> _Found | None:
        size, frozen, epochs = segment.size, index.frozen(), self._state.epochs.copy()
        next_base = self._state.end_of(segment)
        async with self._files.pinned(segment.log_path) as log_file, self.entries_of(segment, frozen) as read_index:

            def work() -> _Found | None:
                place = _seek(segment, size, frozen, log_file.read, read_index, offset)
                if place is None:
                    return None
                return _gather(segment, size, epochs, log_file.read, *place, bytes_max, upto, next_base)

            return await self._disk.offload(work)

    # --- indexes and rot

    @asynccontextmanager
    async def entries_of(self, segment: Segment, index: Index) -> AsyncIterator[Read]:
        """Reads the entries of an index that are in its file, if there are any: else there may be no file."""
        if not index.count:
            yield _nothing
            return
        async with self._files.pinned(segment.index_path) as file:
            yield file.read

    async def index_of(self, segment: Segment) -> Index:
        """The index of a segment, read, checked, and built again if it does not fit."""
        self._must_be_known()
        if segment.index is not None and segment.index.verified:
            return segment.index
        if self._loading is None:
            self._loading = asyncio.Lock()
        async with self._loading:
            if segment.index is None:
                generation = self._generation
                next_base = self._state.end_of(segment)
                work = _loader(self._disk, segment, next_base, self.interval_bytes)
                index, holes = await self._disk.offload(work)
                if holes and not self.stands(generation):
                    return index
                self._take_holes(segment, holes)
                segment.index = index
            elif not segment.index.verified:
                await self._verify_active(segment, segment.index)
            return segment.index

    async def latest_timestamp(self, segment: Segment) -> int:
        """The latest timestamp in a segment; for a sealed one the footer of its index says it."""
        if segment.index is None and segment.sealed_latest is None:
            segment.sealed_latest = await self._disk.offload(lambda: _sealed_latest(self._disk, segment))
            if segment.sealed_latest is None:
                await self.index_of(segment)
        if segment.index is not None:
            return segment.index.latest_timestamp
        return NO_TIMESTAMP if segment.sealed_latest is None else segment.sealed_latest

    async def _verify_active(self, segment: Segment, index: Index) -> None:
        """The checkpoint named these entries: see whether they are there."""
        with suppress(FileNotFoundError):
            async with self._files.pinned(segment.index_path) as file:
                mark = index.mark()
                if await self._disk.offload(lambda: entries_intact(file, mark)):
                    index.verified = True
                    return
        await self._writer.alone(lambda: self._rebuild(segment))

    async def _rebuild(self, segment: Segment) -> None:
        """Build the index anew of a segment that was the active one when its index was missed."""
        self._files.forget(segment.index_path)
        end = self._state.end_of(segment)
        index, holes = await self._disk.offload(lambda: build(self._disk, segment, end, self.interval_bytes))
        index.next_at = segment.size
        self._take_holes(segment, holes)
        segment.index = index

    def _take_holes(self, segment: Segment, holes: tuple[Hole, ...]) -> None:
        for hole in holes:
            if hole not in segment.holes:
                segment.holes += (hole,)
                if hole.first_offset < hole.next_offset:  # else nothing is lost: noise behind the last batch
                    self._state.damage.note(rotten(segment, hole))

    async def report_rot(self, segment: Segment, position: int, offset: int) -> None:
        """Somebody else stumbled over something unreadable."""
        generation = self._generation
        async with self._files.pinned(segment.log_path) as file:
            size, next_base = segment.size, self._state.end_of(segment)
            hole = await self._disk.offload(lambda: find_hole(file, position, size, offset, next_base))
        if self.stands(generation):
            self._take_holes(segment, (hole,))

    async def _locate_rot(self, segment: Segment, index: Index, rot: Rot, generation: int) -> None:
        """Find out exactly what is rotten, so that all the rest can be read."""
        size, frozen, epochs = segment.size, index.frozen(), self._state.epochs.copy()
        next_base = self._state.end_of(segment)
        async with self._files.pinned(segment.log_path) as log_file, self.entries_of(segment, frozen) as read_index:
            hole = await self._disk.offload(
                lambda: _locate_rot(segment, size, frozen, epochs, log_file, read_index, rot, next_base)
            )
        if not self.stands(generation):
            return
        if hole is None or hole in segment.holes:  # it reads well now: then the one message is not to be trusted
            hole = Hole(rot.position, rot.position, rot.offset, rot.offset + 1)
        self._take_holes(segment, (hole,))


def _loader(
    disk: Disk, segment: Segment, next_base: int, interval_bytes: int
) -> Callable[[], tuple[Index, tuple[Hole, ...]]]:
    return lambda: load_or_build(disk, segment, next_base, interval_bytes)


def _sealed_latest(disk: Disk, segment: Segment) -> int | None:
    try:
        file = disk.open(segment.index_path)
    except OSError:
        return None
    try:
        return sealed_latest(file, segment.size)
    finally:
        file.close()


def _nothing(size: int, position: int) -> bytes | None:
    raise NotCached


def _seek(
    segment: Segment, end: int, index: Index, read_log: Read, read_index: Read, offset: int
) -> tuple[int, int] | None:
    """(position, offset due there) of the batch with `offset` or after the gap it is in; None if there is none."""
    relative, position = index.position_of(offset - segment.base_offset, read_index)
    due = segment.base_offset + relative
    while position < end:
        hole = segment.hole_at(position) if segment.holes else None
        if hole is not None:
            if offset < hole.next_offset:
                raise rotten(segment, hole)
            position, due = hole.end_position, hole.next_offset
            continue
        data = read_log(HEADER_BYTES, position)
        if data is None:
            raise NotCached
        base, length, _, magic, _, _, delta = _unpack(data) if len(data) == HEADER_BYTES else (-1, 0, 0, 0, 0, 0, 0)
        size = length + FRAMING_BYTES
        if magic != MAGIC or size < HEADER_BYTES or position + size > end or delta < 0 or base < due:
            raise Rot(position, due)
        if base + delta >= offset:
            return position, due
        position, due = position + size, base + delta + 1
    return None


def _gather(
    segment: Segment,
    end: int,
    epochs: Epochs,
    read: Read,
    position: int,
    due: int,
    bytes_max: int,
    upto: int,
    next_base: int,
) -> _Found:
    """Whole good batches from `position` on, none if the first is not wholly below `upto`."""
    data = read(max(HEADER_BYTES, min(bytes_max, end - position)), position)
    if data is None:
        raise NotCached
    if len(data) < HEADER_BYTES:
        raise Rot(position, due)
    first = _unpack(data)[1] + FRAMING_BYTES
    if len(data) < first <= end - position:
        data = read(first, position)
        if data is None:
            raise NotCached
    view, at, limit = memoryview(data), 0, len(data)
    gaps = segment.index is None or segment.index.gaps
    epoch = None  # the one seen last: most batches have the same
    while limit - at >= HEADER_BYTES:
        base, length, leader_epoch, magic, crc, _, delta = _unpack(data, at)
        size = length + FRAMING_BYTES
        sound = magic == MAGIC and size >= HEADER_BYTES and delta >= 0 and (base == due or (gaps and base > due))
        if sound and at + size > limit:
            if position + at + size <= end and at:
                break
            sound = False
        if not sound or crc32c(view[at + CRC_STARTS : at + size]) != crc:
            if at:
                break
            raise Rot(position, due)
        if base != due and (base + delta >= next_base or misplaced(read, base + delta, due, position + at + size, end)):
            if at:
                break
            raise Rot(position, due)
        if leader_epoch != epoch:
            if not epochs.may_have(leader_epoch, base + delta):
                if at:
                    break
                raise Rot(position, due)
            epoch = leader_epoch
        if base + delta >= upto:
            break
        at += size
        due = base + delta + 1
    return _Found(data if at == limit else view[:at], due, position + at)


def _locate_rot(
    segment: Segment, end: int, index: Index, epochs: Epochs, log_file: File, read_index: Read, rot: Rot, next_base: int
) -> Hole | None:
    """The first bad batch at or before the place where reading stumbled: a wrong length leads astray."""
    relative, position = index.position_of(max(0, rot.offset - segment.base_offset), read_index)
    due = segment.base_offset + relative
    while position <= rot.position:
        for at, header in walk(log_file, position, end):
            is_due = header.base_offset == due or (index.gaps and header.base_offset > due)
            is_due = is_due and epochs.may_have(header.leader_epoch, header.last_offset)
            if header.base_offset > due and misplaced(log_file.read, header.last_offset, due, at + header.size, end):
                is_due = False
            if not is_due or header.last_offset >= next_base or at > rot.position:
                break
            position, due = at + header.size, header.last_offset + 1
        known = segment.hole_at(position)
        if known is None:
            return find_hole(log_file, position, end, due, next_base) if position <= rot.position else None
        position, due = known.end_position, known.next_offset
    return None
