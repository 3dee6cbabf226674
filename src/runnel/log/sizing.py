"""How many bytes lie before an offset, by what segments and their indexes say: no batch is read.

Rule 1: a size is that of the files, as they are now: what compaction took out counts for nothing.
Rule 2: sizes rise with offsets, from 0 at the start of the log to all of it at the end; offsets beyond count as these.
Rule 3: between the entries of an index nothing is known: a size may fall short by index.interval.bytes and a batch.
"""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from struct import error as StructError

from runnel.log.reader import Reader
from runnel.log.segment import Segment
from runnel.log.state import State
from runnel.model.seams import Disk


class SizeReader:
    """Measures a log."""

    __slots__ = ("_disk", "_reader", "_state")

    def __init__(self, disk: Disk, state: State, reader: Reader) -> None:
        self._disk = disk
        self._state = state
        self._reader = reader

    async def bytes_before(self, offsets: Sequence[int]) -> list[int]:
        """The bytes from the start of the log up to each of these offsets."""
        while True:
            await self._reader.settled()
            generation = self._reader.generation
            try:
                found = await self._measure(offsets)
            except (OSError, StructError):  # also if an index was exchanged under our hands
                if self._reader.stands(generation):
                    raise
                continue
            if self._reader.stands(generation):
                return found

    async def _measure(self, offsets: Sequence[int]) -> list[int]:
        start, end = self._state.start_offset, self._state.end_offset
        segments = list(self._state.segments)
        sizes = [segment.size for segment in segments]
        before = [0, *accumulate(sizes)]
        asked: dict[int, list[int]] = {}
        for offset in {start, *offsets}:
            if start <= offset < end:
                number = max(0, bisect_right(segments, offset, key=lambda segment: segment.base_offset) - 1)
                asked.setdefault(number, []).append(offset)
        places: dict[int, int] = {end: before[-1]}
        for number, some in asked.items():
            for offset, position in zip(some, await self._positions(segments[number], some), strict=True):
                places[offset] = before[number] + min(position, sizes[number])
        return [places[min(max(offset, start), end)] - places[start] for offset in offsets]

    async def _positions(self, segment: Segment, offsets: Sequence[int]) -> list[int]:
        """Where to begin looking for these offsets in their segment."""
        index = (await self._reader.index_of(segment)).frozen()
        async with self._reader.entries_of(segment, index) as read_index:
            return await self._disk.offload(
                lambda: [index.position_of(offset - segment.base_offset, read_index)[1] for offset in offsets]
            )
