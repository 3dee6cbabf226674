"""Reading messages of partitions that the caller names.

    consumer = Consumer(cluster)
    await consumer.assign({TopicPartition("orders", 0): START})
    async for message in consumer: ...

`poll_batches` hands out batches as they came, for those who count, copy or store; `poll` decodes them.

Messages of transactions are read when they are committed, unless FetchSettings.isolation says READ_UNCOMMITTED: then
they are read as they come, those of transactions that will be aborted too. Markers of transactions are never read.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import NamedTuple

from runnel.client.cluster import Cluster
from runnel.client.fetcher import Fetched, Fetcher, FetchSettings
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import READ_COMMITTED
from runnel.client.positions import Position, resolve
from runnel.model.errors import InvalidConfig, InvalidRecord
from runnel.record import records
from runnel.record.records import Headers


class Message(NamedTuple):
    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Consumer:
    """Reads the partitions it was assigned, from the positions it was given."""

    def __init__(self, cluster: Cluster, settings: FetchSettings | None = None) -> None:
        self.cluster = cluster
        self.fetcher = Fetcher(cluster, settings)
        self.positions: dict[TopicPartition, int] = {}  # of the next message to be handed out
        self._batches: deque[Fetched] = deque()
        self._messages: deque[Message] = deque()
        self._behind: tuple[TopicPartition, int] | None = None  # position once `_messages` is empty

    async def __aenter__(self) -> "Consumer":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self.fetcher.close()

    @property
    def isolation(self) -> int:
        return self.fetcher.settings.isolation

    # --- what to read
    async def assign(self, wanted: Mapping[TopicPartition, Position | int], *, group: str | None = None) -> None:
        """Read these partitions and no others. `group` gives STORED positions their meaning."""
        offsets = {where: at for where, at in wanted.items() if isinstance(at, int)}
        words = {where: at for where, at in wanted.items() if not isinstance(at, int)}
        if words:
            offsets |= await resolve(self.cluster, words, group=group, isolation=self.isolation)
        self._drop()
        self.positions = offsets
        self.fetcher.assign({})
        self.fetcher.assign(offsets)

    async def seek(self, where: TopicPartition, position: Position | int) -> None:
        """Go on reading one partition somewhere else."""
        if not isinstance(position, int):
            position = (await resolve(self.cluster, {where: position}, isolation=self.isolation))[where]
        self._messages = deque(x for x in self._messages if (x.topic, x.partition) != where)
        self._batches = deque(b for b in self._batches if b.where != where)
        if self._behind is not None and self._behind[0] == where:
            self._behind = None
        self.positions[where] = position
        self.fetcher.seek(where, position)

    def _drop(self) -> None:
        self._batches.clear()
        self._messages.clear()
        self._behind = None

    # --- reading
    async def poll(self, *, count_max: int = 500, timeout_ms: int = 1_000) -> list[Message]:
        """The next messages, at most so many; waits at most so long for the first."""
        if count_max < 1:
            raise InvalidConfig(f"{count_max} messages can't be read at once: ask for 1 or more")
        end = asyncio.get_running_loop().time() + timeout_ms / 1000
        while not self._messages:
            if not self._batches:
                left_ms = int((end - asyncio.get_running_loop().time()) * 1000)
                self._batches.extend(await self.fetcher.take(max(0, left_ms)))
                if not self._batches:
                    return []
            self._open(self._batches.popleft())
        taken = [self._messages.popleft() for _ in range(min(count_max, len(self._messages)))]
        last = taken[-1]
        self.positions[TopicPartition(last.topic, last.partition)] = last.offset + 1
        self._pass()
        return taken

    def _open(self, batch: Fetched) -> None:
        """Decode one batch; records below the position, control records and aborted ones are passed over."""
        header = batch.header
        if not batch.hidden:
            topic, partition = batch.where
            try:
                found = records.decode(batch.data)
            except InvalidRecord as problem:
                raise InvalidRecord(
                    f"the batch at offset {header.base_offset} of {batch.where} can't be read: {problem}; "
                    f"seek behind offset {header.last_offset} to pass over it"
                ) from None
            self._messages.extend(
                Message(topic, partition, *record) for record in found if record.offset >= batch.position
            )
        self._behind = batch.where, header.last_offset + 1
        self._pass()

    def _pass(self) -> None:
        """When a batch is used up, the position moves behind it and the hidden ones that follow: they hold nothing."""
        if self._messages or self._behind is None:
            return
        self.positions[self._behind[0]] = self._behind[1]
        self._behind = None
        while self._batches and self._batches[0].hidden:
            passed = self._batches.popleft()
            self.positions[passed.where] = passed.header.last_offset + 1

    async def poll_batches(self, *, timeout_ms: int = 1_000) -> list[Fetched]:
        """The next batches, still encoded; don't mix with `poll`."""
        taken = await self.fetcher.take(timeout_ms)
        for batch in taken:
            self.positions[batch.where] = batch.header.last_offset + 1
        return [batch for batch in taken if not batch.hidden]

    async def __aiter__(self) -> AsyncIterator[Message]:
        while True:
            for message in await self.poll():
                yield message

    def lag(self, where: TopicPartition) -> int | None:
        """How many offsets lie between the position and the end that the last answer told; None if none came yet."""
        reading = self.fetcher.readings.get(where)
        if reading is None or reading.high_watermark < 0:
            return None
        end = reading.last_stable if self.isolation == READ_COMMITTED else reading.high_watermark
        return max(0, end - self.positions[where])
