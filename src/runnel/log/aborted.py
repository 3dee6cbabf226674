"""Finding the aborted transactions of a part of a log, for consumers that read what is committed."""

from runnel.log.producers import Producers
from runnel.log.recovery import replay
from runnel.log.state import State
from runnel.log.transactions import AbortedTransaction
from runnel.model.seams import Disk


class AbortedReader:
    """Looks up aborted transactions."""

    __slots__ = ("_disk", "_state")

    def __init__(self, disk: Disk, state: State) -> None:
        self._disk = disk
        self._state = state

    async def between(self, start: int, end: int) -> list[AbortedTransaction]:
        """Those that may have something in [start, end), in the order of their first offsets."""
        state = self._state
        if end <= state.producers.transactions.since:
            return []
        segments, log_end = list(state.segments), state.end_offset
        producers = Producers()
        await self._disk.offload(lambda: replay(self._disk, segments, producers, 0, log_end, 0))
        found = producers.transactions.aborted.overlapping(start, end)
        return sorted(found, key=lambda one: one.first_offset)
