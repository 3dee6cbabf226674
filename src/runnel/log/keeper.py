"""Keeps the checkpoint, the snapshots and the files beside the active segment up to date on disk.

Rule 1: without a newer checkpoint there is only more to scan after a crash: what the disk refuses is no failure.
Rule 2: nothing is said to be synced before the folder was synced, since the log was opened. Who was killed, or could
        not sync, may have left files whose names a power loss takes back.
"""

from contextlib import suppress

import msgspec

from runnel.log import checkpoint as checkpoints
from runnel.log import mark
from runnel.log.checkpoint import Checkpoint, IndexMark, sync_dir
from runnel.log.damage import entries_of
from runnel.log.files import Files
from runnel.log.index import Index
from runnel.log.layout import SYNCED
from runnel.log.outcomes import outcomes_at_end
from runnel.log.outcomes import save as save_outcomes
from runnel.log.producers import Producers
from runnel.log.segment import Segment
from runnel.log.snapshots import is_worth_saving, save_snapshot
from runnel.log.state import State
from runnel.model.ids import Offset
from runnel.model.limits import MIB
from runnel.model.seams import Disk, File

CHECKPOINT_BYTES = 64 * MIB  # what a crash may leave to scan in a log that is synced
EMPTY_MARK = Index().mark()


class Keeper:
    """Writes down what a log knows of itself."""

    __slots__ = ("_disk", "_files", "_named", "_saved", "_state")

    def __init__(self, disk: Disk, files: Files, state: State) -> None:
        self._disk = disk
        self._files = files
        self._state = state
        self._saved: Checkpoint | None = None
        self._named = False  # the folder was synced since the log was opened

    async def opened(self, *, changed: bool, named: bool = False) -> None:
        """Keep what recovery found out, so that a crash does not make it do the same again."""
        self._named = named
        checkpoint, producers = self.capture()
        if changed:
            await self.save_or_leave(checkpoint, producers)
            await self.keep_names()
        else:
            self._saved = checkpoint

    async def keep_names(self) -> None:
        """Rule 2."""
        if not self._named:
            await self._disk.offload(lambda: sync_dir(self._disk, self._state.folder))
            self._named = True

    @property
    def recovery_base(self) -> int:
        """Segments below this one are no concern of a recovery."""
        return self._saved.segment if self._saved is not None else 0

    def is_due(self) -> bool:
        """Whether a crash would leave much to scan that is synced."""
        saved, active = self._saved, self._state.active
        return saved is None or saved.segment != active.base_offset or active.size - saved.position >= CHECKPOINT_BYTES

    def capture(self) -> tuple[Checkpoint, Producers]:
        """What a checkpoint says now. Only while appends wait and all is synced."""
        state = self._state
        self.flush_index(state.active)
        assert state.active.index is not None
        producers = state.producers.copy()
        index = state.active.index.mark()
        return self.checkpoint(state.active, state.active.size, index, state.end_offset, producers), producers

    def checkpoint(
        self, segment: Segment, position: int, index: IndexMark, end: Offset, producers: Producers
    ) -> Checkpoint:
        """With this recovery point."""
        state = self._state
        return Checkpoint(
            start_offset=state.start_offset,
            recovery_offset=end, segment=segment.base_offset, position=position,
            created_ms=segment.created_ms, snapshot=is_worth_saving(producers), cleaned_offset=state.cleaned_offset,
            index=index, epochs=state.epochs.entries(), cuts=state.cuts, damage=entries_of(list(state.damage)),
        )  # fmt: skip

    async def save(self, checkpoint: Checkpoint, producers: Producers | None = None, *, always: bool = False) -> None:
        """Make a checkpoint durable; nothing is written if it says what the last one said."""
        if always or checkpoint != self._saved:
            await self._disk.offload(lambda: _save(self._disk, self._state.folder, checkpoint, producers))
            self._saved = checkpoint
            self._named = True

    async def save_or_leave(self, checkpoint: Checkpoint, producers: Producers, *, always: bool = False) -> None:
        """Rule 1."""
        with suppress(OSError):
            await self.save(checkpoint, producers, always=always)

    async def save_start(self, start_offset: Offset, cleaned_offset: Offset) -> None:
        """Make a new start durable; the recovery point stays."""
        last = self._saved or self._earliest()
        await self.save(
            msgspec.structs.replace(last, start_offset=start_offset, cleaned_offset=max(cleaned_offset, start_offset))
        )

    async def lower_recovery_point(self, segment: Segment, position: int, index: IndexMark, end_offset: Offset) -> None:
        """Before the log is cut to `end_offset` in this segment: let a crash find nothing trusted beyond."""
        last, state = self._saved or self._earliest(), self._state
        if last.recovery_offset > end_offset or state.synced_offset > end_offset:
            recovery_offset = min(last.recovery_offset, end_offset)
            lower = msgspec.structs.replace(last, cuts=state.cuts + 1)
            if last.recovery_offset > end_offset:
                lower = msgspec.structs.replace(
                    lower, recovery_offset=recovery_offset, segment=segment.base_offset, position=position,
                    created_ms=segment.created_ms, index=index,
                )  # fmt: skip
            await self.save(lower)
            state.cuts += 1

    async def decide_to_begin(self, offset: Offset, *, aside: bool) -> None:
        """Whatever is in the log goes, or is put aside; it begins at `offset`. Recovery does that."""
        decision = Checkpoint(
            start_offset=offset, recovery_offset=offset, segment=offset, position=0, created_ms=0, snapshot=False,
            cleaned_offset=offset, index=EMPTY_MARK, epochs=[], cuts=self._state.cuts + 1,
            anew="aside" if aside else "removed",
        )  # fmt: skip
        await self.save(decision)

    def _earliest(self) -> Checkpoint:
        first = self._state.segments[0]
        return self.checkpoint(first, 0, EMPTY_MARK, first.base_offset, Producers())

    async def save_damage(self) -> None:
        """Remember what was found to be rotten, and which epochs there were not; the recovery point stays."""
        if self._saved is not None:
            found, epochs = entries_of(list(self._state.damage)), self._state.epochs.entries()
            with suppress(OSError):
                await self.save(msgspec.structs.replace(self._saved, damage=found, epochs=epochs))

    def flush_index(self, segment: Segment) -> None:
        """Move the tail of an index to its file; if the disk refuses, it stays in memory for now."""
        index = segment.index
        if index is None or not index.tail:
            return
        with suppress(OSError):
            index.flush(self._opened(segment.index_path))

    def mark_synced(self) -> None:
        """Say how far the log is synced. If the disk refuses, less is known after a crash."""
        with suppress(OSError):
            state = self._state
            path = f"{state.folder}/{SYNCED}"
            epoch, since = state.epochs.entry_of(state.synced_offset - 1)
            self._opened(path).write((mark.encode(state.cuts, state.synced_offset, epoch, since),), 0)
            if self._files.crowded:
                self._files.forget(path)

    def _opened(self, path: str) -> File:
        file = self._files.get(path)
        if file is None:
            file = self._disk.open(path, create=True)
            self._files.put(path, file)
        return file


def _save(disk: Disk, folder: str, checkpoint: Checkpoint, producers: Producers | None) -> None:
    if producers is not None and is_worth_saving(producers):
        end = checkpoint.recovery_offset
        if producers.transactions.since < end:
            found = outcomes_at_end(producers.transactions)
            with suppress(OSError):  # it is built again
                save_outcomes(disk, folder, checkpoint.segment, checkpoint.position, end, found, durable=True)
        save_snapshot(disk, folder, end, producers)
    checkpoints.save(disk, folder, checkpoint)
