"""What is known of the names in one partition's log: from memory, or else by a look into the log.

Rule 1: a look reads for itself all that memory did not have when it was asked: what others have learned since, it did
        not ask for.
Rule 2: looking is done off the loop, and what it finds is kept in memory, as far as the partition's share reaches.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, NamedTuple

from runnel.model.limits import MIB
from runnel.model.once import WINDOW, OnceMessage
from runnel.model.seams import Clock
from runnel.record.batch import next_offset
from runnel.record.names import named
from runnel.replica.names import Names, Place
from runnel.replica.partition import Partition
from runnel.replica.unreadable import Unreadable

SCAN_BYTES: Final = MIB
WINDOW_MS: Final = 10 * 60_000  # of topics without dedup.window.ms


class Share(NamedTuple):
    """How much one partition may have in memory."""

    names: int  # with their places
    page_bytes: int  # for those before


NOTHING: Final = Share(0, 0)


class KnownNames:
    """Of one partition, in one leader epoch."""

    def __init__(self, partition: Partition, clock: Clock, share: Callable[[], Share]) -> None:
        self.names = Names(partition.log.end_offset)
        self._partition = partition
        self._clock = clock
        self._share = share
        self._has_window = False  # the window by time is known, or as much of it as memory may hold

    def trim(self) -> None:
        """Forget what is beyond this partition's share of memory, or older than any window."""
        self.names.trim(*self._share(), self._clock.wall_ms() - self._window_ms)

    @property
    def _window_ms(self) -> int:
        return self._partition.config.dedup_window_ms or WINDOW_MS

    def knows(self, message: OnceMessage) -> bool:
        """Whether memory says for certain that there is none of this name, if it did not find one."""
        return self._covers(message) and not self.names.suspects(message.id, lowest(message))

    def _covers(self, message: OnceMessage) -> bool:
        """Whether memory has every name that counts for this one, in one way or the other."""
        if lowest(message) == WINDOW and not self._has_window:
            return False
        return message.floor == WINDOW or self.names.knows(max(message.floor, self._partition.log.start_offset))

    # --- looking into the log

    async def look_up(self, unknown: Sequence[OnceMessage]) -> dict[str, Place]:
        """Where messages of these names lie, also of those that memory may not have."""
        until, ids = self.names.covered, [message.id for message in unknown]
        found = {id: place for id in ids if (place := self.names.find(id, WINDOW)) is not None}
        suspects = [(id, *stretch) for id in ids for stretch in self.names.suspects(id, 0)]
        before = [message for message in unknown if not self._covers(message)]
        return await self._look_before(before, until) | await self._suspected(suspects) | found

    async def look_for(self, ids: Iterable[str]) -> dict[str, Place]:
        """Those of the window that memory suspects, and that are in the log."""
        while not self._has_window:
            await self._learn_window()
        return await self._suspected([(id, *stretch) for id in ids for stretch in self.names.suspects(id, 0)])

    async def _look_before(self, before: Sequence[OnceMessage], until: int) -> dict[str, Place]:
        """Those that lie in the log before what memory has."""
        if not before:
            return {}
        windowed = any(lowest(message) == WINDOW for message in before)
        start = await self._start_of(before)
        return await self._learn({message.id for message in before}, start, until, windowed)

    async def _suspected(self, suspects: Iterable[tuple[str, int, int]]) -> dict[str, Place]:
        """Those that lie in the log where they may lie, as far as memory says; of several the last."""
        hits: dict[str, Place] = {}
        for id, first, end in suspects:
            look = _Look({id}, self._partition.unreadable)
            await self._scan(look, first, end)
            hits.update(look.hits)
        return hits

    async def _learn_window(self) -> None:
        start = await self._start_of_window()
        await self._learn(set(), start, self.names.covered, True)

    async def _learn(self, wanted: set[str], start: int, until: int, is_window: bool) -> dict[str, Place]:
        """Look into the log before what memory has, and keep the names in it; those that are wanted."""
        look = _Look(wanted, self._partition.unreadable, Names(start), self._share())
        await self._scan(look, start, until)
        assert look.names is not None
        if self.names.covered == until:
            self.names.extend(look.names)
        if is_window and (self.names.covered <= start or self.names.covered >= until or look.names.covered > start):
            self._has_window = True
        return look.hits

    async def _start_of(self, unknown: Sequence[OnceMessage]) -> int:
        floors = [message.floor for message in unknown if message.floor != WINDOW]
        if any(lowest(message) == WINDOW for message in unknown):
            floors.append(await self._start_of_window())
        return max(min(floors), self._partition.log.start_offset)

    async def _start_of_window(self) -> int:
        log = self._partition.log
        first = await log.offset_by_time(self._clock.wall_ms() - self._window_ms)
        return max(self.names.covered if first is None else first.offset, log.start_offset)

    async def _scan(self, look: "_Look", start: int, until: int) -> None:
        log = self._partition.log
        offset = start
        while offset < until:
            offset = max(offset, log.start_offset)
            data = await log.read(offset, SCAN_BYTES, log.end_offset)
            if not data:
                return
            offset = await log.offload(partial(look.into, data, offset, until))


class _Look:
    """What a look into the log found: the wanted names, and all of them, if they are to be kept."""

    def __init__(
        self, wanted: set[str], unreadable: Unreadable, names: Names | None = None, share: Share = NOTHING
    ) -> None:
        self._wanted = wanted
        self._unreadable = unreadable
        self._share = share
        self.names = names
        self.hits: dict[str, Place] = {}

    def into(self, data: bytes | memoryview, start: int, until: int) -> int:
        """Look at whole batches; where they end. Not on the loop."""
        for one in named(data, self._unreadable.pass_over, start):
            if one.offset >= until:
                break
            place = Place(one.offset, one.timestamp_ms)
            if self.names is not None:
                self.names.note(one.id, place)
            if one.id in self._wanted:
                self.hits[one.id] = place
        if self.names is not None:
            self.names.trim(*self._share, -1)
        return next_offset(data)


def lowest(message: OnceMessage) -> int:
    """From where on one of its name counts, as far as is known of it; with a window, wherever it was found."""
    return WINDOW if message.in_window else message.floor
