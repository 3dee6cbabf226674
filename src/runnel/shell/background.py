"""An event loop in a thread of its own, for programs that do without one.

Rule: nobody waits for ever. What still runs when the loop is closed is cancelled, and whoever waits for it, or comes
later, is told so.
"""

import asyncio
import threading
from collections.abc import AsyncGenerator, Coroutine, Iterator
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Any, Generic, TypeVar

import uvloop

from runnel.model.errors import ClientError

T = TypeVar("T")


class LoopClosed(ClientError):
    """The loop that would do it was closed."""

    def __init__(self) -> None:
        super().__init__("this client was closed: make a new one")


class LoopThread:
    """Runs coroutines for threads that wait for them."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="runnel-client", daemon=True)
        self._closing = threading.Lock()  # held to begin something, so that nothing begins behind the end
        self._closed = False
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """What comes of it, as if it had been called here. Who is interrupted while waiting cancels it, and waits for
        its end: what it has open is closed then."""
        with self._closing:
            if self._closed:
                work.close()
                raise LoopClosed
            running = _Running(work, self._loop)
        try:
            return running.outcome.result()
        except asyncio.CancelledError:
            if self._closed:
                raise LoopClosed from None
            raise
        except BaseException:
            running.cancel()
            wait([running.outcome])
            raise

    def each(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """What an asynchronous generator brings, one after the other; it is closed when nobody wants more."""
        end = object()

        async def following() -> Any:
            return await anext(items, end)

        async def closing() -> None:
            await items.aclose()

        try:
            while (item := self.run(following())) is not end:
                yield item
        finally:
            with suppress(LoopClosed):  # that closed it too
                self.run(closing())

    def close(self) -> None:
        """Cancel what still runs, and stop."""
        with self._closing:
            if self._closed:
                return
            self._closed = True
            ending = _Running(_end_the_rest(), self._loop)
        ending.outcome.result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Running(Generic[T]):
    """A coroutine that runs in the loop of another thread, and what comes of it."""

    def __init__(self, work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> None:
        self.outcome: Future[T] = Future()
        self._work = work
        self._loop = loop
        self._task: asyncio.Task[T] | None = None
        loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._work)
        self._task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[T]") -> None:
        fault = asyncio.CancelledError() if task.cancelled() else task.exception()
        if fault is None:
            self.outcome.set_result(task.result())
        else:
            self.outcome.set_exception(fault)

    def cancel(self) -> None:
        """Cancel it, unless it has ended."""
        if not self.outcome.done():
            self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()


async def _end_the_rest() -> None:
    rest = asyncio.all_tasks() - {asyncio.current_task()}
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)
    await asyncio.get_running_loop().shutdown_asyncgens()
