"""Those who wait until what lies below an offset is committed.

Rule 1: each is told once: that it is, that it never will be here, or that it took too long.
Rule 2: they are told in the order of their offsets.
"""

import asyncio
from collections import deque

from runnel.model.errors import RequestTimedOut, RunnelError
from runnel.model.ids import Offset


class Commits:
    """Of one partition."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._waiting: deque[tuple[Offset, asyncio.Future[None]]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, end: Offset, timeout_s: float) -> "asyncio.Future[None]":
        """A future that says when everything below `end` is committed, or why not."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        timer = loop.call_later(timeout_s, self._time_out, future, end, timeout_s)
        future.add_done_callback(lambda _: timer.cancel())
        self._insert(end, future)
        return future

    def reached(self, high_watermark: Offset) -> None:
        waiting = self._waiting
        while waiting and waiting[0][0] <= high_watermark:
            future = waiting.popleft()[1]
            if not future.done():
                future.set_result(None)

    def fail(self, error: RunnelError) -> None:
        for _, future in self._waiting:
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()

    def _insert(self, end: Offset, future: "asyncio.Future[None]") -> None:
        waiting = self._waiting
        if not waiting or waiting[-1][0] <= end:
            waiting.append((end, future))
            return
        # A duplicate waits for an offset in the past: rare, so a linear search for its place is fine.
        place = next(i for i, (other, _) in enumerate(waiting) if other > end)
        waiting.insert(place, (end, future))

    def _time_out(self, future: "asyncio.Future[None]", end: Offset, timeout_s: float) -> None:
        if not future.done():
            future.set_exception(
                RequestTimedOut(
                    f"{self._name}: offset {end - 1} was written but not committed within {timeout_s:g} s:"
                    " it may still be; an idempotent producer can send it again without doubling it"
                )
            )
