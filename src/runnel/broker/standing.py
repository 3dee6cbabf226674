"""Work that goes on as long as the broker: if it fails, the broker must end, for nobody else would do it."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


def stand(work: Coroutine[Any, Any, None], on_fatal: Callable[[BaseException], None]) -> "asyncio.Task[None]":
    """Begin it. It ends by being cancelled."""

    def ended(task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()):
            on_fatal(error)

    task = asyncio.get_running_loop().create_task(work)
    task.add_done_callback(ended)
    return task
