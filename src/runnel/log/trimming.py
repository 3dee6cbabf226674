"""Making a log shorter: at its start for good, at its end when a new leader knows better.

Rule 1: first the decision is durable, then files go. A crash between finds the decision, and finishes.
Rule 2: whatever is removed at the start lies below a bound that was handed in, the high watermark.
Rule 3: epochs, producers, transactions and index follow the log; they are never left as they were before.
"""

from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from runnel.log.checkpoint import sync, sync_dir
from runnel.log.files import Files
from runnel.log.index import ENTRY_BYTES, NO_TIMESTAMP, Index
from runnel.log.indexing import build
from runnel.log.layout import PRODUCERS, offsets_of
from runnel.log.outcomes import Extent, load_or_build
from runnel.log.producers import Producers
from runnel.log.quarantine import aside_path, set_aside
from runnel.log.reader import Reader
from runnel.log.recovery import remove_if_there
from runnel.log.retention import Expired
from runnel.log.scan import walk_over_rot
from runnel.log.segment import Segment
from runnel.log.snapshots import drop_snapshots, load_producers
from runnel.log.state import State
from runnel.log.transactions import Aborted
from runnel.log.writer import Writer
from runnel.model.errors import OffsetOutOfRange
from runnel.model.ids import Offset
from runnel.model.seams import Disk
from runnel.model.topic_config import TopicConfig


@dataclass(frozen=True, slots=True)
class Cut:
    """Where a segment ends after truncation."""

    position: int
    end_offset: Offset
    index: Index


class Trimmer:
    """Shortens one log."""

    __slots__ = ("_disk", "_files", "_reader", "_state", "_writer")

    def __init__(self, disk: Disk, files: Files, state: State, writer: Writer, reader: Reader) -> None:
        self._disk = disk
        self._files = files
        self._state = state
        self._writer = writer
        self._reader = reader

    # --- at the start

    async def advance_start(self, offset: int, upto: int) -> None:
        """Let the log begin at `offset`, which must not lie beyond `upto`."""
        if offset > upto:
            raise OffsetOutOfRange(
                f"can't delete up to offset {offset}: {self._state.folder} is replicated only up to {upto}"
            )
        if offset > self._state.synced_offset:
            await self._writer.alone(self._writer.sync_active)  # else a power loss could leave an end before the start
        await self._writer.beside(lambda: self._advance_start(offset))

    async def _advance_start(self, offset: int) -> int:
        state = self._state
        if offset > state.start_offset:
            await self._writer.keeper.save_start(Offset(offset), state.cleaned_offset)
            state.start_offset = Offset(offset)
            state.cleaned_offset = max(state.cleaned_offset, state.start_offset)
            state.epochs.trim(offset)
            state.damage.trim(offset)
        return await self._remove_below_start()

    async def _remove_below_start(self) -> int:
        state = self._state
        count = sum(1 for following in state.segments[1:] if following.base_offset <= state.start_offset)
        if count:
            gone = state.segments[:count]
            state.set_segments(state.segments[count:])
            await self._remove(gone)
        return count

    async def _remove(self, segments: list[Segment], *, aside: bool = False) -> None:
        for segment in segments:
            self._files.forget(segment.log_path)
            self._files.forget(segment.index_path)
        await self._disk.offload(lambda: _remove(self._disk, self._state.folder, segments, aside))

    async def enforce_retention(self, config: TopicConfig, now_ms: int, upto: int) -> Expired:
        """Remove the oldest segments that are too old or too many; says which went, and why."""
        expired = await self._expired(config, now_ms, upto) if config.deletes else Expired()
        if expired.segments == len(self._state.segments):
            await self._writer.alone(self._writer.roll)
        if expired.segments:
            start = self._state.segments[expired.segments].base_offset
            await self._writer.beside(lambda: self._advance_start(start))
        else:
            await self._writer.beside(self._remove_below_start)
        return expired

    async def _expired(self, config: TopicConfig, now_ms: int, upto: int) -> Expired:
        """Which of the oldest segments retention does not keep; the active one counts if it has something."""
        state = self._state
        room = state.size_bytes - config.retention_bytes if config.retention_bytes >= 0 else -1
        too_much = too_old = 0
        newest_ms = NO_TIMESTAMP
        for segment in list(state.segments):
            if state.end_of(segment) > upto or (segment is state.active and not segment.size):
                break
            if segment.size <= room:
                too_much += 1
            else:
                latest = await self._reader.latest_timestamp(segment) if config.retention_ms >= 0 else NO_TIMESTAMP
                if latest < 0 or latest >= now_ms - config.retention_ms:
                    break
                too_old += 1
                newest_ms = max(newest_ms, latest)
            room -= segment.size
        return Expired(too_much, too_old, newest_ms)

    # --- at the end

    async def truncate(self, offset: int, now_ms: int) -> None:
        """Remove everything from the batch with `offset` on."""
        if offset < self._state.end_offset:
            await self._writer.alone(lambda: self._truncate(offset, now_ms))

    async def begin_anew(self, offset: int) -> None:
        """Remove everything, and go on at `offset`."""
        await self._writer.alone(lambda: self._restart_at(Offset(offset)))

    async def put_aside(self, offset: int, now_ms: int) -> None:
        """Remove everything from the batch with `offset` on, and keep it in files of another name."""
        await self._writer.alone(lambda: self._truncate(offset, now_ms, aside=True))

    async def _truncate(self, offset: int, now_ms: int, *, aside: bool = False) -> None:
        if offset < self._state.end_offset:  # another truncation may have been before this one
            await self._or_reload(self._cut_at(offset, now_ms, aside=aside))

    async def _or_reload(self, exchange: Coroutine[Any, Any, None]) -> None:
        with self._reader.changing():
            try:
                await exchange
            except OSError:
                await self._writer.reload()
                raise

    async def _cut_at(self, offset: int, now_ms: int, *, aside: bool) -> None:
        state = self._state
        await self._writer.undo_roll()
        if offset < max(state.start_offset, state.segments[0].base_offset):
            return await self._restart_at(Offset(offset), aside=aside)
        segment = state.segment_of(offset)
        index = segment.index.frozen() if segment.index is not None and segment.index.verified else None
        next_base, interval_bytes = state.end_of(segment), self._reader.interval_bytes
        cut = await self._disk.offload(
            lambda: _locate_cut(self._disk, segment, index, next_base, offset, interval_bytes)
        )
        if cut.end_offset < state.start_offset:
            return await self._restart_at(state.start_offset, aside=aside)
        kept = state.segments[: state.segments.index(segment) + 1]
        dropped = state.segments[len(kept) :]
        aborted = await self._aborted_in(segment)
        if aside:
            await self._disk.offload(lambda: set_aside(self._disk, segment, cut.position))
        await self._writer.keeper.lower_recovery_point(segment, cut.position, cut.index.mark(), cut.end_offset)
        await self._remove(list(reversed(dropped)), aside=aside)
        self._files.forget(segment.index_path)
        known = not state.producers.empty
        producers = await self._disk.offload(lambda: _cut(self._disk, kept, cut, now_ms, known))
        aborted.cut(cut.end_offset)
        producers.transactions.aborted = aborted
        segment.size, segment.index, segment.holes = cut.position, cut.index, segment.holes_below(cut.position)
        segment.crowded = False
        state.set_segments(kept)
        state.end_offset = state.synced_offset = cut.end_offset
        state.cleaned_offset = min(state.cleaned_offset, cut.end_offset)
        state.epochs.truncate(cut.end_offset)
        state.damage.truncate(cut.end_offset)
        state.producers = producers
        state.outcomes.clear()
        self._reader.forget()
        # Always: the lowered recovery point may be just this one, but the snapshot that belongs to it is missing.
        await self._writer.keeper.save_or_leave(*self._writer.keeper.capture(), always=True)
        self._writer.moved()
        return None

    async def _aborted_in(self, segment: Segment) -> Aborted:
        """The transactions that were aborted in a segment, before it is cut."""
        state, transactions = self._state, self._state.producers.transactions
        if segment is state.active:
            return transactions.aborted.copy()
        known = state.outcomes.get(segment)
        if known is not None:
            return known.aborted.copy()
        segments = state.segments[: state.segments.index(segment) + 1]
        extents = [Extent(one, one.size, state.end_of(one)) for one in segments]
        found = await self._disk.offload(lambda: load_or_build(self._disk, extents, transactions.since))
        return found[-1].aborted

    async def _restart_at(self, offset: Offset, *, aside: bool = False) -> None:
        """Nothing of the log is left; it goes on empty at `offset`. Once that is decided, it is as after a crash."""
        await self._writer.keeper.decide_to_begin(offset, aside=aside)
        await self._writer.reload()
        self._reader.forget()


def _remove(disk: Disk, folder: str, segments: list[Segment], aside: bool) -> None:
    for segment in segments:
        for path in segment.paths_beside:
            remove_if_there(disk, path)
        if aside:
            disk.rename(segment.log_path, aside_path(segment))
        else:
            disk.remove(segment.log_path)
    if segments:
        sync_dir(disk, folder)


def _locate_cut(
    disk: Disk, segment: Segment, index: Index | None, next_base: int, offset: int, interval_bytes: int
) -> Cut:
    """Find the batch with `offset`, and make the index of what lies before it."""
    index_file = disk.open(segment.index_path, create=True)
    log_file = disk.open(segment.log_path)
    try:
        relative, position = index.position_of(offset - segment.base_offset, index_file.read) if index else (0, 0)
        end = segment.base_offset + relative
        for at, header in walk_over_rot(log_file, position, segment.size, end, next_base):
            if header.last_offset >= offset:
                end = min(header.base_offset, offset)  # what may be rotten between is cut off too
                break
            position, end = at + header.size, header.last_offset + 1
        if index is None:
            whole = Segment(segment.folder, segment.base_offset, position, segment.created_ms, None)
            return Cut(position, Offset(end), build(disk, whole, end, interval_bytes)[0])
        kept, last = index.cut(position, index_file.read)
        for _, header in walk_over_rot(log_file, last, position, segment.base_offset, next_base):
            kept.latest_timestamp = max(kept.latest_timestamp, header.max_timestamp)
        return Cut(position, Offset(end), kept)
    finally:
        index_file.close()
        log_file.close()


def _cut(disk: Disk, kept: list[Segment], cut: Cut, now_ms: int, had_producers: bool) -> Producers:
    """Cut the last of these segments, and let the producers follow."""
    segment = kept[-1]
    index_file = disk.open(segment.index_path, create=True)
    log_file = disk.open(segment.log_path)
    try:
        log_file.truncate(cut.position)
        index_file.truncate(cut.index.count * ENTRY_BYTES)
        sync(log_file)
    finally:
        index_file.close()
        log_file.close()
    remove_if_there(disk, segment.transactions_path)
    sync_dir(disk, segment.folder)
    drop_snapshots(disk, segment.folder, cut.end_offset)
    if not had_producers:
        return Producers()
    snapshots = offsets_of(disk.list(segment.folder), PRODUCERS)
    return load_producers(disk, segment.folder, snapshots, kept, cut.end_offset, now_ms)
