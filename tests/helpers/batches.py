"""A driver as Spark is one: it numbers batches, has several tasks write each, and publishes what they wrote.

Tasks fail, and are tried again; a batch whose publishing failed is written anew; a driver that died is replaced by one
that begins with the last batch that the dead one had not noted down.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from itertools import count

from runnel.client.cluster import Cluster
from runnel.client.producer import ProducerSettings
from runnel.client.sinks import Sinks
from runnel.model.errors import RunnelError
from runnel.model.sinks import Handle

Fault = Callable[[str, int, int, int], Awaitable[None]]  # where, batch, partition, attempt; may raise, or kill somebody
ATTEMPTS = count(1)  # no two attempts have the same number


class Broken(Exception):
    """A task, or the driver, fails on purpose."""


async def no_fault(where: str, batch: int, partition: int, attempt: int) -> None:
    """All is well."""


@dataclass
class Driver:
    cluster: Cluster
    topic: str
    sink: str
    tasks: int = 3
    rows: int = 4  # that each task writes
    fault: Fault = no_fault
    written: dict[int, int] = field(default_factory=dict)  # how often a batch was written

    def values(self, batch: int) -> list[bytes]:
        return [row for partition in range(self.tasks) for row in self.rows_of(batch, partition)]

    def rows_of(self, batch: int, partition: int) -> list[bytes]:
        return [f"{batch}/{partition}/{row}".encode() for row in range(self.rows)]

    async def run(self, batches: Sequence[int]) -> None:
        for batch in batches:
            await self.batch(batch)

    async def batch(self, batch: int, *, tries: int = 20) -> None:
        """Write and publish one, again and again if need be."""
        for left in reversed(range(tries)):
            handles: list[Handle] = []
            try:
                self.written[batch] = self.written.get(batch, 0) + 1
                found = await asyncio.gather(*[self.task(batch, partition) for partition in range(self.tasks)])
                handles = [handle for handle in found if handle is not None]
                await self.fault("commit", batch, -1, -1)
                await Sinks(self.cluster).commit(self.sink, batch, handles, timeout_ms=60_000)
                await self.fault("committed", batch, -1, -1)
                return
            except (RunnelError, Broken):
                await Sinks(self.cluster).abort_if_possible(self.sink, batch, handles)
                if not left:
                    raise

    async def task(self, batch: int, partition: int, *, tries: int = 4) -> Handle | None:
        """Until it succeeds, or was tried too often."""
        for left in reversed(range(tries)):
            try:
                return await self.attempt(batch, partition, next(ATTEMPTS))
            except (RunnelError, Broken):
                if not left:
                    raise
        raise AssertionError("tried at least once")

    async def attempt(self, batch: int, partition: int, attempt: int) -> Handle | None:
        sinks = Sinks(self.cluster)
        begun = await sinks.begin(self.sink, batch, partition, attempt, timeout_ms=30_000)
        if begun.handle is None:
            return None
        try:
            async with sinks.writing(begun, ProducerSettings(linger_ms=0)) as producer:
                for row in self.rows_of(batch, partition):
                    await producer.send(self.topic, row)
                    await self.fault("row", batch, partition, attempt)
                handle = await producer.hand_over()
            await self.fault("done", batch, partition, attempt)
            return handle
        except (RunnelError, Broken):
            await sinks.abort_if_possible(self.sink, batch, [begun.handle])
            raise
