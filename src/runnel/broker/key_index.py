"""Where the messages of one key are in a partition: a tail in memory, sorted runs on disk behind it.

Rule 1: the index tells of messages that are committed and not below the log's start. It follows the log on every
        replica, so that a new leader has it.
Rule 2: it is a function of the log. What it covers begins at or before the log's start and has no gap; a stretch that
        the log does not have any more in that epoch was cut off, and goes with all that follows it.
Rule 3: two keys may have one hash: who finds an offset here looks at the message's key.
Rule 4: memory holds one tail, and one entry of each page of the runs, whatever the backlog.
Rule 5: whoever waits for a key is woken when a message of it is covered; all are woken when nothing is sure any more.
"""

import asyncio
import itertools
import logging
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from crc32c import crc32c

from runnel.broker.key_waiters import KeyWaiters
from runnel.broker.messages import Messages, Stretch
from runnel.broker.standing import persist
from runnel.log import runs as files
from runnel.log.files import Files
from runnel.log.runs import Rotten, Run
from runnel.model.errors import RunnelError
from runnel.model.ids import NO_EPOCH
from runnel.model.seams import Disk
from runnel.replica.partition import Partition
from runnel.replica.readers import ENOUGH

TAIL_MAX: Final = 32_768  # messages in memory: a few megabytes, and as many are read again after a restart
FAN: Final = 8  # runs of about one size that become one
BEHIND_MAX: Final = 4 * FAN  # runs more than there need be: merging goes first then
MERGED_MAX: Final = 1 << 24  # entries of a run that is merged no further: 128 MiB on disk
RECENT_MAX: Final = 2_000  # messages that other brokers can still be told of one by one
UNKNOWN: Final = -1  # the generation of a log that was not looked at yet
PAUSE_S: Final = 1.0  # before the next try, after the disk refused

logger = logging.getLogger("runnel.keys")


def hash_of(key: bytes | None) -> int:
    return crc32c(key or b"")


class Tail:
    """The newest messages: hash -> offsets, ascending."""

    __slots__ = ("count", "end", "epoch", "first", "offsets")

    def __init__(self, first: int) -> None:
        self.first = self.end = first
        self.epoch = int(NO_EPOCH)
        self.count = 0
        self.offsets: dict[int, list[int]] = {}

    def find(self, key_hash: int, offset: int, limit: int) -> list[int]:
        offsets = self.offsets.get(key_hash)
        if offsets is None or offsets[-1] < offset:
            return []
        begin = bisect_left(offsets, offset)
        return offsets[begin : begin + limit]

    def entries(self) -> list[int]:
        """As a run has them."""
        entries: list[int] = []
        for key_hash in sorted(self.offsets):
            low = (key_hash << 32) - self.first
            entries += [low + offset for offset in self.offsets[key_hash]]
        return entries


class KeyIndex:
    """Of one partition, as long as it is open here."""

    def __init__(self, partition: Partition, folder: str, disk: Disk, opened: Files, messages: Messages) -> None:
        self.partition = partition
        self._folder = folder
        self._disk = disk
        self._files = opened
        self._messages = messages
        self._runs: list[Run] = []
        self._full: Tail | None = None  # is being written
        self._tail = Tail(0)
        self._garbage: list[Run] = []  # on the disk, and of no use
        self._generation = UNKNOWN
        self._waiters = KeyWaiters()
        self.begin, self.done = self._waiters.begin, self._waiters.done  # to wait for a message of a key; see rule 5
        self._more = asyncio.Event()
        self._recent: deque[tuple[int, int]] = deque(maxlen=RECENT_MAX)  # offset and hash of the newest
        self._recent_first = 0  # all from here on are there
        self._reached: set[asyncio.Future[None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._tidying: asyncio.Task[None] | None = None
        self._written = asyncio.Event()  # something more is on the disk, or nobody tidies up any more
        self.trouble: Exception | None = None  # why it can't follow
        self._runs_tidy = 0  # so many there were when nothing was to be merged

    @property
    def end(self) -> int:
        """Everything below is covered, as far as the log has it."""
        return self._tail.end

    def start(self) -> None:
        self.partition.watch(self, committed_only=True)
        work = persist(self._run, f"the index of {self.partition.name}", self._fail)
        self._task = asyncio.get_running_loop().create_task(work)

    async def stop(self) -> None:
        self.partition.unwatch(self)
        tasks = [task for task in (self._task, self._tidying) if task is not None]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        self.wake_all()
        for run in self._runs:
            self._files.forget(run.path)

    async def remove(self) -> None:
        """The partition was deleted: remove what is on the disk."""
        await self._disk.offload(partial(_remove, self._disk, [self._folder]))

    def grown(self, bytes_added: int) -> None:
        """There is more to read in the partition; so much more if its role changed that nobody knows how much."""
        self._more.set()
        if bytes_added >= ENOUGH:
            self.wake_all()

    # --- finding

    async def find(self, key_hash: int, offset: int, limit: int) -> tuple[list[int], int]:
        """The first offsets from `offset` on whose key may be this one, ascending; below what offset these are all."""
        while True:
            self._notice()
            generation, parts, end = self._generation, [*self._runs, self._full, self._tail], self._tail.end
            offset = max(offset, self.partition.log.start_offset)
            found: list[int] = []
            try:
                for part in parts:
                    if part is not None and len(found) < limit and part.end > offset:
                        found += await self._find_in(part, key_hash, offset, limit - len(found))
            except FileNotFoundError:
                continue  # it was merged meanwhile
            except Rotten as error:
                self._throw_away(str(error))
            self._notice()
            if generation == self._generation:
                return found, found[-1] + 1 if len(found) >= limit else end

    def find_now(self, key_hash: int, offset: int, limit: int) -> tuple[list[int], int] | None:
        """What `find` would return if the tail has it all, else None: most who ask have seen what is older."""
        self._notice()
        tail, offset = self._tail, max(offset, self.partition.log.start_offset)
        if offset < tail.first:
            return None
        found = tail.find(key_hash, offset, limit)
        return found, found[-1] + 1 if len(found) >= limit else tail.end

    def _notice(self) -> None:
        """The log may have changed otherwise than by growing."""
        if self._generation == UNKNOWN:
            return
        if self._generation != self.partition.log.generation or not self.partition.keeps(self._tail.end):
            self._settle()

    async def _find_in(self, part: "Run | Tail", key_hash: int, offset: int, limit: int) -> list[int]:
        if isinstance(part, Tail):
            return part.find(key_hash, offset, limit)
        async with self._files.pinned(part.path) as file:

            def cached(size: int, position: int) -> bytes | memoryview:
                data = file.read_cached(size, position)
                if data is None:
                    raise BlockingIOError
                return data

            try:
                return files.find(part, key_hash, offset, limit, cached)
            except BlockingIOError:
                return await self._disk.offload(lambda: files.find(part, key_hash, offset, limit, file.read))

    def progress(self) -> "asyncio.Future[None]":
        """A future that ends when more is covered, or who waits has to look again."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reached.add(future)
        future.add_done_callback(self._reached.discard)
        return future

    def hashes_since(self, offset: int) -> list[int] | None:
        """The hashes of the keys of messages from `offset` on; None if that is too long ago to be remembered."""
        recent = self._recent
        if offset < self._recent_first:
            return None
        newest = itertools.takewhile(lambda one: one[0] >= offset, reversed(recent))
        return list({key_hash for _, key_hash in newest})

    def wake_all(self) -> None:
        self._waiters.end()
        _wake(self._reached)

    # --- following the log

    async def _run(self) -> None:
        """As long as the partition is open. What the disk refuses costs time, never the truth."""
        while True:
            try:
                await self._open()
                while True:
                    await self._catch_up()
                    self.trouble = None
                    self._more.clear()
                    if self._tail.end >= self.partition.last_stable_offset:
                        await self._more.wait()
            except (RunnelError, OSError, Rotten) as error:
                self._fail(error)
                await asyncio.sleep(PAUSE_S)

    def _fail(self, error: Exception) -> None:
        self.trouble = error
        self._throw_away(str(error) or repr(error))

    async def _open(self) -> None:
        disk, folder = self._disk, self._folder
        if self._tidying is not None:
            await asyncio.wait([self._tidying])
            self._tidying = None

        def load() -> list[Run]:
            disk.make_dir(folder)
            return files.load_all(disk, folder)

        self._runs = await disk.offload(load)
        self._settle()

    async def _catch_up(self) -> None:
        partition = self.partition
        while True:
            self._notice()
            tail = self._tail
            if tail.end >= partition.last_stable_offset:
                break
            stretch = await self._messages.read(partition, tail.end)
            if stretch.end <= tail.end or stretch.generation != self._generation:
                await asyncio.sleep(0)
                continue
            self._cover(stretch)
            if self._tail.count >= TAIL_MAX or self._tail.end - self._tail.first > files.SPAN_MAX // 2:
                await self._put_away()

    def _cover(self, stretch: Stretch) -> None:
        """Take note of the messages of a stretch from the tail's end on."""
        tail, waiters = self._tail, self._waiters
        offsets, recent = tail.offsets, self._recent
        touched: set[int] = set()
        found = stretch.since(tail.end)
        for offset, _, key, _, _ in found:
            key_hash = crc32c(key or b"")
            if key_hash in offsets:
                offsets[key_hash].append(offset)
            else:
                offsets[key_hash] = [offset]
            recent.append((offset, key_hash))
            touched.add(key_hash)
        tail.count += len(found)
        if len(recent) == RECENT_MAX:
            self._recent_first = recent[0][0]
        tail.end = stretch.end
        tail.epoch = self.partition.log.epochs.epoch_of(stretch.end - 1)
        waiters.end(touched)
        _wake(self._reached)

    def _settle(self) -> None:
        """The log was opened, cut, trimmed or compacted: keep what it still has (rule 2)."""
        log = self.partition.log
        self._generation = log.generation
        kept = [run for run in self._runs if run.end > log.start_offset]
        if kept and kept[0].first > log.start_offset:
            kept = []
        while kept and not self._is_there(kept[-1].epoch, kept[-1].end):
            kept.pop()
        self._garbage += [run for run in self._runs if run not in kept]
        self._runs = kept
        self._runs_tidy = min(self._runs_tidy, len(kept))
        if self._full is not None and not self._goes_on(self._full, kept[-1:]):
            self._full = None
        before = [self._full] if self._full is not None else kept[-1:]
        if not self._goes_on(self._tail, before):
            self._begin(before[-1].end if before else log.start_offset)

    def _goes_on(self, tail: Tail, before: "Sequence[Run | Tail]") -> bool:
        """Whether a tail follows what is before it, or the start of the log, without a gap, and is still in the log."""
        begin = before[-1].end if before else self.partition.log.start_offset
        follows = tail.first == begin if before else tail.first <= begin <= tail.end
        return follows and (tail.first == tail.end or self._is_there(tail.epoch, tail.end))

    def _is_there(self, epoch: int, end: int) -> bool:
        """Whether the log still has what was covered: the same epoch at an offset means the same up to there."""
        log = self.partition.log
        return end <= log.end_offset and log.epochs.epoch_of(end - 1) == epoch

    def _throw_away(self, why: str) -> None:
        logger.warning("the index of %s is built again: %s", self.partition.name, why)
        self._garbage += self._runs
        self._runs, self._full, self._runs_tidy = [], None, 0
        self._generation = self.partition.log.generation
        self._begin(self.partition.log.start_offset)

    def _begin(self, offset: int) -> None:
        """Cover what is there from an offset on, with a new tail."""
        self._tail = Tail(offset)
        self._recent.clear()
        self._recent_first = offset
        self._more.set()
        self.wake_all()

    # --- putting away

    async def _put_away(self) -> None:
        """The tail is full: begin another one; this one becomes a run, in a thread."""
        while not self._is_tidy and (self._full is not None or len(self._runs) >= self._runs_tidy + BEHIND_MAX):
            self._written.clear()
            await self._written.wait()
        if self._tidying is not None and self._is_tidy and (error := self._tidying.exception()):
            raise error
        self._settle()  # also the log's start may have moved
        if not self._tail.count:
            return
        self._full, self._tail = self._tail, Tail(self._tail.end)
        if self._is_tidy:
            self._tidying = asyncio.get_running_loop().create_task(self._tidy())

    @property
    def _is_tidy(self) -> bool:
        """Nobody writes or removes runs."""
        return self._tidying is None or self._tidying.done()

    async def _tidy(self) -> None:
        """Write tails, merge runs, remove what is of no use, until nothing is left to do.

        Alone does so: a path that is to be removed may be that of a new one later. A tail goes before a merge, which
        may take minutes: the next tail is filled meanwhile, and who waits for messages waits for that.
        """
        merging: _Merging | None = None
        try:
            while True:
                await self._remove_garbage()
                if self._full is not None:
                    await self._write(self._full)
                elif merging is None and (some := _mergeable(self._runs)):
                    merging = _Merging(some, files.merge(self._disk, self._folder, some))
                elif merging is None:
                    self._runs_tidy = len(self._runs)
                    break
                elif (merged := await self._disk.offload(partial(files.step, merging.steps))) is not None:
                    self._replace(merging.runs, merged)
                    merging = None
                self._written.set()
        finally:
            self._written.set()

    async def _write(self, tail: Tail) -> None:
        run = await self._disk.offload(partial(_write, self._disk, self._folder, tail))
        if self._full is tail:
            self._full = None
            self._runs.append(run)
        else:
            self._garbage.append(run)  # it was cut off meanwhile

    def _replace(self, some: list[Run], merged: Run) -> None:
        at = self._runs.index(some[0]) if some[0] in self._runs else 0
        if self._runs[at : at + FAN] == some:
            self._runs[at : at + FAN] = [merged]
            self._garbage += some
        else:
            self._garbage.append(merged)

    async def _remove_garbage(self) -> None:
        paths = [run.path for run in self._garbage]
        self._garbage.clear()
        for path in paths:
            self._files.forget(path)
        await self._disk.offload(partial(_remove, self._disk, paths))


class _Merging(NamedTuple):
    runs: list[Run]
    steps: files.Steps


def _wake(waiting: "set[asyncio.Future[None]]") -> None:
    for future in list(waiting):
        if not future.done():
            future.set_result(None)


def _mergeable(runs: list[Run]) -> list[Run]:
    """The oldest runs of about one size side by side, if there are enough of them to be merged.

    The oldest, since newer ones may have come while others were merged: none is left behind between larger ones.
    """
    for some in _windows(runs):
        small, large = min(run.count for run in some), max(run.count for run in some)
        total = sum(run.count for run in some)
        if large < FAN * max(small, 1) and total <= MERGED_MAX and some[-1].end - some[0].first < files.SPAN_MAX:
            return some
    return []


def _windows(runs: list[Run]) -> Iterator[list[Run]]:
    for at in range(len(runs) - FAN + 1):
        yield runs[at : at + FAN]


def _write(disk: Disk, folder: str, tail: Tail) -> Run:
    return files.whole(files.write(disk, folder, tail.first, tail.end, tail.epoch, iter([tail.entries()])))


def _remove(disk: Disk, paths: list[str]) -> None:
    for path in paths:
        with suppress(OSError):
            disk.remove(path)
