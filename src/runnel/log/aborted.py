"""Finding the aborted transactions of a part of a log, for consumers that read what is committed.

Rule 1: an aborted transaction is found by the segment of its marker, which may lie behind the part that is asked for.
        One looks on until nothing that was open began within that part.
Rule 2: a log in which there never was a transaction answers at once.
Rule 3: what was looked up while files were cut or exchanged does not count: it is looked up again.
"""

import asyncio

from runnel.log.outcomes import Extent, Outcomes, load_or_build, save_or_leave
from runnel.log.reader import Reader
from runnel.log.segment import Segment
from runnel.log.state import State
from runnel.log.transactions import Aborted, AbortedTransaction
from runnel.log.writer import Writer
from runnel.model.seams import Disk


class AbortedReader:
    """Looks up aborted transactions."""

    __slots__ = ("_disk", "_loading", "_reader", "_state", "_writer")

    def __init__(self, disk: Disk, state: State, writer: Writer, reader: Reader) -> None:
        self._disk = disk
        self._state = state
        self._writer = writer
        self._reader = reader
        self._loading: asyncio.Lock | None = None

    def cached(self, start: int, end: int) -> list[AbortedTransaction] | None:
        """What `between` would return if that needs no disk, else None."""
        if end <= self._state.producers.transactions.since:
            return []
        found, missing = self._visit(start, end, {})
        return None if missing is not None else _told(found, start, end)

    async def between(self, start: int, end: int) -> list[AbortedTransaction]:
        """Those that may have something in [start, end), in the order of their first offsets."""
        return _told(await self._lists(start, end), start, end)

    async def ranges(self, start: int, end: int) -> list[tuple[int, int, int]]:
        """The same with producer id, first offset and offset of the marker."""
        return [one for aborted in await self._lists(start, end) for one in aborted if one[2] >= start and one[1] < end]

    async def opened_before(self, segment: Segment) -> list[tuple[int, int]]:
        """Producer id and first offset of the transactions that were open where a segment begins, if it is there."""
        state = self._state
        while segment in state.segments[1:] and segment.base_offset > state.producers.transactions.since:
            before = state.segments[state.segments.index(segment) - 1]
            outcomes = state.outcomes.get(before) or await self._load(before)
            if outcomes is not None:
                return list(outcomes.opened)
        return []

    async def _lists(self, start: int, end: int) -> list[Aborted]:
        loaded: dict[Segment, Outcomes] = {}
        generation = self._reader.generation
        while True:
            if generation != self._reader.generation:
                loaded.clear()
                generation = self._reader.generation
            found, missing = self._visit(start, end, loaded)
            if missing is None:
                return found
            outcomes = await self._load(missing)
            if outcomes is not None:
                loaded[missing] = outcomes

    def _visit(self, start: int, end: int, loaded: dict[Segment, Outcomes]) -> tuple[list[Aborted], Segment | None]:
        """The lists in which they are, as far as the first segment of which nothing is known."""
        state, transactions = self._state, self._state.producers.transactions
        found: list[Aborted] = []
        if end <= transactions.since:
            return [], None
        segment = state.segment_of(max(start, transactions.since))
        while segment is not state.active:
            outcomes = state.outcomes.get(segment) or loaded.get(segment)
            if outcomes is None:
                return found, segment
            found.append(outcomes.aborted)
            next_offset = state.end_of(segment)
            if next_offset >= end and outcomes.unstable >= end:
                return found, None
            segment = state.segment_of(next_offset)
        return [*found, transactions.aborted], None

    async def _load(self, segment: Segment) -> Outcomes | None:
        """The outcomes of a sealed segment; None if that is not there any more, or changed meanwhile."""
        state, generation = self._state, self._reader.generation
        if self._loading is None:
            self._loading = asyncio.Lock()
        async with self._loading:
            if state.outcomes.get(segment) is not None or segment not in state.segments:
                return state.outcomes.get(segment)
            extents = self._extents(segment)
            since = state.producers.transactions.since
            try:
                found = await self._disk.offload(lambda: load_or_build(self._disk, extents, since))
            except OSError:
                if segment in state.segments and self._reader.stands(generation):
                    raise
                found = []
            if not found or segment not in state.segments or not self._reader.stands(generation):
                await self._writer.beside(_rest)  # until the change is done
                return None
            for extent, outcomes in zip(reversed(extents), reversed(found[1:]), strict=False):
                await self._save(extent, outcomes, generation)
            state.outcomes.put(segment, found[-1])
            return found[-1]

    def _extents(self, last: Segment) -> list[Extent]:
        state = self._state
        segments = state.segments[: state.segments.index(last) + 1]
        return [Extent(segment, segment.size, state.end_of(segment)) for segment in segments]

    async def _save(self, extent: Extent, outcomes: Outcomes, generation: int) -> None:
        """Write down what had to be built, while nothing cuts or exchanges the segment."""

        async def job() -> None:
            if extent.segment in self._state.segments and self._reader.stands(generation):
                await self._disk.offload(lambda: save_or_leave(self._disk, extent, outcomes))

        await self._writer.beside(job)


async def _rest() -> None:
    """Nothing is to be done."""


def _told(found: list[Aborted], start: int, end: int) -> list[AbortedTransaction]:
    told = [one for aborted in found for one in aborted.overlapping(start, end)]
    return sorted(told, key=lambda one: one.first_offset)
