"""The index of one partition of the schedule's topic follows its log, on every replica of it.

Rule 1: the index holds what is committed, and nothing else: so it never has to take anything back.
Rule 2: one uses it at a time, off the loop, in the order in which they came, to the end even if nobody wants to know
        any more. Whoever looks up something and goes on without waiting sees nothing that a later change did.
Rule 3: an index that can't be read, was at a place that this log does not have, or missed what compaction has removed
        since, is built again from the log.
Rule 4: who leads is told of every message that comes to wait, when the index has it: also of one that nobody could say
        of whether it will be committed, when it was asked for.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

from runnel.broker.partitions import FOLDER
from runnel.broker.standing import persist
from runnel.model.errors import (
    CoordinatorLoading,
    NotCoordinator,
    OffsetOutOfRange,
    RecordUnreadable,
    RunnelError,
    as_value,
)
from runnel.model.ids import Epoch, Offset, PartitionKey
from runnel.model.limits import KIB
from runnel.model.schedule import Applied, Change, DueIndex, IndexDamaged, OpenDueIndex, Put
from runnel.model.seams import Disk
from runnel.queues.schedule_records import change_of
from runnel.record.batch import headers
from runnel.replica.partition import Partition
from runnel.replica.unreadable import Unreadable

READ_BYTES: Final = 256 * KIB  # applied at once, about 25 ms: whoever looks up something waits that long
PAUSE_S: Final = 1.0  # before a log or an index that failed is tried again

logger = logging.getLogger("runnel.schedule")
T = TypeVar("T")


class Tail:
    """Of one partition that is kept here."""

    def __init__(self, partition: Partition, open_index: OpenDueIndex, disk: Disk) -> None:
        self.partition = partition
        self._open_index = open_index
        self._path = f"{FOLDER}/{partition.key}/due.sqlite"  # it goes with the partition
        self._disk = disk
        self._index: DueIndex | None = None
        self._turn = asyncio.Lock()
        self._grown = asyncio.Event()
        self._applied = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._worker: asyncio.Task[None] | None = None
        self._stopped = False
        self.on_waiting: Callable[[Mapping[PartitionKey, int]], None] | None = None  # of each target the first new time
        self._damage: IndexDamaged | None = None  # somebody came upon it
        self.trouble: Exception | None = None  # why it can't follow

    def start(self) -> None:
        self.partition.watch(self)
        work = persist(self._work, f"the index of {self.partition.name}", self._distrust)
        self._worker = asyncio.get_running_loop().create_task(work)

    async def stop(self) -> None:
        self._stopped = True
        self.partition.unwatch(self)
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.wait([self._worker])
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(self._closed())
        self._waiting.clear()
        async with self._turn:
            if self._index is not None:
                await self._off_loop(self._index.close)
                self._index = None

    def grown(self, bytes_added: int) -> None:
        """There is more to follow."""
        self._grown.set()

    async def reached(self, offset: int) -> None:
        """Wait until the index has followed the log up to this offset."""
        if self._stopped:
            raise self._closed()
        if self._applied < offset:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((offset, future))
            self._grown.set()
            await future

    def _closed(self) -> NotCoordinator:
        return NotCoordinator(f"{self.partition.name} is not kept here any more: look for its leader")

    async def look(self, work: Callable[[DueIndex], T]) -> T:
        """Have something looked up in the index."""
        async with self._turn:
            if self._index is None:
                raise CoordinatorLoading(f"the index of {self.partition.name} is being opened: try again")
            try:
                return await self._off_loop(partial(work, self._index))
            except IndexDamaged as error:
                self._damage = as_value(error)
                self._grown.set()
                raise CoordinatorLoading(f"the index of {self.partition.name} is built again: try again") from error

    async def _off_loop(self, work: Callable[[], T]) -> T:
        """Whoever is cancelled leaves only when the work is over: the next one must not meet it."""
        job = asyncio.ensure_future(self._disk.offload(work))
        ended = False
        while not job.done():
            try:
                await asyncio.wait([job])
            except asyncio.CancelledError:
                ended = True
        if ended:
            job.exception()  # nobody wants to know
            raise asyncio.CancelledError
        return job.result()

    # --- following

    async def _work(self) -> None:
        while True:
            try:
                await self._open()
                while True:
                    self._grown.clear()
                    if self._damage is not None:
                        raise self._damage
                    if not await self._step():
                        self.trouble = None
                        await self._grown.wait()
            except IndexDamaged as error:
                self.trouble = as_value(error)
                logger.error("the index of %s is built again: %s", self.partition.name, error)
                await self._discard()
                await asyncio.sleep(PAUSE_S)
            except (RunnelError, OSError) as error:
                self.trouble = as_value(error)
                logger.warning("the index of %s can't follow, trying again: %s", self.partition.name, error)
                await asyncio.sleep(PAUSE_S)

    def _distrust(self, error: Exception) -> None:
        """Nobody knows what it holds now."""
        self._damage = self.trouble = IndexDamaged(f"following the log failed: {error!r}")

    async def _open(self) -> None:
        async with self._turn:
            applied = await self._off_loop(self._opened)
            if applied.offset >= 0 and not self._fits(applied):
                logger.info("the index of %s is built again: it does not fit its log", self.partition.name)
                await self._off_loop(self._destroyed)
                applied = await self._off_loop(self._opened)
            self._reach(max(applied.offset, 0))

    def _opened(self) -> Applied:
        if self._index is None:
            self._index = self._open_index(self._path)
        return self._index.applied()

    def _destroyed(self) -> None:
        if self._index is not None:
            self._index.destroy()
            self._index = None

    def _fits(self, applied: Applied) -> bool:
        log = self.partition.log
        if applied.offset < log.cleaned_offset or not log.start_offset <= applied.offset <= log.end_offset:
            return False
        if applied.epoch < 0:
            return True
        epoch, end = self.partition.epoch_end(Epoch(applied.epoch))
        return epoch == applied.epoch and applied.offset <= end

    async def _discard(self) -> None:
        async with self._turn:
            await self._off_loop(self._destroyed)
            self._applied = 0
            self._damage = None

    async def _step(self) -> bool:
        """Follow the log a little; whether there was anything."""
        partition = self.partition
        offset = max(self._applied, partition.log.start_offset)
        if offset >= partition.high_watermark:
            return False
        try:
            data = await partition.read(Offset(offset), READ_BYTES)
        except OffsetOutOfRange:
            return True  # it begins later now
        if not data:
            return False
        async with self._turn:
            assert self._index is not None
            work = partial(_apply, self._index, partition.unreadable, bytes(data), offset)
            end, waiting = await self._off_loop(work)
            self._reach(end)
        if waiting and self.on_waiting is not None:
            self.on_waiting(waiting)
        return True

    def _reach(self, applied: int) -> None:
        self._applied = applied
        reached = [future for offset, future in self._waiting if offset <= applied]
        self._waiting = [(offset, future) for offset, future in self._waiting if offset > applied]
        for future in reached:
            if not future.done():
                future.set_result(None)


def _apply(index: DueIndex, unreadable: Unreadable, data: bytes, start: int) -> tuple[int, dict[PartitionKey, int]]:
    """Where the log was followed to, and what waits now for each target that did not: when the first is due."""
    said: list[Change] = []
    view = memoryview(data)
    end, epoch = start, -1
    for position, header in headers(view):
        for one in unreadable.records_of(view[position : position + header.size]):
            if one.offset >= start:
                try:
                    said.append(change_of(one.offset, one.key, one.value, one.headers))
                except RecordUnreadable as problem:
                    unreadable.set_aside(problem, one.offset)
        end, epoch = header.last_offset + 1, header.leader_epoch
    index.apply(said, Applied(end, epoch))
    return end, _first_times(said)


def _first_times(said: Sequence[Change]) -> dict[PartitionKey, int]:
    times: dict[PartitionKey, int] = {}
    for change in said:
        if isinstance(change, Put):
            times[change.target] = min(change.due_ms, times.get(change.target, change.due_ms))
    return times
