"""Following a topic: what ends it, and what it learns on the way."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

from runnel.broker.fetch import Waits
from runnel.broker.tailing import Tail
from runnel.model.ids import TopicId
from runnel.model.reading import Reading, ReadPartition

LIMIT_S = 30.0
TOPIC = TopicId(UUID(int=7))


def run(scenario: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(LIMIT_S):
            await scenario()

    asyncio.run(main())


async def nothing(asked: ReadPartition, waits: Waits) -> Reading:
    """A partition in which nothing comes."""
    if asked.wait_ms:
        await waits.within(asked.wait_ms / 1000, asyncio.Event().wait())
    return Reading([], 0, 0, 0)


def test_a_wait_ends_with_the_follower() -> None:
    async def scenario() -> None:
        waits = Waits()
        async with Tail(nothing, TOPIC, {0: 0}, waits) as tail:
            waiting = asyncio.ensure_future(tail.next(2 * LIMIT_S))
            await asyncio.sleep(0)
            assert not waiting.done()
            waits.end()
            assert await waiting is None
            assert await tail.next(2 * LIMIT_S) is None

    run(scenario)
