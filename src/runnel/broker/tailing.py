"""Following a topic: the messages of all its partitions as they come, from a place on, wherever they are led.

Rule 1: who follows pulls: nothing is read ahead but one small part of each partition. A slow follower is behind, and
        costs no memory.
Rule 2: after each part, `positions` says where to go on: whoever begins there misses nothing and sees nothing twice.
Rule 3: a wait at another broker takes one of few lanes to it (`calls`): who follows many partitions looks at them again
        and again instead.
Rule 4: what retention removed before it was read is passed over; `skipped` counts it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import TracebackType
from typing import Final, NamedTuple, Self

from runnel.broker.fetch import Waits
from runnel.model.calls import Read
from runnel.model.errors import ClientError, InvalidRequest, OffsetOutOfRange, RetriableError, RunnelError
from runnel.model.ids import TopicId
from runnel.model.limits import KIB
from runnel.model.reading import END, START, Reading, ReadPartition

PARTITIONS_MAX: Final = 1_000  # followed at once by one
PART_MESSAGES, PART_BYTES = 200, 64 * KIB
WAIT_MS: Final = 5_000
WAITING_MAX: Final = 4  # partitions that are waited for: a wait at another broker takes one of its few lanes
LOOK_S: Final = 0.1  # between two looks at each of more partitions than that
PAUSE_S: Final = 0.25


class Part(NamedTuple):
    """What one partition gave."""

    partition: int
    messages: Sequence[Read]
    next_offset: int


class Tail:
    """Used as a block: it ends with it."""

    def __init__(
        self, read: Callable[[ReadPartition, Waits], Awaitable[Reading]], topic_id: TopicId, begin: Mapping[int, int],
        waits: Waits, *, filter: str = "", time_ms: int = -1,
    ) -> None:  # fmt: skip
        if len(begin) > PARTITIONS_MAX:
            raise InvalidRequest(f"{len(begin)} partitions can't be followed at once: name {PARTITIONS_MAX} at most")
        self._read = read
        self._topic_id = topic_id
        self._waits = waits
        self._filter = filter
        self._time_ms = time_ms
        self._parts: asyncio.Queue[Part | RunnelError] = asyncio.Queue(1)
        self._tasks: list[asyncio.Task[None]] = []
        self.positions = dict(begin)  # by partition: where to go on
        self.skipped = 0

    async def __aenter__(self) -> Self:
        await asyncio.gather(*[self._settle(number) for number in self.positions])
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._follow(number)) for number in self.positions]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def next(self, timeout_s: float) -> Part | None:
        """The next part; None if there is none within this time, or than the follower is there. Raises what ends it."""
        part = await self._waits.within(timeout_s, self._parts.get())
        if isinstance(part, RunnelError):
            raise part
        if part is None:
            return None
        self.positions[part.partition] = part.next_offset
        return part

    async def _settle(self, number: int) -> None:
        """Find out where to begin, where that is the start, the end, or a time."""
        if self.positions[number] >= 0 and self._time_ms < 0:
            return
        asked = ReadPartition(self._topic_id, number, self.positions[number], self._time_ms, 1, 1)
        found = await self._read(asked, self._waits)
        place = found.messages[0].offset if found.messages else found.next_offset
        self.positions[number] = found.start_offset if self._begins_at_start(number) else place

    def _begins_at_start(self, number: int) -> bool:
        return self._time_ms < 0 and self.positions[number] == START

    async def _follow(self, number: int) -> None:
        position = self.positions[number]
        while not self._waits.over:
            wait_ms = WAIT_MS if len(self.positions) <= WAITING_MAX else 0
            asked = ReadPartition(
                self._topic_id, number, position, -1, PART_MESSAGES, PART_BYTES, wait_ms, self._filter
            )
            try:
                found = await self._read(asked, self._waits)
            except OffsetOutOfRange:
                position = await self._skip(number, position)
                continue
            except RetriableError:
                await asyncio.sleep(PAUSE_S)
                continue
            except ClientError as error:
                await self._parts.put(error)
                return
            if found.messages:
                await self._parts.put(Part(number, found.messages, found.next_offset))
            elif found.next_offset == position:
                await asyncio.sleep(0 if wait_ms else LOOK_S)
            position = found.next_offset

    async def _skip(self, number: int, position: int) -> int:
        """Go on at the start if that has moved beyond; else at the end: what was there is gone."""
        found = await self._read(ReadPartition(self._topic_id, number, END, -1, 1, 1), self._waits)
        place = found.start_offset if position < found.start_offset else found.end_offset
        self.skipped += max(0, place - position)
        return place
