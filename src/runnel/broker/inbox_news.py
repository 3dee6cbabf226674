"""News of inboxes that are led elsewhere: one call for each partition, however many users wait for it here."""

import asyncio
from collections.abc import Callable
from typing import Final

from runnel.broker.calls import Calls
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
        self._waiting: dict[int, set[asyncio.Future[None]]] = {}
        self._task: asyncio.Task[None] | None = None
        self.end = -1  # what is above was not told of yet; at first nothing was
        self.over = False

    def waiter(self, key_hash: int) -> "asyncio.Future[None]":
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.setdefault(key_hash, set()).add(future)
        if self._task is None:
            self._task = loop.create_task(self._run())
        return future

    def forget(self, key_hash: int, future: "asyncio.Future[None]") -> None:
        waiting = self._waiting.get(key_hash)
        if waiting is not None:
            waiting.discard(future)
            if not waiting:
                del self._waiting[key_hash]

    def close(self) -> None:
        self.over = True
        if self._task is not None:
            self._task.cancel()
        self._wake(None)

    async def _run(self) -> None:
        """As long as somebody waits. Whatever goes wrong, they look again, and find out."""
        try:
            while self._waiting:
                news = News(*self._key, self.end, NEWS_MS)
                try:
                    told = await self._calls.ask(self._leader(), INBOX_NEWS, news, timeout_ms=NEWS_MS + 5_000)
                except RetriableError:
                    await asyncio.sleep(PAUSE_S)
                    self._wake(None)
                    self.end = -1
                else:
                    self.end = told.upto
                    self._wake(told.hashes)
        finally:
            self._task = None
            self.end = -1

    def _wake(self, hashes: list[int] | None) -> None:
        for key_hash in list(self._waiting) if hashes is None else hashes:
            for future in list(self._waiting.get(key_hash, ())):
                if not future.done():
                    future.set_result(None)
