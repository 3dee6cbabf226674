"""One partition that this broker leads: the log, the high watermark, and those who wait for it.

Rule 1: nobody reads at or above the high watermark.
Rule 2: acks=all is answered when the high watermark has passed the batch; a duplicate waits for its original.
Rule 3: who waits for new messages is woken by the high watermark, never by a timer.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from runnel.log.files import Files
from runnel.log.log import Appended, Log
from runnel.model.errors import OffsetOutOfRange, RequestTimedOut
from runnel.model.ids import BrokerId, Epoch, Offset, PartitionKey
from runnel.model.seams import Clock, Disk
from runnel.model.topic_config import TopicConfig
from runnel.record.batch import BatchHeader
from runnel.replica.progress import Progress


class Watcher(Protocol):
    """Who waits until there is more to read."""

    def grown(self, bytes_added: int) -> None: ...


class Partition:
    """The leader's side of one partition."""

    def __init__(self, topic: str, key: PartitionKey, config: TopicConfig, me: BrokerId, leader_epoch: Epoch) -> None:
        self.topic = topic
        self.key = key
        self.config = config
        self.leader_epoch = leader_epoch
        self._me = me
        self._commits: deque[tuple[Offset, asyncio.Future[None]]] = deque()
        self._watchers: dict[Watcher, None] = {}  # first come, first served
        self._bytes_seen = 0
        self.log: Log
        self.progress: Progress

    @classmethod
    async def open(
        cls, topic: str, key: PartitionKey, path: str, config: TopicConfig, *,
        me: BrokerId, leader_epoch: Epoch, disk: Disk, clock: Clock, on_fatal: Callable[[BaseException], None],
        files: Files | None = None,
    ) -> "Partition":  # fmt: skip
        """Open the log, recovering it if need be; what it holds is readable at once."""
        partition = cls(topic, key, config, me, leader_epoch)
        partition.log = log = await Log.open(
            disk, path, config, clock=clock, on_progress=partition._log_moved, on_fatal=on_fatal, files=files
        )
        partition.progress = Progress([me], log.held_offset)
        partition._bytes_seen = log.size_bytes
        return partition

    async def close(self) -> None:
        """Stop: what waits for the log learns that it will not come."""
        self.fail_waiters(RequestTimedOut(f"{self.name} is closing: send again to its next leader"))
        await self.log.close()

    def reconfigure(self, config: TopicConfig) -> None:
        if config != self.config:
            self.config = config
            self.log.reconfigure(config)

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.key.number}"

    @property
    def high_watermark(self) -> Offset:
        return self.progress.high_watermark

    @property
    def last_stable_offset(self) -> Offset:
        """Up to here no transaction is open. There are none yet, so it is the high watermark."""
        return self.progress.high_watermark

    # --- appending

    def append(self, batch: memoryview, header: BatchHeader) -> "Appended | asyncio.Future[Appended]":
        """Append one checked batch; its future, if it has to wait in line, ends when it is written."""
        return self.log.append(batch, header, leader_epoch=self.leader_epoch)

    def committed(self, end: Offset, timeout_s: float) -> "asyncio.Future[None] | None":
        """None if everything below `end` is committed, else a future that says when, or RequestTimedOut."""
        if end <= self.progress.high_watermark:
            return None
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(timeout_s, self._commit_timed_out, future, end, timeout_s)
        future.add_done_callback(lambda _: timer.cancel())
        self._insert_commit(end, future)
        return future

    def _insert_commit(self, end: Offset, future: "asyncio.Future[None]") -> None:
        waiting = self._commits
        if not waiting or waiting[-1][0] <= end:
            waiting.append((end, future))
            return
        # A duplicate waits for an offset in the past: rare, so a linear search for its place is fine.
        place = next(i for i, (other, _) in enumerate(waiting) if other > end)
        waiting.insert(place, (end, future))

    def _commit_timed_out(self, future: "asyncio.Future[None]", end: Offset, timeout_s: float) -> None:
        if not future.done():
            future.set_exception(
                RequestTimedOut(
                    f"{self.name}: offset {end - 1} was written but not committed within {timeout_s:g} s:"
                    " it may still be; an idempotent producer can send it again without doubling it"
                )
            )

    def fail_waiters(self, error: Exception) -> None:
        for _, future in self._commits:
            if not future.done():
                future.set_exception(error)
        self._commits.clear()

    def _log_moved(self) -> None:
        """The log wrote or synced: move the high watermark, and wake those who waited for it."""
        if not self.progress.advance(self._me, self.log.held_offset):
            return
        reached = self.progress.high_watermark
        waiting = self._commits
        while waiting and waiting[0][0] <= reached:
            future = waiting.popleft()[1]
            if not future.done():
                future.set_result(None)
        size = self.log.size_bytes
        # At least one: retention may have made the log smaller meanwhile.
        grown, self._bytes_seen = max(size - self._bytes_seen, 1), size
        for watcher in list(self._watchers):
            watcher.grown(grown)

    # --- reading

    def read_cached(self, offset: Offset, bytes_max: int) -> bytes | memoryview | None:
        """Whole batches from `offset` to the high watermark if memory has them; None if the disk must be asked."""
        if offset == self.progress.high_watermark:
            return b""
        self._check_readable(offset)
        return self.log.read_cached(offset, bytes_max, self.progress.high_watermark)

    async def read(self, offset: Offset, bytes_max: int) -> bytes | memoryview:
        """Whole batches from `offset` to the high watermark; at least one, even if it is larger than asked."""
        self._check_readable(offset)
        return await self.log.read(offset, bytes_max, self.progress.high_watermark)

    def _check_readable(self, offset: Offset) -> None:
        if not self.log.start_offset <= offset <= self.log.end_offset:
            raise OffsetOutOfRange(
                f"{self.name} has offsets {self.log.start_offset} to {self.log.end_offset}, {offset} was asked for:"
                " seek to the start or the end"
            )

    def epoch_end(self, epoch: Epoch) -> tuple[Epoch, Offset]:
        """The largest epoch not above the one asked for, and where it ends (KIP-101); -1 and -1 if there is none."""
        if epoch == self.leader_epoch:
            return epoch, self.log.end_offset
        return self.log.epochs.end_offset(epoch)

    def watch(self, watcher: Watcher) -> None:
        self._watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self._watchers.pop(watcher, None)
