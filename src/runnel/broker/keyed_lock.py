"""A lock for each key: one holder at a time, and the others of the key wait for their turn.

Nothing is kept for a key that nobody holds.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class KeyedLock:
    """Of one loop."""

    def __init__(self) -> None:
        self._held: dict[str, asyncio.Future[None]] = {}

    @asynccontextmanager
    async def of(self, key: str) -> AsyncIterator[None]:
        while (before := self._held.get(key)) is not None:
            await asyncio.wait([before])
        turn = self._held[key] = asyncio.get_running_loop().create_future()
        try:
            yield
        finally:
            del self._held[key]
            turn.set_result(None)
