"""Reading a partition from any broker, message by message, for doors whose clients know neither leaders nor batches.

Rule 1: a reader gets what is committed, nothing of open or aborted transactions, in the order of the offsets.
Rule 2: one read is bounded in messages, bytes and time: with a filter that nothing passes it ends all the same, and
        says where to go on.
Rule 3: the leader reads; every other broker asks it, and the next one if it moved.
Rule 4: internal topics are not read here: coordinators' records are nobody's messages. Kafka's Fetch gives them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from msgspec.structs import replace

from runnel.broker.calls import Calls
from runnel.broker.end_offsets import end_offset
from runnel.broker.fetch import Read as FetchRead
from runnel.broker.fetch import ReadResult, Waits
from runnel.broker.internal import refuse_reading
from runnel.broker.messages import Messages, size_of
from runnel.broker.partitions import Partitions
from runnel.broker.routing import ELSEWHERE, PAUSE_MS
from runnel.cluster.image import VIEW_FILTER, Image
from runnel.model.calls import Read
from runnel.model.errors import NotLeader, RetriableError
from runnel.model.ids import Offset, PartitionKey, TopicId
from runnel.model.limits import MIB
from runnel.model.reading import END, READ_PARTITION, START, Reading, ReadPartition
from runnel.model.seams import Rng
from runnel.record.records import Record
from runnel.replica.partition import Partition
from runnel.route import filter as filters
from runnel.route.message import view_of

WAIT_MS_MAX: Final = 60_000
ANSWER_MS: Final = 15_000  # beyond the wait that was asked for
SCAN_S: Final = 1.0  # looked for messages that pass a filter, in one read,
FILL_S: Final = 0.05  # or for more of them
BYTES_MAX: Final = 16 * MIB

Fetch: TypeAlias = Callable[..., Awaitable[list[ReadResult]]]


class PartitionReading:
    """The verb."""

    def __init__(
        self,
        partitions: Partitions,
        calls: Calls,
        image: Callable[[], Image],
        fetch: Fetch,
        messages: Messages,
        rng: Rng,
    ) -> None:
        self._partitions = partitions
        self._calls = calls
        self._image = image
        self._fetch = fetch
        self._messages = messages
        self._rng = rng
        calls.serve_waiting(READ_PARTITION, self._serve)

    async def read(self, asked: ReadPartition, waits: Waits) -> Reading:
        """Messages of a partition, wherever it is led; waits for the first no longer than asked, nor than `waits`."""
        await asyncio.sleep(0)  # a request that was answered at once until now goes on in a task: timeouts need one
        asked = self._through_view(asked)
        loop = asyncio.get_running_loop()
        end = loop.time() + ANSWER_MS / 1000
        while True:
            try:
                return await self._try(asked, waits)
            except ELSEWHERE as error:
                await self._pause(end, error)

    def _through_view(self, asked: ReadPartition) -> ReadPartition:
        """A view is its source with one filter more."""
        image = self._image()
        view = image.topics.get(TopicId(asked.topic_id))
        if view is None or not view.is_view:
            return asked
        chosen = view.config[VIEW_FILTER]
        both = f"({chosen}) AND ({asked.filter})" if asked.filter else chosen
        return replace(asked, topic_id=image.source_of(view).id, filter=both)

    async def _try(self, asked: ReadPartition, waits: Waits) -> Reading:
        key = PartitionKey(TopicId(asked.topic_id), asked.partition)
        try:
            partition = self._partitions.find_by_id(*key)
        except NotLeader:
            leader = self._image().topic_with_id(key.topic_id).partitions[key.number].leader
            timeout_ms = min(asked.wait_ms, WAIT_MS_MAX) + ANSWER_MS
            return await self._calls.ask(leader, READ_PARTITION, asked, timeout_ms=timeout_ms, waits=waits)
        return await self._read(partition, asked, waits)

    async def _pause(self, end: float, error: RetriableError) -> None:
        pause_s = (PAUSE_MS + self._rng.below(PAUSE_MS)) / 1000
        if asyncio.get_running_loop().time() + pause_s >= end:
            raise error
        await asyncio.sleep(pause_s)

    async def _serve(self, asked: ReadPartition, waits: Waits) -> Reading:
        partition = self._partitions.find_by_id(TopicId(asked.topic_id), asked.partition)
        return await self._read(partition, asked, waits)

    async def _read(self, partition: Partition, asked: ReadPartition, waits: Waits) -> Reading:
        refuse_reading(partition.topic)
        found = _Found(partition, asked)
        loop = asyncio.get_running_loop()
        begun = loop.time()
        end = begun + min(max(asked.wait_ms, 0), WAIT_MS_MAX) / 1000
        position, waited_at = await _position(partition, asked), -1
        while True:
            stretch = await self._messages.read(partition, position)
            if found.take(stretch.since(position)):
                return found.answer(found.next)
            position = max(position, stretch.end)
            if position < partition.last_stable_offset:
                if loop.time() - begun > (FILL_S if found.messages else SCAN_S):
                    return found.answer(position)
                await asyncio.sleep(0)  # what is in memory is read without waiting: others have a turn
                continue
            left_s = end - loop.time()
            if found.messages or left_s <= 0 or waited_at == position:
                return found.answer(position)  # nothing came, or whoever waits is to be answered at once
            await self._wait(partition, position, waits, left_s)
            begun, waited_at = loop.time(), position

    async def _wait(self, partition: Partition, position: int, waits: Waits, left_s: float) -> None:
        read = FetchRead(partition, Offset(position), 1, leader_only=True, committed_only=True)
        [result] = await self._fetch([read], waits, bytes_min=1, bytes_max=1, wait_ms=int(left_s * 1000) + 1)
        if result.error is not None:
            raise result.error


class _Found:
    """What one read has found so far."""

    def __init__(self, partition: Partition, asked: ReadPartition) -> None:
        self._partition = partition
        self._passes = filters.compile(asked.filter).passes if asked.filter else None
        self._messages_max = max(1, asked.messages_max)
        self._bytes_max = min(asked.bytes_max, BYTES_MAX)
        self._whole = asked.whole
        self._bytes = 0
        self.messages: list[Read] = []
        self.next = 0

    def take(self, records: Sequence[Record]) -> bool:
        """Take those that pass; whether that is enough, and `next` is where to go on."""
        topic, number = self._partition.topic, self._partition.key.number
        for record in records:
            if self._passes is not None and not self._passes(view_of(record, topic, number)):
                continue
            size = size_of(record)
            if self.messages and self._bytes + size > self._bytes_max:
                self.next = record.offset
                return True
            offset, timestamp, key, value, headers = record
            left_out = 0
            if size > self._bytes_max and value is not None and not self._whole:
                size, left_out, value = size - len(value), len(value), None
            self._bytes += size
            read = Read(topic, number, offset, timestamp, key, value, list(headers), left_out_bytes=left_out)
            self.messages.append(read)
            if len(self.messages) >= self._messages_max:
                self.next = offset + 1
                return True
        return False

    def answer(self, next_offset: int) -> Reading:
        partition = self._partition
        return Reading(self.messages, next_offset, partition.log.start_offset, partition.last_stable_offset)


async def _position(partition: Partition, asked: ReadPartition) -> int:
    """The offset to begin with."""
    if asked.time_ms >= 0:
        found = await partition.log.offset_by_time(asked.time_ms)
        if found is not None and found[0] < partition.last_stable_offset:
            return found[0]
        end = await end_offset(partition, committed_only=True)
        return end if found is None else min(found[0], end)
    if asked.offset == START:
        return partition.log.start_offset
    return await end_offset(partition, committed_only=True) if asked.offset == END else asked.offset
