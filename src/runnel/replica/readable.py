"""How far one replica of a partition can be read, and those who wait until it is further.

Rule 1: nobody but a replica reads at or above the high watermark; who wants committed transactions only, at or above
        the last stable offset. That is the first offset of the earliest transaction that is open, or whose marker is
        not committed yet; the high watermark, if there is none.
Rule 2: who waits for new messages is woken by the bound that it reads up to, a follower by the end of the log; never
        by a timer.
"""

from runnel.log.log import Log
from runnel.model.errors import OffsetOutOfRange
from runnel.model.ids import NO_OFFSET, Offset, PartitionKey
from runnel.replica.readers import ENOUGH, Readers, Watcher


class Readable:
    """A log with its bounds."""

    def __init__(self, topic: str, key: PartitionKey) -> None:
        self.topic = topic
        self.key = key
        self.log: Log
        self.high_watermark = NO_OFFSET
        self._stable = NO_OFFSET
        self._readers = Readers()
        self._committed_readers = Readers()  # those who do not want to see transactions that are open or aborted
        self._followers: dict[Watcher, None] = {}

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.key.number}"

    @property
    def last_stable_offset(self) -> Offset:
        """Up to here every transaction has ended, and that is committed. Never below the start, which may pass it."""
        return max(self._stable, self.log.start_offset)

    # --- the bounds

    def _begin_with(self, log: Log) -> None:
        """Nothing of it is known to be committed."""
        self.log = log
        self._readers, self._committed_readers = Readers(log.size_bytes), Readers(log.size_bytes)
        self._reach(log.start_offset)

    def _advance(self, high_watermark: Offset) -> None:
        """The high watermark moves on: wake whoever can read more."""
        stable, size = self._stable, self.log.size_bytes
        self._reach(high_watermark)
        self._readers.wake(size)
        if self._stable > stable:
            self._committed_readers.wake(size)

    def _reach(self, high_watermark: Offset) -> None:
        """What is committed ends here; what is stable follows from it and from the log alone."""
        self.high_watermark = high_watermark
        unstable = self.log.first_unstable(high_watermark)
        self._stable = high_watermark if unstable is None else min(high_watermark, unstable)

    def _wake_all(self) -> None:
        """What they wait for may never come: let them look."""
        self._readers.wake_all()
        self._committed_readers.wake_all()
        for watcher in list(self._followers):
            watcher.grown(ENOUGH)

    # --- reading

    def readable_until(self, *, replica: bool = False, committed_only: bool = False) -> Offset:
        if replica:
            return self.log.end_offset
        return self.last_stable_offset if committed_only else self.high_watermark

    def read_cached(
        self, offset: Offset, bytes_max: int, *, replica: bool = False, committed_only: bool = False
    ) -> bytes | memoryview | None:
        """Whole batches from `offset` on if memory has them; None if the disk must be asked."""
        until = self.readable_until(replica=replica, committed_only=committed_only)
        if offset == until:
            return b""
        self.check_readable(offset)
        return self.log.read_cached(offset, bytes_max, until) if offset < until else b""

    async def read(
        self, offset: Offset, bytes_max: int, *, replica: bool = False, committed_only: bool = False
    ) -> bytes | memoryview:
        """Whole batches from `offset` on; at least one, even if it is larger than asked."""
        self.check_readable(offset)
        until = self.readable_until(replica=replica, committed_only=committed_only)
        return await self.log.read(offset, bytes_max, until)

    def keeps(self, offset: int) -> bool:
        """Whether an offset is not below the start: what retention or trimming removed, memory must not tell either."""
        return offset >= self.log.start_offset

    def check_readable(self, offset: Offset) -> None:
        """Raise unless a log that ends at `offset` can go on with this one."""
        if not self.log.start_offset <= offset <= self.log.end_offset:
            raise OffsetOutOfRange(
                f"{self.name} has offsets {self.log.start_offset} to {self.log.end_offset}, {offset} was asked for:"
                " seek to the start or the end"
            )

    def watch(self, watcher: Watcher, *, replica: bool = False, committed_only: bool = False) -> None:
        if replica:
            self._followers[watcher] = None
        else:
            (self._committed_readers if committed_only else self._readers).add(watcher)

    def unwatch(self, watcher: Watcher) -> None:
        self._readers.remove(watcher)
        self._committed_readers.remove(watcher)
        self._followers.pop(watcher, None)
