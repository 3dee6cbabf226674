"""One partition on one disk.

Rule 1: an offset means one message for ever; a log grows at its end, and shrinks at its start, or by truncation.
Rule 2: all of it is used on the loop; what may block runs off it, one step at a time.
Rule 3: everything but the batches themselves can be lost, and is built again from them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from runnel.log.aborted import AbortedReader
from runnel.log.appending import Admit, Appended
from runnel.log.cleaning import Cleaner
from runnel.log.compaction import CompactionStats
from runnel.log.damage import Damage, described
from runnel.log.epochs import Epochs
from runnel.log.files import Files
from runnel.log.producers import Producers
from runnel.log.reader import Reader
from runnel.log.recovery import recover
from runnel.log.retention import Expired
from runnel.log.sizing import SizeReader
from runnel.log.state import State
from runnel.log.timing import Timed, TimeReader
from runnel.log.transactions import AbortedTransaction
from runnel.log.trimming import Trimmer
from runnel.log.writer import Writer
from runnel.model.errors import Corruption, Fatal, RunnelError, StorageFailed
from runnel.model.ids import Epoch, Offset
from runnel.model.seams import Buffer, Clock, Disk
from runnel.model.topic_config import TopicConfig
from runnel.record.batch import BatchHeader

if TYPE_CHECKING:
    from asyncio import Future

T = TypeVar("T")

__all__ = ["AbortedTransaction", "Appended", "Log"]


def _ignore(*_: object) -> None:
    """Nobody wants to know."""


def _raise(error: Fatal) -> None:
    raise error


class Log:
    """Batches by offset: appended at the end, read anywhere."""

    __slots__ = (
        "_aborted",
        "_cleaner",
        "_clock",
        "_disk",
        "_reader",
        "_sizes",
        "_state",
        "_times",
        "_trimmer",
        "_writer",
        "config",
        "is_new",
    )

    def __init__(
        self, disk: Disk, files: Files, state: State, config: TopicConfig, clock: Clock, writer: Writer, reader: Reader
    ) -> None:
        self._disk = disk
        self._state = state
        self._clock = clock
        self._writer = writer
        self._reader = reader
        self._aborted = AbortedReader(disk, state, writer, reader)
        self._cleaner = Cleaner(disk, files, state, writer, reader, self._aborted)
        self._times = TimeReader(disk, files, state, reader)
        self._sizes = SizeReader(disk, state, reader)
        self._trimmer = Trimmer(disk, files, state, writer, reader)
        self.config = config
        self.is_new = False  # nothing was there when it was opened: if something should have been, it is lost

    @classmethod
    async def open(
        cls, disk: Disk, folder: str, config: TopicConfig, *, clock: Clock, on_progress: Callable[[], None] = _ignore,
        on_fatal: Callable[[Fatal], None] = _raise, on_damage: Callable[[Corruption], None] = _ignore,
        files: Files | None = None,
    ) -> "Log":  # fmt: skip
        """The log in this folder, made if it is not there, recovered if the last stop was not clean.

        `on_progress` is called whenever the end or the held offset moved; `on_fatal` when the broker must end;
        `on_damage` when something turns out to be rotten later on. What the opening itself found is in `damage`.
        """
        now_ms = clock.wall_ms()
        try:
            found = await disk.offload(lambda: recover(disk, folder, config, now_ms))
        except OSError as error:
            raise StorageFailed(f"could not open {folder}: {error}. Check the disk, then try again") from error
        files = files or Files(disk)

        def found_damage(one: Corruption) -> None:
            writer.remember_damage()
            on_damage(one)

        state = State(folder, found, Damage(found_damage))
        if found.file is not None:
            files.put(state.active.log_path, found.file)
        writer = Writer(disk, files, state, config, clock, on_progress, on_fatal)
        reader = Reader(disk, files, state, writer, config.index_interval_bytes)
        await writer.keeper.opened(changed=found.scanned or not found.known, named=found.fresh)
        log = cls(disk, files, state, config, clock, writer, reader)
        log.is_new = found.fresh
        return log

    # --- where it begins and ends

    @property
    def start_offset(self) -> Offset:
        return self._state.start_offset

    @property
    def end_offset(self) -> Offset:
        """The next one to be written."""
        return self._state.end_offset

    @property
    def synced_offset(self) -> Offset:
        """Everything below survives a power loss."""
        return self._state.synced_offset

    @property
    def held_offset(self) -> Offset:
        """Everything below may be acknowledged and read: synced in flush mode commit, else written."""
        return self._writer.held_offset

    @property
    def cleaned_offset(self) -> Offset:
        """Compaction has seen what is below: of what was superseded there, nothing may be left."""
        return self._state.cleaned_offset

    @property
    def last_epoch(self) -> Epoch:
        """The leader epoch of the last batch, even if retention has removed it since; -1 if there was none."""
        return self._state.epochs.latest

    @property
    def closing(self) -> bool:
        """Whether it takes no more work: it is closed, or about to be."""
        return self._writer.closing

    @property
    def busy(self) -> bool:
        """Whether an append waits in line, or a blocking step is under way or due."""
        return self._writer.busy

    @property
    def size_bytes(self) -> int:
        return self._state.size_bytes

    @property
    def epochs(self) -> Epochs:
        return self._state.epochs

    @property
    def producers(self) -> Producers:
        return self._state.producers

    @property
    def damage(self) -> list[Corruption]:
        """What is known to be rotten or missing, by offsets and with its place. It is not served; the rest is."""
        return list(self._state.damage)

    @property
    def is_damaged(self) -> bool:
        return self._state.damage.first_offset is not None

    @property
    def is_lost(self) -> bool:
        """Whether a change of files failed half-way, and what the disk holds is not known yet: it may be less."""
        return self._state.lost

    @property
    def intact_until(self) -> Offset:
        """Everything from the start to here is whole, as far as is known; the end, if nothing is damaged."""
        first = self._state.damage.first_offset
        return self._state.end_offset if first is None else first

    def distrust_epochs_above(self, epoch: int) -> None:
        """There is no such leader epoch yet: a batch that says so is not what was written, nor is all behind it.

        The epoch of a batch lies outside its checksum.
        """
        state = self._state
        if state.epochs.latest > epoch:
            first = state.epochs.forget_above(epoch)
            if first is not None and first < state.end_offset:
                path = state.segment_of(first).log_path
                state.damage.note(described(path, 0, first, state.end_offset, gone=False))

    # --- appending and reading

    def append(
        self, batch: bytearray | memoryview, header: BatchHeader, *, leader_epoch: int, admit: Admit | None = None
    ) -> "Appended | Future[Appended]":
        """Append one checked batch, at once or, while a blocking step runs, when that ends. The buffer is patched.

        It must not be touched until then. Raises, or fails the future, with StorageFailed or what `producers` says;
        and with what `admit` says, once the batch gets its place: it is shown the producer as of then, unless the
        batch is in the log already.
        """
        return self._writer.append(batch, header, leader_epoch, admit)

    def append_as_follower(self, batches: Buffer) -> "Appended | Future[Appended]":
        """Append batches that carry their offsets and leader epochs, as `append` does; all of them, or none.

        Raises, or fails the future, with CorruptBatch if they are damaged or do not go on where this log ends.
        """
        return self._writer.append_given(batches)

    @property
    def generation(self) -> int:
        """Another one whenever something was cut off or exchanged: what was read before may not be there any more."""
        return self._reader.generation

    def read_cached(self, offset: int, bytes_max: int, upto: int) -> bytes | memoryview | None:
        """What `read` would return if that needs no disk, else None."""
        return self._reader.read_cached(offset, bytes_max, upto)

    async def read(self, offset: int, bytes_max: int, upto: int) -> bytes | memoryview:
        """Whole batches from the one with `offset` on, one at least whatever its size, and all below `upto`.

        Raises OffsetOutOfRange, or Corruption if the batch with this offset is not what was written.
        """
        return await self._reader.read(offset, bytes_max, upto)

    async def offset_by_time(self, timestamp: int) -> Timed | None:
        """(offset, timestamp, leader epoch) of the first message that is not older than `timestamp`."""
        with self._told():
            return await self._times.first_at_or_after(timestamp)

    async def offset_of_max_timestamp(self) -> Timed | None:
        """(offset, timestamp, leader epoch) of the first of the newest messages."""
        with self._told():
            newest = await self._times.max_timestamp()
            return await self._times.first_at_or_after(newest) if newest >= 0 else None

    async def bytes_before(self, offsets: Sequence[int]) -> list[int]:
        """About how many bytes of the log lie before each of these offsets."""
        with self._told():
            return await self._sizes.bytes_before(offsets)

    # --- transactions

    def first_unstable(self, upto: int) -> Offset | None:
        """Where the first transaction begins that is open, or whose marker is not below `upto`; never below the start.

        `upto` is what is known to be committed, the high watermark: what ended below it is never unstable again.
        """
        first = self._state.producers.transactions.first_unstable(upto)
        return None if first is None else Offset(max(first, self._state.start_offset))

    @property
    def has_transactions(self) -> bool:
        """Whether there ever was one in it."""
        return not self._state.producers.transactions.empty

    def aborted_cached(self, start: int, end: int) -> list[AbortedTransaction] | None:
        """What `aborted` would return if that needs no disk, else None."""
        return self._aborted.cached(start, end)

    async def aborted(self, start: int, end: int) -> list[AbortedTransaction]:
        """The aborted transactions that may have something in [start, end), in the order of their first offsets."""
        if (found := self._aborted.cached(start, end)) is not None:
            return found
        with self._told():
            return await self._aborted.between(start, end)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """What the disk refuses is said in our words."""
        try:
            yield
        except OSError as error:
            raise StorageFailed(
                f"could not work on {self._state.folder}: {error.strerror}. Check the disk, then try again"
            ) from error

    async def offload(self, work: Callable[[], T]) -> T:
        """Look through what was read of it, off the loop."""
        return await self._disk.offload(work)

    # --- getting shorter

    async def truncate(self, offset: int) -> None:
        """Remove everything from the batch with `offset` on. Below the start, the log goes on empty at `offset`.

        A crash leaves the log as it was or at least as long as asked for, always a beginning of what it was.
        """
        await self._trimmer.truncate(offset, self._clock.wall_ms())

    async def heal_from(self, offset: int) -> None:
        """Cut the log at `offset`, at most at `intact_until`, so that a leader's batches can follow.

        What is cut off is put aside, in files that are not read again. Raises StorageFailed if there is no room for it.
        """
        await self._trimmer.put_aside(min(offset, self.intact_until), self._clock.wall_ms())

    async def begin_anew(self, offset: int) -> None:
        """Remove everything; the log goes on empty at `offset`, wherever that is."""
        await self._trimmer.begin_anew(offset)

    async def advance_start(self, offset: int, upto: int | None = None) -> None:
        """Let the log begin at `offset` (DeleteRecords), at most at `upto`, the high watermark."""
        await self._trimmer.advance_start(offset, self.held_offset if upto is None else upto)

    async def enforce_retention(self, upto: int | None = None) -> Expired:
        """Remove the segments that are too old or too many, below `upto`; says which went, and why."""
        bound = self.held_offset if upto is None else upto
        with self._told():
            return await self._trimmer.enforce_retention(self.config, self._clock.wall_ms(), bound)

    async def compact(self, upto: int | None = None) -> CompactionStats | None:
        """Keep the last record of each key below `upto`; None if a pass is not worth its while yet."""
        bound = self.held_offset if upto is None else upto
        unstable = self.first_unstable(bound)
        bound = bound if unstable is None else min(bound, unstable)
        with self._told():
            return await self._cleaner.compact(self.config, self._clock.wall_ms(), bound)

    # --- keeping

    def forget_producers(self, silent_ms: int) -> int:
        """Forget the idempotent producers that wrote nothing for so long; how many that were."""
        return self._state.producers.expire(self._clock.wall_ms(), silent_ms)

    def refuse_waiting(self, error: RunnelError) -> None:
        """Fail a leader's appends that still wait in line: nothing of them is written."""
        self._writer.refuse_waiting(error)

    async def idle(self) -> None:
        """Return when no append waits in line and no blocking step is under way; at once if that is so now.

        To be used once no one appends any more: a log that is written to without a pause may never be idle.
        """
        await self._writer.idle()

    async def sync(self) -> None:
        """Return when everything appended so far survives a power loss."""
        await self._writer.alone(self._writer.sync_active)

    def reconfigure(self, config: TopicConfig) -> None:
        self.config = config
        self._writer.reconfigure(config)

    async def close(self) -> None:
        """Stop cleanly: the next opening has nothing to scan."""
        if not self._writer.closed:
            await self._writer.close()

    async def discard(self) -> None:
        """Stop without leaving anything durable: what is on the disk is about to be removed."""
        if not self._writer.closed:
            await self._writer.discard()
