"""Following a topic: what ends it, and what it learns on the way."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import pytest

from runnel.broker.fetch import Waits
from runnel.broker.seen import Seen
from runnel.broker.tailing import Tail
from runnel.cluster.image import Image, Partition, Topic
from runnel.model.calls import Read
from runnel.model.errors import LeaderNotAvailable, OffsetOutOfRange, TopicGone
from runnel.model.ids import BrokerId, Epoch, TopicId
from runnel.model.reading import END, Reading, ReadPartition

LIMIT_S = 30.0
TOPIC = TopicId(UUID(int=7))
ME = BrokerId(1)


class Source:
    """A broker with one topic, each partition of which holds the messages from an offset on."""

    def __init__(self, partitions: int, start: int = 0, end: int = 0) -> None:
        self._seen = Seen(self._image(partitions))
        self.until = self._seen.until
        self.start, self.end = start, end
        self.failures: list[Exception] = []

    @property
    def image(self) -> Image:
        return self._seen.image

    def becomes(self, partitions: int | None) -> None:
        self._seen.reach(self._image(partitions))

    async def read(self, asked: ReadPartition, waits: Waits) -> Reading:
        await asyncio.sleep(0)
        if self.failures:
            raise self.failures.pop(0)
        at = self.end if asked.offset == END else max(asked.offset, self.start) if asked.offset < 0 else asked.offset
        if not self.start <= at <= self.end:
            raise OffsetOutOfRange("there is nothing")
        if at == self.end and asked.wait_ms:
            await waits.within(asked.wait_ms / 1000, asyncio.Event().wait())
        found = [Read("t", asked.partition, offset, 0, None, b"", []) for offset in range(at, self.end)]
        return Reading(found, self.end, self.start, self.end)

    def _image(self, partitions: int | None) -> Image:
        one = Partition(ME, Epoch(0), Epoch(0), (ME,), (ME,))
        topics = {} if partitions is None else {TOPIC: Topic(TOPIC, "t", (one,) * partitions)}
        return Image("c", topics=topics)


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_S):
            await scenario()

    asyncio.run(main())


def test_a_wait_ends_with_the_follower() -> None:
    async def scenario() -> None:
        waits = Waits()
        async with Tail(Source(1), TOPIC, {0: 0}, waits) as tail:
            waiting = asyncio.ensure_future(tail.next(2 * LIMIT_S))
            await asyncio.sleep(0)
            assert not waiting.done()
            waits.end()
            assert await waiting is None
            assert await tail.next(2 * LIMIT_S) is None

    run(scenario)


def test_partitions_that_are_added_are_followed_by_who_follows_all() -> None:
    async def scenario() -> None:
        source = Source(1, 5, 8)
        async with Tail(source, TOPIC, {0: END}, Waits(), grows=True) as tail:
            source.becomes(3)
            parts = [await tail.next(LIMIT_S), await tail.next(LIMIT_S)]
            assert [part.messages[0].offset for part in parts if part is not None] == [5, 5]
            assert tail.positions == {0: 8, 1: 8, 2: 8}

    run(scenario)


def test_who_follows_some_partitions_hears_of_the_end_of_the_topic_alone() -> None:
    async def scenario() -> None:
        source = Source(1, 5, 8)
        async with Tail(source, TOPIC, {0: END}, Waits()) as tail:
            source.becomes(3)
            await asyncio.sleep(0)
            source.becomes(None)
            with pytest.raises(TopicGone, match="'t' was deleted"):
                await tail.next(LIMIT_S)
            assert tail.positions == {0: 8}

    run(scenario)


def test_what_retention_removed_is_passed_over_whatever_fails_meanwhile() -> None:
    async def scenario() -> None:
        source = Source(1, 5, 8)
        source.failures = [OffsetOutOfRange("gone"), LeaderNotAvailable("an election")]
        async with Tail(source, TOPIC, {0: 2}, Waits()) as tail:
            part = await tail.next(LIMIT_S)
            assert part is not None
            assert (part.messages[0].offset, tail.skipped) == (5, 3)

    run(scenario)
