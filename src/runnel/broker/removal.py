"""Removes the data of topics that were deleted, and the copies that partitions have elsewhere now.

Rule 1: it is done beside all else: a large topic takes long to remove, and who leads what must be followed meanwhile.
        One thing after the other: nothing is removed by two at a time.
Rule 2: what is removed was seen to be deleted by this broker, and is closed. That it is gone is told then, not before.
Rule 3: what could not be told is told at the next change, as if it had been removed only then.
Rule 4: what can't be removed never ends the broker. It is logged, and tried again after growing pauses. A sync that
        fails does end it, here as everywhere.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import TypeAlias

from runnel.broker.partitions import Partitions
from runnel.broker.standing import PAUSE_S, PAUSE_S_MAX, failure_of, stand
from runnel.cluster.image import Image
from runnel.model.errors import Fatal, RetriableError
from runnel.model.ids import BrokerId, TopicId

Report: TypeAlias = Callable[[BrokerId, Sequence[TopicId]], Awaitable[None]]

logger = logging.getLogger("runnel.removal")


class Removal:
    """What this broker owes to the proofs of deletions."""

    def __init__(
        self, me: BrokerId, partitions: Partitions, image: Callable[[], Image], report: Report,
        on_fatal: Callable[[BaseException], None],
    ) -> None:  # fmt: skip
        self._me = me
        self._partitions = partitions
        self._image = image
        self._report = report
        self._on_fatal = on_fatal
        self._due = asyncio.Event()
        self._over = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = stand(self._run(), self._on_fatal)
        self.look()

    async def stop(self) -> None:
        """Return when what has begun is done: nobody else must find a folder that is half removed."""
        self._over.set()
        self._due.set()
        if self._task is not None:
            await asyncio.wait([self._task])

    def look(self) -> None:
        """There may be something to remove."""
        self._due.set()

    async def _run(self) -> None:
        pause_s = PAUSE_S
        while True:
            await self._due.wait()
            self._due.clear()
            if self._over.is_set():
                return
            if await self._removed():
                pause_s = PAUSE_S
                continue
            logger.warning("what could not be removed is tried again in %g s", pause_s)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
            self.look()

    async def _removed(self) -> bool:
        """Whether nothing is left that was seen to be removable."""
        error = await failure_of(self._remove())
        if isinstance(error, Fatal):
            raise error
        if error is not None:
            logger.error("data that is not needed any more could not be removed yet", exc_info=error)
        return error is None and not self._partitions.has_leftovers

    async def _remove(self) -> None:
        gone = [topic.id for topic in self._image().deleted.values() if self._me in topic.holders]
        if gone:
            await self._partitions.set_deleted_aside(frozenset(gone))
        left = await self._partitions.remove_leftovers()
        if removed := [topic_id for topic_id in gone if topic_id not in left]:
            await self._tell(removed)

    async def _tell(self, gone: Sequence[TopicId]) -> None:
        try:
            await self._report(self._me, gone)
        except RetriableError as error:
            logger.warning("the data of %d deleted topics is gone, but could not be reported: %s", len(gone), error)
