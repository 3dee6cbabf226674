"""What is done from time to time: retention and compaction, never on the loop; preferred leaders lead again.

Rule 1: retention and compaction have intervals of their own, and never work at the same time.
Rule 2: each removal is logged with its reason: whoever sends old timestamps learns why the messages are gone.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

from runnel.broker.partitions import Partitions
from runnel.broker.standing import failure_of, stand
from runnel.broker.turns import by_turns
from runnel.model.errors import RunnelError
from runnel.replica.partition import Partition

FIRST_RETENTION_S: Final = 30.0  # after the start, as Kafka's InitialTaskDelayMs

logger = logging.getLogger("runnel.housekeeping")


class Housekeeping:
    """Looks after every partition again and again; `try_again` opens what could not be opened."""

    def __init__(
        self,
        partitions: Partitions,
        try_again: Callable[[], Awaitable[None]],
        *,
        every_ms: int,
        retention_every_ms: int,
        producer_expiry_ms: int,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._partitions = partitions
        self._try_again = try_again
        self._every_s = every_ms / 1000
        self._retention_every_s = retention_every_ms / 1000
        self._producer_expiry_ms = producer_expiry_ms
        self._on_fatal = on_fatal
        self._turn = asyncio.Lock()  # rule 1
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        first_s = min(FIRST_RETENTION_S, self._retention_every_s)
        self._tasks = [
            stand(self._again_and_again(self._look, self._every_s, self._every_s), self._on_fatal),
            stand(self._again_and_again(self._retain, first_s, self._retention_every_s), self._on_fatal),
        ]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _again_and_again(self, work: Callable[[], Awaitable[None]], first_s: float, every_s: float) -> None:
        await asyncio.sleep(first_s)
        while True:
            async with self._turn:
                await work()
            await asyncio.sleep(every_s)

    async def _look(self) -> None:
        await self._try_again()
        await self._each(self.compact)

    async def _retain(self) -> None:
        await self._each(self.retain)

    async def _each(self, work: Callable[[Partition], Coroutine[Any, Any, None]]) -> None:
        """A failure costs a partition its turn."""
        async for partition in by_turns(self._partitions):
            error = await failure_of(work(partition))
            if isinstance(error, RunnelError) and not partition.log.closing:
                logger.error("housekeeping of %s failed, it goes on with the next: %s", partition.name, error)
            elif error is not None and not isinstance(error, RunnelError):
                logger.error("housekeeping of %s failed, it goes on with the next", partition.name, exc_info=error)

    async def retain(self, partition: Partition) -> None:
        """Remove what retention does not keep any more."""
        expired = await partition.log.enforce_retention(partition.high_watermark)
        for reason in expired.reasons(partition.name, partition.config):
            logger.info("%s", reason)

    async def compact(self, partition: Partition) -> None:
        """Forget silent producers, and compact what is worth it."""
        partition.log.forget_producers(self._producer_expiry_ms)
        if partition.config.compacted:
            await partition.log.compact(partition.last_stable_offset)


class LeaderBalance:
    """Asks again and again that preferred leaders lead: after restarts, leaders are not where they should be."""

    def __init__(
        self, rebalance: Callable[[], Awaitable[None]], *, every_ms: int, on_fatal: Callable[[BaseException], None]
    ) -> None:
        self._rebalance = rebalance
        self._every_s = every_ms / 1000
        self._on_fatal = on_fatal
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._every_s:
            self._task = stand(self._run(), self._on_fatal)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self._rebalance()
