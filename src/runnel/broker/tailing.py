"""Following a topic: the messages of all its partitions as they come, from a place on, wherever they are led.

Rule 1: who follows pulls: nothing is read ahead but one small part of each partition. A slow follower is behind, and
        costs no memory.
Rule 2: after each part, `positions` says where to go on: whoever begins there misses nothing and sees nothing twice.
Rule 3: a wait at another broker takes one of few lanes to it (`calls`): who follows many partitions looks at them again
        and again instead.
Rule 4: what retention removed before it was read is passed over; `skipped` counts it.
Rule 5: who follows all partitions follows those that are added, from their start; who follows a topic learns that it is
        gone. One that was created anew under its name is another topic.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self

from runnel.broker.fetch import Waits
from runnel.broker.internal import refuse_reading
from runnel.cluster.image import Image
from runnel.model.calls import Read
from runnel.model.errors import (
    ClientError,
    InvalidRequest,
    OffsetOutOfRange,
    RequestTimedOut,
    RetriableError,
    RunnelError,
    TopicGone,
    ViewSourceGone,
    as_value,
)
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


class Source(Protocol):
    """A broker, as far as it is needed to follow a topic."""

    @property
    def image(self) -> Image: ...

    async def until(self, holds: Callable[[Image], bool]) -> None: ...

    @property
    def read(self) -> Callable[[ReadPartition, Waits], Awaitable[Reading]]: ...


class Tail:
    """Used as a block: it ends with it. `grows`: it is to follow partitions that are added."""

    def __init__(
        self, source: Source, topic_id: TopicId, begin: Mapping[int, int], waits: Waits, *,
        filter: str = "", time_ms: int = -1, grows: bool = False,
    ) -> None:  # fmt: skip
        _check_count(len(begin))
        self._source = source
        self._topic = source.image.topic_with_id(topic_id)
        refuse_reading(self._topic.name)
        self._count = _partitions(source.image, topic_id)
        self._read = source.read
        self._grows = grows
        self._waits = waits
        self._filter = filter
        self._time_ms = time_ms
        self._parts: asyncio.Queue[Part | RunnelError] = asyncio.Queue(1)
        self._tasks: list[asyncio.Task[None]] = []
        self.positions = dict(begin)  # by partition: where to go on
        self.skipped = 0

    async def __aenter__(self) -> Self:
        await asyncio.gather(*[self._settle(number) for number in self.positions])
        for number, position in self.positions.items():
            self._begin(self._follow(number, position))
        self._begin(self._watch())
        return self

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))

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
        asked = ReadPartition(self._topic.id, number, self.positions[number], self._time_ms, 1, 1)
        found = await self._read(asked, self._waits)
        place = found.messages[0].offset if found.messages else found.next_offset
        self.positions[number] = found.start_offset if self._begins_at_start(number) else place

    def _begins_at_start(self, number: int) -> bool:
        return self._time_ms < 0 and self.positions[number] == START

    async def _watch(self) -> None:
        """Rule 5."""
        try:
            while not self._waits.over:
                before, self._count = self._count, await self._other_count()
                if self._grows:
                    _check_count(self._count)
                    for number in range(before, self._count):
                        self._begin(self._follow(number, START))
        except ClientError as error:
            await self._parts.put(as_value(error))

    async def _other_count(self) -> int:
        """How many partitions the topic has, once that is another number; raises when it is gone."""
        while True:
            try:
                await self._source.until(lambda image: _partitions(image, self._topic.id) != self._count)
            except RequestTimedOut:
                continue
            image = self._source.image
            if self._topic.id not in image.topics:
                raise TopicGone(f"topic {self._topic.name!r} was deleted while it was followed")
            return len(image.shown(image.topics[self._topic.id]).partitions)

    async def _follow(self, number: int, position: int) -> None:
        while not self._waits.over:
            wait_ms = WAIT_MS if len(self._tasks) <= WAITING_MAX + 1 else 0
            asked = ReadPartition(
                self._topic.id, number, position, -1, PART_MESSAGES, PART_BYTES, wait_ms, self._filter
            )
            try:
                found = await self._read_on(asked)
            except RetriableError:
                await asyncio.sleep(PAUSE_S)
                continue
            except ClientError as error:
                await self._parts.put(as_value(error))
                return
            if found.messages:
                await self._parts.put(Part(number, found.messages, found.next_offset))
            elif found.next_offset == position:
                await asyncio.sleep(0 if wait_ms else LOOK_S)
            position = found.next_offset

    async def _read_on(self, asked: ReadPartition) -> Reading:
        """Read; if there is nothing at that place, go on at the start if that has moved beyond, else at the end."""
        try:
            return await self._read(asked, self._waits)
        except OffsetOutOfRange:
            found = await self._read(ReadPartition(asked.topic_id, asked.partition, END, -1, 1, 1), self._waits)
        place = found.start_offset if asked.offset < found.start_offset else found.end_offset
        self.skipped += max(0, place - asked.offset)
        return Reading([], place, found.start_offset, found.end_offset)


def _check_count(count: int) -> None:
    if count > PARTITIONS_MAX:
        raise InvalidRequest(f"{count} partitions can't be followed at once: name {PARTITIONS_MAX} at most")


def _partitions(image: Image, topic_id: TopicId) -> int:
    """How many a topic has; -1: it is gone, or what it is a view of."""
    topic = image.topics.get(topic_id)
    if topic is None:
        return -1
    try:
        return len(image.shown(topic).partitions)
    except ViewSourceGone:
        return -1
