"""Work that goes on as long as the broker, or as what it is done for: nobody else would do it if it failed.

stand       if it fails, the broker must end: all depend on it
persist     if it fails, it begins again: one partition or one queue depends on it
failure_of  if it fails, whoever has it done goes on with the next
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Final

PAUSE_S: Final = 1.0  # before what failed begins again
PAUSE_S_MAX: Final = 60.0  # what fails again and again costs others little

logger = logging.getLogger("runnel.broker")


def stand(work: Coroutine[Any, Any, None], on_fatal: Callable[[BaseException], None]) -> "asyncio.Task[None]":
    """Begin it. It ends by being cancelled."""

    def ended(task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()):
            on_fatal(error)

    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(ended)
    return task


async def persist(
    work: Callable[[], Coroutine[Any, Any, None]], name: str, on_failure: Callable[[Exception], None] | None = None
) -> None:
    """Do it, again and again as long as errors end it that nobody foresaw; `on_failure` makes good what they left."""
    loop = asyncio.get_running_loop()
    pause_s, began = PAUSE_S, loop.time()
    while (error := await failure_of(work())) is not None:
        if loop.time() - began > 2 * PAUSE_S_MAX:
            pause_s = PAUSE_S  # it went well for long
        logger.error("%s failed, and begins again in %g s", name, pause_s, exc_info=error)
        if on_failure is not None:
            on_failure(error)
        await asyncio.sleep(pause_s)
        pause_s, began = min(2 * pause_s, PAUSE_S_MAX), loop.time()


async def failure_of(work: Coroutine[Any, Any, None]) -> Exception | None:
    """Do it, and return what it raised. It is cancelled with whoever waits for it, who leaves when it has ended."""
    task = asyncio.get_running_loop().create_task(work)
    try:
        await asyncio.wait([task])
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
    error = task.exception()
    if error is not None and not isinstance(error, Exception):
        raise error
    return error
