"""Compaction of a log's files: what `compaction` decides over batches is done here over segments.

Rule 1: only sealed segments below the recovery point are touched; the active one never is.
Rule 2: work off the loop comes in small slices, with the loop in between: Python code in a thread holds up the loop.
Rule 3: a cleaned file counts from its rename to .swap on; whoever opens the log after a crash finishes the exchange.
Rule 4: readers in flight keep the file they have open.
Rule 5: a segment in which batches can't even be told apart is left as it is.
"""

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from crc32c import crc32c

from runnel.log.aborted import AbortedReader
from runnel.log.checkpoint import sync, sync_dir
from runnel.log.compaction import AbortedBatches, CompactionStats, KeyMap, clean, is_due, map_keys
from runnel.log.files import Files
from runnel.log.index import Index
from runnel.log.indexing import seal
from runnel.log.layout import CLEANED, SWAP, ranged
from runnel.log.outcomes import Extent, Follower, save_or_leave
from runnel.log.reader import Reader
from runnel.log.recovery import finish_swap
from runnel.log.scan import misplaced, walk
from runnel.log.segment import Segment
from runnel.log.state import State
from runnel.log.writer import Writer
from runnel.model.ids import Offset
from runnel.model.limits import KIB
from runnel.model.seams import Buffer, Disk, File
from runnel.model.topic_config import INT_MAX, TopicConfig
from runnel.record.batch import read_header
from runnel.record.control import marker_in

T = TypeVar("T")
SLICE_BYTES = 256 * KIB  # about a millisecond of work


class Cleaner:
    """Compacts one log."""

    __slots__ = ("_aborted", "_disk", "_files", "_reader", "_state", "_writer")

    def __init__(
        self, disk: Disk, files: Files, state: State, writer: Writer, reader: Reader, aborted: AbortedReader
    ) -> None:
        self._disk = disk
        self._files = files
        self._state = state
        self._writer = writer
        self._reader = reader
        self._aborted = aborted

    async def compact(self, config: TopicConfig, now_ms: int, upto: int) -> CompactionStats | None:
        """One pass over what is below `upto`; None if it is not worth its while."""
        sealed = self._cleanable(upto)
        dirty = [segment for segment in sealed if self._state.end_of(segment) > self._state.cleaned_offset]
        if not dirty:
            return None
        stats = CompactionStats()
        try:
            if not await self._is_due(sealed, dirty, config, now_ms):
                return None
            latest = await self._map_keys(dirty, config, now_ms, upto)
            for group in _groups(sealed, self._state, config, latest.end_offset):
                await self._clean(group, latest, config, now_ms, stats)
            await self._writer.beside(lambda: self._cleaned_up_to(Offset(latest.end_offset)))
        except Unreadable as rot:
            await self._reader.report_rot(rot.segment, rot.position, rot.offset)
        return stats

    def _cleanable(self, upto: int) -> list[Segment]:
        bound = min(upto, self._writer.keeper.recovery_base)
        state = self._state
        return [
            segment
            for segment in state.segments[:-1]
            if state.end_of(segment) <= bound and not self._is_damaged(segment)
        ]

    def _is_damaged(self, segment: Segment) -> bool:
        state = self._state
        return bool(segment.holes) or state.damage.touches(segment.base_offset, state.end_of(segment))

    async def _is_due(self, sealed: list[Segment], dirty: list[Segment], config: TopicConfig, now_ms: int) -> bool:
        dirty_bytes = sum(segment.size for segment in dirty)
        clean_bytes = sum(segment.size for segment in sealed) - dirty_bytes
        cleaned = self._state.cleaned_offset
        end = self._state.end_of(dirty[0])
        since_ms = await self._disk.offload(lambda: _dirty_since(self._disk, dirty[0], end, cleaned, now_ms))
        return is_due(
            clean_bytes=clean_bytes, dirty_bytes=dirty_bytes, dirty_since_ms=since_ms, config=config, now_ms=now_ms
        )

    async def _map_keys(self, dirty: list[Segment], config: TopicConfig, now_ms: int, upto: int) -> KeyMap:
        latest = KeyMap(max(self._state.cleaned_offset, self._state.start_offset))
        for segment in dirty:
            batches = _batches(self._disk, [segment], self._state.end_of(segment))
            work = partial(
                map_keys, latest, batches, bound=upto, config=config, now_ms=now_ms, bytes_max=SLICE_BYTES,
                aborted=await self._aborted_batches([segment]),
            )  # fmt: skip
            while await _to_its_end(self._disk.offload(work)):
                pass
            if latest.complete:
                break
        return latest

    async def _aborted_batches(self, group: list[Segment]) -> AbortedBatches:
        return AbortedBatches(await self._aborted.ranges(group[0].base_offset, self._state.end_of(group[-1])))

    async def _clean(
        self, group: list[Segment], latest: KeyMap, config: TopicConfig, now_ms: int, stats: CompactionStats
    ) -> None:
        """Write what stays of a group of segments into one, and exchange them."""
        state = self._state
        aborted, opened = await self._aborted_batches(group), await self._aborted.opened_before(group[0])
        if not set(group) <= set(state.segments[:-1]):
            return  # truncated or trimmed meanwhile
        earlier, end = state.segments[: state.segments.index(group[0])], state.end_of(group[-1])
        rewrite = _Rewrite(
            self._disk, group, end, config.index_interval_bytes, opened,
            transactions=state.producers.transactions.since < end,
        )  # fmt: skip
        kept = clean(
            rewrite.batches(), latest, config=config, now_ms=now_ms, stats=stats, last=state.producers.last_batches(),
            complete=not any(self._is_damaged(segment) for segment in earlier), aborted=aborted,
            opened=[producer_id for producer_id, _ in opened],
        )  # fmt: skip
        try:
            while await _to_its_end(self._disk.offload(lambda: rewrite.take(kept))):
                pass
            if not rewrite.is_unchanged():
                await _to_its_end(self._writer.beside(lambda: self._exchange(group, rewrite)))
        finally:
            await self._disk.offload(rewrite.discard)

    async def _exchange(self, group: list[Segment], rewrite: "_Rewrite") -> None:
        """Let the new segment stand for the group, unless the log was truncated or trimmed meanwhile."""
        state = self._state
        if not set(group) <= set(state.segments[:-1]) or [s.size for s in group] != rewrite.sizes:
            return
        with self._reader.changing():
            try:
                made = await self._disk.offload(rewrite.exchange)
            except OSError:
                await self._writer.reload()
                raise
            for segment in group:  # only now: whoever read meanwhile may have opened the old file again
                self._files.forget(segment.log_path)
                self._files.forget(segment.index_path)
            at = state.segments.index(group[0])
            state.set_segments([*state.segments[:at], made, *state.segments[at + len(group) :]])
            state.outcomes.clear()

    async def _cleaned_up_to(self, offset: Offset) -> None:
        state = self._state
        if state.cleaned_offset < offset <= state.active.base_offset:
            await self._writer.keeper.save_start(state.start_offset, offset)
            state.cleaned_offset = offset


async def _to_its_end(step: Coroutine[Any, Any, T]) -> T:
    """Do a step that uses files. Who is cancelled waits for its end before the files are closed."""
    running = asyncio.ensure_future(step)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        raise


class _Rewrite:
    """One group of segments being written anew. All of it runs off the loop, a slice at a time."""

    def __init__(
        self, disk: Disk, group: list[Segment], end_offset: Offset, interval_bytes: int,
        opened: list[tuple[int, int]], *, transactions: bool,
    ) -> None:  # fmt: skip
        self._disk = disk
        self._group = group
        self._base, self._end = group[0].base_offset, end_offset
        self._folder = group[0].folder
        self._interval_bytes = interval_bytes
        self._file: File | None = None
        self._position = 0
        self._index = Index()
        self._transactions = Follower(opened) if transactions else None
        self._crc_read = self._crc_written = 0
        self.sizes = [segment.size for segment in group]

    def batches(self) -> Iterator[Buffer]:
        for raw in _batches(self._disk, self._group, self._end):
            self._crc_read = crc32c(raw, self._crc_read)
            yield raw

    def take(self, kept: Iterator[Buffer]) -> bool:
        """Write the next few batches; whether there may be more."""
        if self._file is None:
            self._file = self._disk.open(self._path(CLEANED), create=True)
            self._file.truncate(0)
        begin, parts = self._position, []
        for raw in kept:
            header = read_header(raw)
            self._index.note(
                header.base_offset - self._base, self._position, header.max_timestamp, self._interval_bytes
            )
            if self._transactions is not None:
                self._transactions.take(header, marker_in(raw) if header.control else None)
            self._crc_written = crc32c(raw, self._crc_written)
            parts.append(raw)
            self._position += len(raw)
            if self._position - begin >= SLICE_BYTES:
                break
        self._file.write(parts, begin)
        return bool(parts)

    def is_unchanged(self) -> bool:
        """Whether there was nothing to clean and nothing to join."""
        return len(self._group) == 1 and (self._position, self._crc_written) == (self.sizes[0], self._crc_read)

    def exchange(self) -> Segment:
        assert self._file is not None
        sync(self._file)
        self._disk.rename(self._path(CLEANED), self._path(SWAP))
        sync_dir(self._disk, self._folder)
        finish_swap(self._disk, self._folder, self._base, self._end, [segment.base_offset for segment in self._group])
        made = Segment(self._folder, self._base, self._position, self._group[0].created_ms, None)
        if self._transactions is not None:
            save_or_leave(self._disk, Extent(made, made.size, self._end), self._transactions.outcomes())
        self._index.gaps = True
        with suppress(OSError):
            index_file = self._disk.open(made.index_path, create=True)
            try:
                self._index.flush(index_file)
                seal(index_file, self._index, made, self._end)
            finally:
                index_file.close()
        return made

    def discard(self) -> None:
        """Remove what is left if it was not exchanged."""
        if self._file is not None:
            self._file.close()
        if self._disk.exists(self._path(CLEANED)):
            self._disk.remove(self._path(CLEANED))

    def _path(self, suffix: str) -> str:
        return f"{self._folder}/{ranged(self._base, self._end, suffix)}"


def _groups(sealed: list[Segment], state: State, config: TopicConfig, end_offset: int) -> Iterator[list[Segment]]:
    """Neighbours that fit into one segment together."""
    group: list[Segment] = []
    for segment in sealed:
        if segment.base_offset >= end_offset:
            break
        together = sum(other.size for other in group) + segment.size
        if group and (
            together > config.segment_bytes
            or state.end_of(segment) - group[0].base_offset > INT_MAX
            or state.end_of(group[-1]) != segment.base_offset
        ):
            yield group
            group = []
        group.append(segment)
    if group:
        yield group


def _batches(disk: Disk, segments: list[Segment], end: int) -> Iterator[bytes]:
    """All batches of some segments, up to offset `end`; one in which they can't be told apart ends it with Unreadable.

    An offset lies outside the checksum. One that is too high would make newer messages of the same keys look older.
    """
    for segment, next_base in zip(segments, [*(each.base_offset for each in segments[1:]), end], strict=True):
        file = disk.open(segment.log_path)
        try:
            position, due = 0, int(segment.base_offset)
            for at, header in walk(file, 0, segment.size, check_crc=False):
                base, last, after = header.base_offset, header.last_offset, at + header.size
                if base < due or last >= next_base:
                    break
                if base > due and misplaced(file.read, last, due, after, segment.size):
                    break
                yield file.read(header.size, at)
                position, due = after, last + 1
            if position < segment.size:
                raise Unreadable(segment, position, due)
        finally:
            file.close()


def _dirty_since(disk: Disk, segment: Segment, end: int, cleaned_offset: int, now_ms: int) -> int:
    """The time of the first batch that was not compacted; a compacted one may carry a delete horizon in its place."""
    for raw in _batches(disk, [segment], end):
        header = read_header(raw)
        if header.last_offset >= cleaned_offset:
            return header.max_timestamp
    return now_ms


class Unreadable(Exception):
    """From here on the batches of a segment can't be told apart."""

    def __init__(self, segment: Segment, position: int, offset: int) -> None:
        super().__init__(segment.log_path, position, offset)
        self.segment = segment
        self.position = position
        self.offset = offset
