"""Start a coroutine at once, without a task, as long as it does not have to wait.

Most requests are answered from memory or the page cache: they finish in their first step, and a task for each would
cost more than the request. The few that wait continue in an ordinary task.
"""

import asyncio
import types
from collections.abc import Coroutine, Generator, Iterable
from typing import Any, TypeVar, cast

T = TypeVar("T")


@types.coroutine
def _resume(coroutine: Coroutine[Any, Any, T], waiting_for: Any) -> Generator[Any, Any, T]:
    """Go on with a coroutine that was stepped once and now waits for a future (or, with None, for the next turn)."""
    if waiting_for is not None:
        waiting_for._asyncio_future_blocking = True
    try:
        while True:
            try:
                value = yield waiting_for
            except BaseException as error:  # cancellation too belongs to the coroutine
                waiting_for = coroutine.throw(error)
            else:
                waiting_for = coroutine.send(value)
    except StopIteration as stop:
        result: T = stop.value
        return result


async def _continue(coroutine: Coroutine[Any, Any, T], waiting_for: Any) -> T:
    return await _resume(coroutine, waiting_for)


def start(coroutine: Coroutine[Any, Any, T]) -> "tuple[T, None] | tuple[None, asyncio.Task[T]]":
    """Its result if it never waits, else the task in which it goes on. What it raises at once is raised here.

    In its first step the coroutine has no current task: it may await futures, locks and sleeps, but must not open
    `asyncio.timeout` or a TaskGroup before its first wait.
    """
    try:
        waiting_for = coroutine.send(None)
    except StopIteration as stop:
        return stop.value, None
    if waiting_for is not None:
        # Until its task runs, nobody has taken notice of this wait: another may begin to wait for the same future.
        waiting_for._asyncio_future_blocking = False
    return None, asyncio.get_running_loop().create_task(_continue(coroutine, waiting_for))


async def gather_eagerly(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Gather the results of coroutines, in their order. Only those that wait are tasks; no task outlives this."""
    begun: list[tuple[T | None, asyncio.Task[T] | None]] = []
    try:
        for coroutine in coroutines:
            begun.append(start(coroutine))  # noqa: PERF401  (those that began are to end if a later one raises)
        return [cast(T, result) if task is None else await task for result, task in begun]
    except BaseException:
        for _, task in begun:
            if task is not None:
                task.cancel()
        raise
