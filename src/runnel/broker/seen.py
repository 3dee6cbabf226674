"""The cluster as far as this broker has done what it says, and those who wait until it has done more.

Rule 1: who waits waits for what it asked for, not for all that others asked for meanwhile; and only for so long.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from runnel.cluster.image import Image, Topic
from runnel.model.errors import RequestTimedOut, RunnelError, as_value

WAIT_MS: Final = 10_000  # if a request does not say how long
WAIT_MS_MAX: Final = 300_000  # if it says more than that


class Seen:
    """An image that moves on."""

    def __init__(self, image: Image) -> None:
        self.image = image
        self._waiting: dict[asyncio.Future[None], Callable[[Image], bool]] = {}

    def reach(self, image: Image) -> None:
        """All that this image says is done here."""
        self.image = image
        for future, holds in self._waiting.items():
            if not future.done() and holds(image):
                future.set_result(None)

    async def until(self, holds: Callable[[Image], bool], timeout_ms: int = WAIT_MS) -> None:
        """Wait for an image for which this holds; raises if that takes too long."""
        if holds(self.image):
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = holds
        try:
            done, _ = await asyncio.wait([future], timeout=min(max(timeout_ms, 0), WAIT_MS_MAX) / 1000)
        finally:
            del self._waiting[future]
        if not done:
            raise RequestTimedOut("it is decided, but this broker has not done all that follows yet: look again")

    async def topics(
        self, changed: Sequence[Topic | RunnelError], newest: Image, timeout_ms: int
    ) -> list[Topic | RunnelError]:
        """Wait until what became of topics is done, as `newest` has it; those that are late get an error instead."""
        topics = [one for one in changed if isinstance(one, Topic)]
        try:
            await self.until(lambda image: all(_shows(image, topic, newest) for topic in topics), timeout_ms)
        except RequestTimedOut as late:
            image, unseen = self.image, as_value(late)
            return [unseen if isinstance(one, Topic) and not _shows(image, one, newest) else one for one in changed]
        return list(changed)


def _shows(image: Image, topic: Topic, newest: Image) -> bool:
    """Whether an image has a topic as it became; one that is gone again in `newest` is gone when that is reached."""
    if image.version >= newest.version:
        return True
    now = image.topics.get(topic.id)
    return now is not None and now.version >= topic.version and topic.id in newest.topics
