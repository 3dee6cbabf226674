"""The one that writes a log: appends, syncs, rolls, and whatever else must not happen at the same time.

Rule 1: while a blocking step on the active segment runs off the loop, appends wait in line. When it ends, those in
        line are written with one call. Otherwise an append is written at once. So a write never meets a sync.
Rule 2: a batch that could not be written leaves nothing behind: bytes, offset and producer state are taken back. Nor
        is what stands behind it in line written: it could be the same producer's, which the log may not know yet.
Rule 3: a sync that failed is never tried again: the log is dead, and the broker ends.
Rule 4: what is acknowledged as durable was synced before; the order is write, sync, say so.
Rule 5: a log whose files are not as they should be (`lost`) is read from the disk before anything else is done.

    append --(nothing under way)--> written --(flush.mode commit)--> sync --> held_offset moves, on_progress
       |                                                              ^
       +--(a step is under way)---> line --(the step ends)--> written with one call
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import TypeVar

from runnel.log.appending import Admit, Appended, Waiting, arrived, closed, dead, refusal, uncut
from runnel.log.checkpoint import sync
from runnel.log.files import Files
from runnel.log.index import TAIL_BYTES_MAX
from runnel.log.keeper import Keeper
from runnel.log.layout import SYNCED
from runnel.log.placing import Placing
from runnel.log.recovery import recover
from runnel.log.rolling import Rolling
from runnel.log.state import State
from runnel.log.worker import Step, Worker
from runnel.model.errors import Fatal, RunnelError, StorageFailed
from runnel.model.ids import Offset
from runnel.model.seams import Buffer, Clock, Disk, File
from runnel.model.topic_config import FlushMode, TopicConfig
from runnel.record.batch import BatchHeader

T = TypeVar("T")


class Writer:
    """The end of one log."""

    __slots__ = (
        "_clock", "_config", "_cut_due", "_damage_due", "_discarded", "_disk", "_files", "_line", "_on_fatal",
        "_on_progress", "_placing", "_release_file", "_rolling", "_state", "_step_under_way", "_sync_due", "_timer",
        "_unsynced_messages", "_worker", "changing", "closed", "keeper",
    )  # fmt: skip

    def __init__(
        self, disk: Disk, files: Files, state: State, config: TopicConfig, clock: Clock,
        on_progress: Callable[[], None], on_fatal: Callable[[Fatal], None],
    ) -> None:  # fmt: skip
        self._disk = disk
        self._files = files
        self._state = state
        self._clock = clock
        self._on_progress = on_progress
        self._on_fatal = on_fatal
        self.keeper = Keeper(disk, files, state)
        self.closed = False
        self.changing: Callable[[], AbstractContextManager[None]] = nullcontext  # those who read wait meanwhile
        self._placing = Placing(state, config)
        self._config = config
        self._line: list[Waiting] = []
        self._rolling = Rolling(disk, files, state, self.keeper, on_progress)
        self._worker = Worker(self._due, self._refused, self._die)
        self._release_file: Callable[[], None] | None = None  # it has bytes that are to be synced
        self._timer: asyncio.TimerHandle | None = None
        self._step_under_way = False
        self._sync_due = False
        self._cut_due = False
        self._damage_due = False
        self._discarded = False
        self._unsynced_messages = 0

    def reconfigure(self, config: TopicConfig) -> None:
        self._config = config
        self._placing.reconfigure(config)

    @property
    def held_offset(self) -> Offset:
        return self._state.synced_offset if self._config.flush_mode is FlushMode.COMMIT else self._state.end_offset

    # --- appending

    def append(
        self, buffer: bytearray | memoryview, header: BatchHeader, leader_epoch: int, admit: Admit | None = None
    ) -> "Appended | asyncio.Future[Appended]":
        state = self._state
        end, position = state.end_offset, state.active.size
        file = self._files.get(state.active.log_path)
        now_ms = self._clock.wall_ms()
        if (
            self._step_under_way or self._line or self._cut_due or self.closed or file is None or state.lost
            or self._placing.is_full(position, header.size, end + header.last_offset_delta, now_ms)
        ):  # fmt: skip
            return self._wait_in_line(buffer, header, leader_epoch, None, admit)
        appended = self._placing.place(buffer, header, leader_epoch, end, now_ms, admit)
        if appended.duplicate:
            return appended
        try:
            file.write((buffer,), position)
        except OSError as error:
            raise self._take_back(file, error) from error
        timestamp = header.max_timestamp if appended.append_time_ms < 0 else appended.append_time_ms
        self._note(header, end, timestamp, leader_epoch)
        self._wrote()
        return appended

    def append_given(self, buffer: Buffer) -> "Appended | asyncio.Future[Appended]":
        """Append batches that carry their offsets and epochs: what a follower got from its leader."""
        given = arrived(buffer)
        position, now_ms = self._state.active.size, self._clock.wall_ms()
        file = self._files.get(self._state.active.log_path)
        if (
            self._step_under_way or self._line or self._cut_due or self.closed or file is None or self._state.lost
            or self._placing.is_full(position, len(buffer), given[-1].last_offset, now_ms)
        ):  # fmt: skip
            return self._wait_in_line(buffer, given[0], -1, given)
        appended = self._placing.place_given(buffer, given, self._state.end_offset, now_ms)
        try:
            file.write((buffer,), position)
        except OSError as error:
            raise self._take_back(file, error) from error
        self._note_given(given)
        self._wrote()
        return appended

    def _wait_in_line(
        self,
        buffer: Buffer,
        header: BatchHeader,
        leader_epoch: int,
        given: list[BatchHeader] | None,
        admit: Admit | None = None,
    ) -> "asyncio.Future[Appended]":
        self._refuse_if_over()
        future: asyncio.Future[Appended] = asyncio.get_running_loop().create_future()
        self._line.append(Waiting(buffer, header, leader_epoch, given, admit, future))
        self._worker.kick()
        return future

    def _refuse_if_over(self) -> None:
        if self._worker.fatal is not None:
            raise dead(self._state.folder, self._worker.fatal)
        if self.closed:
            raise closed(self._state.folder)

    def _note(self, header: BatchHeader, base_offset: int, timestamp: int, leader_epoch: int) -> None:
        """A batch has been written at the end of the active segment."""
        state = self._state
        active = state.active
        index = active.index
        assert index is not None
        index.note(base_offset - active.base_offset, active.size, timestamp, self._config.index_interval_bytes)
        if leader_epoch != state.epochs.latest:
            state.epochs.note(leader_epoch, base_offset)
        if base_offset != state.end_offset:
            index.gaps = True
        active.size += header.size
        state.end_offset = Offset(base_offset + header.last_offset_delta + 1)
        self._unsynced_messages += header.count

    def _note_given(self, given: list[BatchHeader]) -> None:
        for header in given:
            self._note(header, header.base_offset, header.max_timestamp, header.leader_epoch)

    def _wrote(self) -> None:
        """Something has been written: keep its producers, and see to what follows from the flush mode."""
        self._state.producers.settle()
        index = self._state.active.index
        if index is not None and len(index.tail) >= TAIL_BYTES_MAX:
            self.keeper.flush_index(self._state.active)
        mode = self._config.flush_mode
        if mode is not FlushMode.OS:
            if self._release_file is None:
                self._release_file = self._files.hold(self._state.active.log_path)
            if mode is FlushMode.COMMIT:
                self._sync_due = True
                self._worker.kick()
            else:
                self._sync_in_time()
        self._on_progress()

    def _sync_in_time(self) -> None:
        if self._unsynced_messages >= self._config.flush_messages:
            self._sync_now()
        elif self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._config.flush_ms / 1000, self._sync_now)

    def _sync_now(self) -> None:
        self._stop_timer()
        if not self.closed:
            self._sync_due = True
            self._worker.kick()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _take_back(self, file: File, error: OSError) -> StorageFailed:
        """Leave nothing of a write that failed, not even the half of it that reached the file."""
        self._state.producers.rollback(self._state.end_offset)
        self._cut_due = True
        self._cut(file)
        return refusal(file.path, error)

    def _cut(self, file: File) -> bool:
        """Cut the file to the last good byte, if that is due; whether it may be written to."""
        if self._cut_due:
            try:
                file.truncate(self._state.active.size)
            except OSError:
                return False
            self._cut_due = False
        return True

    # --- the line

    def _drain(self) -> None:
        """Write those in line with one call, as far as the segment has room."""
        file = self._files.get(self._state.active.log_path)
        if not self._line or file is None or self._state.lost:
            return
        if not self._cut(file):
            self._fail_line(uncut(file.path))
            return
        line, self._line = self._line, []
        now_ms = self._clock.wall_ms()
        end, position = self._state.end_offset, self._state.active.size
        placed: list[tuple[Waiting, Appended]] = []
        for number, waiting in enumerate(line):
            if self._placing.is_full_for(waiting, end, position, now_ms):
                self._line = line[number:]
                break
            appended = self._try_to_place(waiting, end, now_ms)
            if appended is not None:
                placed.append((waiting, appended))
                if not appended.duplicate:
                    end, position = Offset(appended.last_offset + 1), position + len(waiting.buffer)
        self._write_placed(file, placed)

    def _try_to_place(self, waiting: Waiting, end: int, now_ms: int) -> Appended | None:
        try:
            if waiting.given:
                return self._placing.place_given(waiting.buffer, waiting.given, end, now_ms)
            return self._placing.place(waiting.buffer, waiting.header, waiting.leader_epoch, end, now_ms, waiting.admit)
        except RunnelError as error:
            waiting.fail(error)
            return None

    def _write_placed(self, file: File, placed: list[tuple[Waiting, Appended]]) -> None:
        fresh = [(waiting, appended) for waiting, appended in placed if not appended.duplicate]
        if fresh:
            try:
                file.write([waiting.buffer for waiting, _ in fresh], self._state.active.size)
            except OSError as error:
                refusal = self._take_back(file, error)
                for waiting, _ in placed:
                    waiting.fail(refusal)
                self._fail_line(refusal)
                return
            for waiting, appended in fresh:
                self._note_waiting(waiting, appended)
        for waiting, appended in placed:
            waiting.succeed(appended)
        if fresh:
            self._wrote()

    def _note_waiting(self, waiting: Waiting, appended: Appended) -> None:
        if waiting.given:
            self._note_given(waiting.given)
            return
        timestamp = waiting.header.max_timestamp if appended.append_time_ms < 0 else appended.append_time_ms
        self._note(waiting.header, appended.base_offset, timestamp, waiting.leader_epoch)

    def refuse_waiting(self, error: RunnelError) -> None:
        """What a leader put in line is not to be written any more."""
        for waiting in self._line:
            if waiting.given is None:
                waiting.fail(error)
        self._line = [waiting for waiting in self._line if waiting.given is not None]

    def _fail_line(self, error: RunnelError) -> None:
        line, self._line = self._line, []
        for waiting in line:
            waiting.fail(error)

    # --- steps: one at a time

    @property
    def closing(self) -> bool:
        return self.closed or self._worker.over

    @property
    def busy(self) -> bool:
        """Whether an append waits in line, or a blocking step is under way or due."""
        return self._worker.busy or self._step_under_way or bool(self._line)

    async def idle(self) -> None:
        """Return when nothing is under way. Who keeps appending waits for ever."""
        while self.busy:
            await self._worker.rest()

    async def alone(self, job: Callable[[], Awaitable[T]]) -> T:
        """Do a job while nothing else changes the log and appends wait in line."""
        return await self._worker.run(partial(self._while_appends_wait, job))

    async def _while_appends_wait(self, job: Callable[[], Awaitable[T]]) -> T:
        with self._appends_wait():
            return await job()

    async def beside(self, job: Callable[[], Awaitable[T]]) -> T:
        """Do a job while nothing but appends changes the log."""
        return await self._worker.run(job)

    def _due(self) -> Step | None:
        if self._state.lost and not self.closed and not self._discarded:
            return self._find
        if self._rolling.unsealed and not self._discarded:
            return self._rolling.seal
        if self._worker.next_job is not None:
            return self._worker.next_job
        if self._line:
            return self._make_room
        if self._damage_due:
            return self._save_damage
        return self._sync if self._sync_due else None

    @contextmanager
    def _appends_wait(self) -> Iterator[None]:
        """A blocking step on the active segment; those in line are written when it ends."""
        self._step_under_way = True
        try:
            yield
        except Fatal as error:
            self.closed = True
            self._fail_line(dead(self._state.folder, error))
            raise
        finally:
            self._step_under_way = False
            if self.closed:
                self._fail_line(closed(self._state.folder))
            else:
                self._drain()

    async def _find(self) -> None:
        """Rule 5."""
        with self._appends_wait():
            await self.reload()

    async def _make_room(self) -> None:
        """Those in line wait for the file to be opened, or for a new segment."""
        with self._appends_wait():
            try:
                path = self._state.active.log_path
                if self._files.get(path) is None:
                    self._files.put(path, await self._disk.offload(lambda: self._disk.open(path)))
                elif self._line and self._is_full():
                    await self.roll()
            except OSError as error:
                self._fail_line(refusal(self._state.folder, error))

    def _is_full(self) -> bool:
        """Whether the first in line needs a new segment."""
        state = self._state
        return self._placing.is_full_for(self._line[0], state.end_offset, state.active.size, self._clock.wall_ms())

    async def roll(self) -> None:
        """Begin a new segment. Only while appends wait."""
        old = self._state.active
        if not old.size:
            return
        if self._cut_due:
            async with self._files.pinned(old.log_path) as old_file:
                old_file.truncate(old.size)
            self._cut_due = False
        await self._rolling.roll(self._clock.wall_ms(), self._release_file)
        self._release_file = None

    async def undo_roll(self) -> None:
        """The log is about to end before the place where a new segment was begun in vain."""
        await self._rolling.undo()

    async def _sync(self) -> None:
        """One sync for all that was written since the last one."""
        self._sync_due = False
        due = None
        with self._appends_wait():
            await self.sync_active()
            if self.keeper.is_due():
                due = self.keeper.capture()
            self._on_progress()
        if due is not None:
            await self.keeper.save_or_leave(*due)

    def remember_damage(self) -> None:
        """Something was found to be rotten: let a restart know it."""
        self._damage_due = True
        if not self.closed:
            self._worker.kick()

    async def _save_damage(self) -> None:
        self._damage_due = False
        await self.keeper.save_damage()

    async def sync_active(self) -> None:
        """Sync the active segment. Only while appends wait."""
        self._stop_timer()
        state = self._state
        if state.synced_offset < state.end_offset:
            async with self._files.pinned(state.active.log_path) as file:
                await self._disk.offload(lambda: sync(file))
            await self.keeper.keep_names()
            state.synced_offset = state.end_offset
            self.keeper.mark_synced()
            self._unsynced_messages = 0
            self._release()

    async def reload(self) -> None:
        """A change of files failed half-way: take the log as it is on the disk, now or, if that fails too, later."""
        now_ms, config = self._clock.wall_ms(), self._config
        self._state.lost = True
        self._release()
        for segment in self._state.segments:
            self._files.forget(segment.log_path)
            self._files.forget(segment.index_path)
        with self.changing():
            found = await self._disk.offload(lambda: recover(self._disk, self._state.folder, config, now_ms))
            self._state.take(found)
        self._rolling.begun = None  # it was found, or removed
        if found.file is not None:
            self._files.put(self._state.active.log_path, found.file)
        self._cut_due = False
        await self.keeper.opened(changed=True)
        self.moved()

    def moved(self) -> None:
        """The log was truncated."""
        self._sync_due = False
        self._unsynced_messages = 0
        self._release()
        self._on_progress()

    def _release(self) -> None:
        if self._release_file is not None:
            self._release_file()
            self._release_file = None

    # --- the end

    async def close(self) -> None:
        """Leave everything durable, so that the next opening has nothing to scan."""
        await self._finish(self._close)

    async def _close(self) -> None:
        if not self.closed:
            await self.sync_active()
            await self.keeper.save_or_leave(*self.keeper.capture())
            self.abandon()

    async def discard(self) -> None:
        """Stop, and sync nothing more: all of this is to be removed. Waits for what is under way at most."""
        self._discarded = True
        while not self.closed:
            with suppress(StorageFailed):  # the step before it failed, and what waited with it
                await self._finish(self._drop)

    async def _drop(self) -> None:
        if not self.closed:
            self._rolling.leave()
            self._sync_due = self._damage_due = False
            self.abandon()

    async def _finish(self, job: Callable[[], Awaitable[None]]) -> None:
        await self._worker.finish(partial(self._while_appends_wait, job), partial(closed, self._state.folder))

    def abandon(self) -> None:
        """Stop, leaving the disk as it is."""
        self.closed = True
        self._stop_timer()
        self._release()
        for segment in self._state.segments:
            self._files.forget(segment.log_path)
            self._files.forget(segment.index_path)
        self._files.forget(f"{self._state.folder}/{SYNCED}")

    def _refused(self, error: OSError) -> None:
        """A step failed, and those in line with it."""
        self._fail_line(refusal(self._state.folder, error))

    def _die(self, error: Fatal) -> None:
        self.abandon()
        self._fail_line(dead(self._state.folder, error))
        self._on_fatal(error)
