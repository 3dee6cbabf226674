"""What a broker does when it finds that its copy of a partition is not whole.

Rule 1: nobody may count on a damaged copy. A leader gives up its leadership, if another can lead; a follower says so,
        and is out of sync once the controller has heard it.
Rule 2: only then is the damage cut off, and what was there fetched again. By then another leader epoch has begun: what
        this broker told its leader before counts no more, and can't bring it back among those in sync.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from runnel.broker.isr import InSync
from runnel.broker.standing import stand
from runnel.cluster.metadata import Metadata
from runnel.model.errors import RetriableError
from runnel.model.ids import PartitionKey
from runnel.replica.partition import Partition

AGAIN_S: Final = 1.0  # before what could not be reported is reported again

logger = logging.getLogger("runnel.damage")


class Damages:
    """Sees to it that damage found while serving becomes known."""

    def __init__(self, metadata: Metadata, in_sync: InSync, on_fatal: Callable[[BaseException], None]) -> None:
        self._metadata = metadata
        self._in_sync = in_sync
        self._on_fatal = on_fatal
        self._found: dict[PartitionKey, Partition] = {}
        self._awake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = stand(self._run(), self._on_fatal)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def found(self, partition: Partition) -> None:
        """A copy here turned out to be damaged, or one that is has another role now."""
        if partition.is_leader:
            self._in_sync.resign(partition)
        elif partition.is_counted_on:
            self._found[partition.key] = partition
            self._awake.set()

    async def _run(self) -> None:
        while True:
            await self._awake.wait()
            self._awake.clear()
            self._found = {key: each for key, each in self._found.items() if each.log.is_damaged and each.is_counted_on}
            try:
                await self._metadata.report_damaged(list(self._found))
            except RetriableError as error:
                logger.warning("the damage of %d copies could not be reported yet: %s", len(self._found), error)
                await asyncio.sleep(AGAIN_S)
                self._awake.set()
