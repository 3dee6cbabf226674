"""Long work in short parts: whoever goes through thousands of partitions lets others have the loop in between."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Final, TypeVar

TURN: Final = 100  # partitions in one go: a few milliseconds, whatever is done with each

T = TypeVar("T")
R = TypeVar("R")


async def by_turns(items: Iterable[T], turn: int = TURN) -> AsyncIterator[T]:
    """Each of them; after so many, others have the loop first. What may change meanwhile is to be looked at anew."""
    for number, item in enumerate(items, 1):
        yield item
        if number % turn == 0:
            await asyncio.sleep(0)


async def side_by_side(items: Iterable[T], work: Callable[[T], Awaitable[R]], at_once: int) -> list[R]:
    """Do it for each, for so many at a time; what came of it, in the order in which it came."""
    rest = iter(items)
    done: list[R] = []

    async def take_on() -> None:
        for item in rest:
            result = await work(item)
            done.append(result)

    await asyncio.gather(*[take_on() for _ in range(at_once)])
    return done
