"""News of inboxes that are led elsewhere: one call for each partition, however many users wait for it here."""

import asyncio
from collections.abc import Callable
from typing import Final

from runnel.broker.calls import Calls
from runnel.broker.fetch import Waiter
from runnel.broker.key_waiters import KeyWaiters
from runnel.model.errors import RetriableError
from runnel.model.ids import BrokerId, PartitionKey
from runnel.model.inbox import INBOX_NEWS, News

NEWS_MS: Final = 20_000
PAUSE_S: Final = 0.05


class RemoteNews:
    """Who of those that wait here got something in a partition that is led elsewhere."""

    def __init__(self, key: PartitionKey, calls: Calls, leader: Callable[[], BrokerId]) -> None:
        self._key = key
        self._calls = calls
        self._leader = leader
        self._waiters = KeyWaiters()
        self.done = self._waiters.done
        self._task: asyncio.Task[None] | None = None
        self.end = -1  # what is above was not told of yet; at first nothing was
        self.over = False

    def begin(self, key_hash: int, waiter: Waiter) -> None:
        """End it when a message of such a key has come, or it has to look again."""
        self._waiters.begin(key_hash, waiter)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        self.over = True
        if self._task is not None:
            self._task.cancel()
        self._waiters.end()

    async def _run(self) -> None:
        """As long as somebody waits. Whatever goes wrong, they look again, and find out."""
        try:
            while self._waiters:
                news = News(*self._key, self.end, NEWS_MS)
                try:
                    told = await self._calls.ask(self._leader(), INBOX_NEWS, news, timeout_ms=NEWS_MS + 5_000)
                except RetriableError:
                    await asyncio.sleep(PAUSE_S)
                    self._waiters.end()
                    self.end = -1
                else:
                    self.end = told.upto
                    self._waiters.end(told.hashes)
        finally:
            self._task = None
            self.end = -1
