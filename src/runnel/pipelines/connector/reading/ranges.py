"""Reading a range of one partition, straight from its leader, as the batches lie in the log.

Rule 1: the same range brings the same messages, whoever reads it and how often: what was aborted and the markers of
        transactions are cut out, nothing else is.
Rule 2: while one answer is worked on, the next is under way; never more than these two are in memory.
Rule 3: an offset that is not kept any more is told as `Lost`, once, and reading goes on where the log begins. Offsets
        that are missing in between (compaction, markers) are no loss.
Rule 4: a leader that moves or fails is asked for again, until the patience of the cluster's settings is used up.
"""

import asyncio
from typing import NamedTuple
from uuid import UUID

from runnel.client.cluster import Cluster
from runnel.client.fetcher import FETCH_BY_ID, NO_SESSION
from runnel.client.isolation import Aborted
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import EARLIEST, READ_COMMITTED, list_offsets
from runnel.model.errors import CorruptBatch, OffsetNotAvailable
from runnel.model.limits import KIB, MIB
from runnel.record import batch as record_batch
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api
from runnel.wire.kafka.error_codes import ErrorCode

LANE = "ranges"  # answers are large: nothing else waits behind them
ANSWER_BYTES_FIRST = 1 * MIB
ANSWER_BYTES_MAX = 2 * MIB  # two are in memory; larger ones leave the caches, and cost more for each byte
ANSWER_BYTES_MIN = 64 * KIB
WAIT_MS = 500  # what was to be read is there already, unless a leader has just changed


class Range(NamedTuple):
    """Messages of one partition, from `first` up to, but without, `end`."""

    where: TopicPartition
    first: int
    end: int

    @property
    def size(self) -> int:
        return max(0, self.end - self.first)

    def __str__(self) -> str:
        return f"{self.where} from {self.first} to {self.end}"


class Lost(NamedTuple):
    """Offsets that were to be read and are not kept any more."""

    where: TopicPartition
    first: int
    end: int  # -1: nobody knows, the partition is gone
    reason: str = "expired"

    def __str__(self) -> str:
        return f"{self.where} from {self.first} {f'to {self.end}' if self.end >= 0 else 'on'} ({self.reason})"


class Answer(NamedTuple):
    """What one fetch brought: runs of whole batches, and where to go on."""

    runs: list[memoryview]
    next_offset: int
    size: int


class RangeReader:
    """Reads one range; `next` brings one answer after the other."""

    def __init__(
        self, cluster: Cluster, span: Range, isolation: int = READ_COMMITTED, *, bytes_first: int = ANSWER_BYTES_FIRST
    ) -> None:
        self._cluster = cluster
        self._where, self._end = span.where, span.end
        self._position = span.first
        self._isolation = isolation
        self._bytes = bytes_first
        self._under_way: asyncio.Task[Answer | Lost] | None = None

    async def next(self) -> list[memoryview] | Lost | None:
        """The next batches, or what is lost of them; None at the end of the range."""
        if self._position >= self._end:
            return None
        found = await (self._under_way or self._begin())
        self._under_way = None
        if isinstance(found, Lost):
            self._position = found.end
        else:
            self._bytes = self._bytes_next(found)
            self._position = found.next_offset
        if self._position < self._end:
            self._under_way = self._begin()
        return found if isinstance(found, Lost) else found.runs

    async def close(self) -> None:
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.gather(self._under_way, return_exceptions=True)

    def _begin(self) -> asyncio.Task[Answer | Lost]:
        return asyncio.create_task(self._cluster.persist(self._fetch))

    def _bytes_next(self, answer: Answer) -> int:
        """Ask for no more than the rest of the range may have, reckoned from what came last."""
        passed = max(1, answer.next_offset - self._position)
        rest = answer.size * max(0, self._end - answer.next_offset) // passed
        return max(ANSWER_BYTES_MIN, min(ANSWER_BYTES_MAX, rest + rest // 4))

    async def _fetch(self) -> Answer | Lost:
        leader = await self._cluster.leader(self._where)
        node = self._cluster.broker(leader.broker, LANE)
        connection = await node.connection()
        version = connection.version_of(Api.FETCH, version_max=None if leader.topic_id.int else FETCH_BY_ID - 1)
        asked = connection.begin(
            Api.FETCH, self._request(leader.epoch, leader.topic_id), m.FetchResponse, version=version
        )
        answer = await asked.finish(self._cluster.settings.request_timeout_ms)
        action = f"read {self._where} at {self._position}"
        told = answer.responses[0].partitions[0] if answer.responses else None
        code = answer.error_code or (told.error_code if told else 0)
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            return await self._out_of_range()
        if code:
            self._cluster.raise_for(code, action=action, broker=node, topics=[self._where.topic])
        if told is None or not told.records:
            raise OffsetNotAvailable(f"can't {action}: broker {node} has nothing there up to {self._end}; wait for it")
        return self._sifted(told, str(node))

    def _request(self, epoch: int, topic_id: UUID) -> m.FetchRequest:
        partition = m.FetchRequest.FetchPartition(
            partition=self._where.partition, current_leader_epoch=epoch, fetch_offset=self._position,
            partition_max_bytes=self._bytes,
        )  # fmt: skip
        topic = m.FetchRequest.FetchTopic(topic=self._where.topic, topic_id=topic_id, partitions=[partition])
        return m.FetchRequest(
            max_wait_ms=WAIT_MS, min_bytes=1, max_bytes=self._bytes, isolation_level=self._isolation, session_id=0,
            session_epoch=NO_SESSION, topics=[topic],
        )  # fmt: skip

    async def _out_of_range(self) -> Lost:
        """Below the log, it is lost. Above, the leader is new and does not know yet how far its log is committed."""
        start = (await list_offsets(self._cluster, {self._where: EARLIEST}))[self._where].offset
        if start <= self._position:
            raise OffsetNotAvailable(
                f"{self._where} ends before {self._position}, where reading was: wait for its leader"
            )
        return Lost(self._where, self._position, min(start, self._end))

    def _sifted(self, told: m.FetchResponse.PartitionData, broker: str) -> Answer:
        """The batches of the range that count, in runs as long as nothing lies between."""
        records = memoryview(told.records or b"")
        aborted = Aborted((a.first_offset, a.producer_id) for a in told.aborted_transactions or ())
        runs: list[memoryview] = []
        begin = at_end = 0
        position = self._position
        for at, header in record_batch.headers(records):
            self._check(records, at, header, broker)
            hidden = aborted.judge(header) or header.control
            beyond = header.base_offset >= self._end
            if hidden or beyond or header.last_offset < self._position:
                if begin < at:
                    runs.append(records[begin:at])
                begin = at + header.size
            at_end = at + header.size
            position = max(position, header.last_offset + 1)
            if beyond:
                break
        if begin < at_end:
            runs.append(records[begin:at_end])
        if position == self._position:
            raise CorruptBatch(f"{self._where} at {position}: broker {broker} sent no whole batch; look at its disk")
        return Answer(runs, position, at_end)

    def _check(self, records: memoryview, at: int, header: record_batch.BatchHeader, broker: str) -> None:
        if not record_batch.intact(records, header, at):
            raise CorruptBatch(
                f"the batch at offset {header.base_offset} of {self._where} came damaged from broker {broker}: "
                "look for disk errors there"
            )


async def time_at(cluster: Cluster, span: Range, isolation: int) -> int | None:
    """When the first batch of a range was written, in ms since 1970; None if there is none."""
    reader = RangeReader(cluster, span, isolation, bytes_first=1)  # brings one batch all the same
    try:
        while (found := await reader.next()) is not None:
            if not isinstance(found, Lost) and found:
                header = record_batch.read_header(found[0])
                return header.max_timestamp if header.append_time else header.base_timestamp
    finally:
        await reader.close()
    return None
