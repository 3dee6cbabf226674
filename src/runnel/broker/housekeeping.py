"""What is done from time to time: retention and compaction, never on the loop; preferred leaders lead again."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from runnel.broker.partitions import Partitions
from runnel.broker.standing import failure_of, stand
from runnel.broker.turns import by_turns
from runnel.model.errors import RunnelError
from runnel.replica.partition import Partition

logger = logging.getLogger("runnel.housekeeping")


class Housekeeping:
    """Looks after every partition again and again."""

    def __init__(
        self,
        partitions: Partitions,
        try_again: Callable[[], Awaitable[None]],
        *,
        every_ms: int,
        producer_expiry_ms: int,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._partitions = partitions
        self._try_again = try_again  # what could not be opened
        self._every_s = every_ms / 1000
        self._producer_expiry_ms = producer_expiry_ms
        self._on_fatal = on_fatal
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = stand(self._run(), self._on_fatal)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self._try_again()
            async for partition in by_turns(self._partitions):
                if (error := await failure_of(self.look_after(partition))) is not None:
                    logger.error("housekeeping of %s failed, it goes on with the next", partition.name, exc_info=error)

    async def look_after(self, partition: Partition) -> None:
        """Remove what retention no longer keeps, compact what is worth it. A failure costs this partition its turn."""
        log = partition.log
        log.forget_producers(self._producer_expiry_ms)
        try:
            await log.enforce_retention(partition.high_watermark)
            if partition.config.compacted:
                await log.compact(partition.last_stable_offset)
        except RunnelError as error:
            if not log.closing:
                logger.error("housekeeping of %s failed, it goes on with the next: %s", partition.name, error)


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
