"""Beginning a new segment, and making the one before it durable.

Rule 1: a new segment is durable, as a file, before a batch goes into it.
Rule 2: the old one is sealed while appends go on: synced, its index ended, and what became of its transactions written
        down. Only then does a checkpoint speak of its successor.
Rule 3: once a new segment was begun, nothing goes into the old one, even if that failed: what is left of the new one
        would lie in the middle of the log after a restart.
"""

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from runnel.log.checkpoint import sync, sync_dir
from runnel.log.files import Files
from runnel.log.indexing import seal
from runnel.log.keeper import EMPTY_MARK, Keeper
from runnel.log.outcomes import Extent, Outcomes, outcomes_at_end, save_or_leave
from runnel.log.producers import Producers
from runnel.log.recovery import create_segment, remove_if_there
from runnel.log.segment import Segment
from runnel.log.state import State
from runnel.log.transactions import Aborted
from runnel.model.ids import Offset
from runnel.model.seams import Disk, File


class Rolled(NamedTuple):
    """A segment that is not sealed yet."""

    segment: Segment
    next_base: Offset
    producers: Producers  # as they were at its end
    release: Callable[[], None] | None  # lets its file go, once it is synced


class Rolling:
    """The segments of one log that follow each other."""

    __slots__ = ("_disk", "_files", "_keeper", "_on_progress", "_state", "begun", "unsealed")

    def __init__(
        self, disk: Disk, files: Files, state: State, keeper: Keeper, on_progress: Callable[[], None]
    ) -> None:  # fmt: skip
        self._disk = disk
        self._files = files
        self._state = state
        self._keeper = keeper
        self._on_progress = on_progress
        self.unsealed: list[Rolled] = []
        self.begun: Segment | None = None  # its file may be there, and it is none of the log's

    async def roll(self, now_ms: int, release: Callable[[], None] | None) -> None:
        """Begin a new segment. Only while appends wait. From then on `release` is called when the old one is synced."""
        state = self._state
        old, end = state.active, state.end_offset
        self.begun = Segment(state.folder, end, 0, now_ms, None)
        old.crowded = True  # rule 3
        segment, file = await self._disk.offload(lambda: create_segment(self._disk, state.folder, end, now_ms))
        self.begun = None
        self._files.put(segment.log_path, file)
        state.set_segments([*state.segments, segment])
        producers = state.producers.copy()
        if producers.transactions.since < end:
            state.outcomes.put(old, outcomes_at_end(producers.transactions))
            state.producers.transactions.aborted = Aborted()
        self.unsealed.append(Rolled(old, end, producers, release))

    async def undo(self) -> None:
        """The log will not go on where a roll that failed began: remove what it left."""
        if (begun := self.begun) is not None:
            await self._disk.offload(lambda: _remove(self._disk, begun))
            self.begun = None

    async def seal(self) -> None:
        """Make a segment that was rolled durable. Appends go on: they are in another file."""
        state = self._state
        segment, next_base, producers, release = self.unsealed[0]
        self._keeper.flush_index(segment)
        transactions = producers.transactions
        outcomes = outcomes_at_end(transactions) if transactions.since < next_base else None
        async with self._files.pinned(segment.log_path) as file:
            await self._disk.offload(lambda: _seal(self._disk, file, segment, next_base, outcomes))
        self.unsealed.pop(0)
        transactions.aborted = Aborted()  # in the segment that follows
        if release is not None:
            release()
        state.synced_offset = max(state.synced_offset, next_base)
        self._keeper.mark_synced()
        self._on_progress()
        successor = state.segment_of(next_base)
        checkpoint = self._keeper.checkpoint(successor, 0, EMPTY_MARK, next_base, producers)
        await self._keeper.save_or_leave(checkpoint, producers)

    def leave(self) -> None:
        """Seal nothing more."""
        unsealed, self.unsealed = self.unsealed, []
        for rolled in unsealed:
            if rolled.release is not None:
                rolled.release()


def _remove(disk: Disk, segment: Segment) -> None:
    remove_if_there(disk, segment.log_path)
    sync_dir(disk, segment.folder)


def _seal(disk: Disk, file: File, segment: Segment, next_base: Offset, outcomes: Outcomes | None) -> None:
    sync(file)
    if outcomes is not None:
        save_or_leave(disk, Extent(segment, segment.size, next_base), outcomes)
    assert segment.index is not None
    with suppress(OSError):
        index_file = disk.open(segment.index_path, create=True)
        try:
            seal(index_file, segment.index, segment, next_base)
        finally:
            index_file.close()
