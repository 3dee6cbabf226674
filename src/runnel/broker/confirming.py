"""Whether this broker still is what it takes itself for: asked of the store, before it says what only the newest may.

A broker learns late that another leads in its place when it can't reach the store just then. What it decides counts for
nothing, by its epoch; but what it says would be old.

Rule 1: whoever asks waits for the version of the metadata that the store has now, and until this broker has done all
        that this version says.
Rule 2: those who ask meanwhile share the next question: each is answered by one that began after it asked.
Rule 3: where the store can't be asked, nothing is confirmed, and the client is to look for the coordinator again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from runnel.broker.seen import Seen
from runnel.model.errors import NotCoordinator, RequestTimedOut, RetriableError

TIMEOUT_S: Final = 5.0


class Confirming:
    """Asks for all who want to know."""

    def __init__(self, newest_version: Callable[[], Awaitable[int]], seen: Seen) -> None:
        self._newest_version = newest_version
        self._seen = seen
        self._next: asyncio.Future[int] | None = None  # of those who asked while a question was under way
        self._asking: asyncio.Task[None] | None = None

    async def confirm(self) -> None:
        """Return once this broker has done all that was decided before this call."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            if self._asking is None:
                self._asking = asyncio.get_running_loop().create_task(self._ask())
        answer = self._next
        await asyncio.wait([answer], timeout=TIMEOUT_S)  # not `asyncio.timeout`: who asks may not have a task yet
        try:
            if not answer.done():
                raise RequestTimedOut("the store did not answer")
            version = answer.result()
            await self._seen.until(lambda image: image.version >= version, timeout_ms=int(TIMEOUT_S * 1000))
        except RetriableError as error:
            raise NotCoordinator(
                f"whether this broker still coordinates the group could not be found out ({error}):"
                " look for the coordinator again"
            ) from None

    async def _ask(self) -> None:
        """Until nobody is left who asked."""
        try:
            while self._next is not None:
                answer, self._next = self._next, None
                try:
                    async with asyncio.timeout(TIMEOUT_S):
                        answer.set_result(await self._newest_version())
                except TimeoutError:
                    _refuse(answer, RequestTimedOut("the store did not answer"))
                except RetriableError as error:
                    _refuse(answer, error)
        finally:
            self._asking = None


def _refuse(answer: "asyncio.Future[int]", error: RetriableError) -> None:
    answer.set_exception(error)
    answer.exception()  # it may be that nobody waits any more
