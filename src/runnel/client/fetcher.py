"""Reading ahead: one long poll at a time to each broker, into a buffer of bounded size.

Rule 1: a partition's batches are handed out in the order of their offsets, each exactly once, from the position on.
Rule 2: what was fetched for an earlier position (before a seek) is dropped: positions carry a version.
Rule 3: no more than `buffer_bytes_max` bytes wait to be taken, plus one answer of each broker.
Rule 4: only who leads a partition is asked for it, also if that changes while a connection is made: another broker may
        not have what was read already, and say so.
"""

import asyncio
from collections import deque
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from runnel.client.cluster import Cluster, Node
from runnel.client.errors import BrokerUnreachable, Closed, Remedy, error_of, remedy_of
from runnel.client.isolation import Aborted
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import EARLIEST, LATEST, READ_COMMITTED, list_offsets
from runnel.model.errors import CorruptBatch, LeaderNotAvailable, RequestTimedOut, RetriableError, RunnelError
from runnel.model.limits import MIB
from runnel.record import batch as record_batch
from runnel.record.batch import BatchHeader
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api
from runnel.wire.kafka.error_codes import ErrorCode

FETCH_BY_ID = 13  # from this version on, Fetch names topics by id
NO_SESSION = -1  # every request names all its partitions (KIP-227 is for followers with many)
ANSWER_GRACE_MS = 5_000  # what an answer may take beyond the wait we asked for


@dataclass(frozen=True, slots=True)
class FetchSettings:
    wait_ms: int = 500  # long poll: how long a broker may wait for `bytes_min`
    bytes_min: int = 1  # larger: fewer, fuller answers; smaller: lower latency
    bytes_max: int = 16 * MIB  # of one answer
    partition_bytes_max: int = 1 * MIB
    buffer_bytes_max: int = 32 * MIB
    isolation: int = READ_COMMITTED  # only what was committed, and only up to the first transaction that is open
    reset: str = "earliest"  # where to go when an offset is not there any more: earliest, latest, none
    request_timeout_ms: int = 30_000


class Fetched(NamedTuple):
    """One batch as it came: still encoded, possibly beginning before the position that was asked for."""

    where: TopicPartition
    header: BatchHeader
    data: memoryview
    position: int  # records below were not asked for
    aborted: bool  # belongs to a transaction that was aborted (read committed only)

    @property
    def hidden(self) -> bool:
        """Not for users: it only takes up offsets."""
        return self.aborted or self.header.control


@dataclass(slots=True, eq=False)
class Reading:
    """Where one partition is read."""

    where: TopicPartition
    fetch_offset: int
    version: int = 0
    paused: bool = False
    not_before: float = 0.0
    high_watermark: int = -1  # -1: not known yet
    last_stable: int = -1
    log_start: int = -1


class Fetcher:
    """Fetches the partitions it is told to; `take` hands out what came."""

    def __init__(self, cluster: Cluster, settings: FetchSettings | None = None) -> None:
        self.cluster = cluster
        self.settings = settings or FetchSettings()
        self.readings: dict[TopicPartition, Reading] = {}
        self._buffer: deque[tuple[Reading, int, Fetched]] = deque()
        self._buffered_bytes = 0
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        self._busy: dict[int, asyncio.Task[None]] = {}  # broker -> its long poll
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._looking_up = False
        self._timer: asyncio.TimerHandle | None = None
        self._failure: RunnelError | None = None
        self._versions = 0
        self._lane = cluster.new_lane("fetch")
        self._closed = False

    # --- what to read
    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Read these partitions from these offsets on, and no others."""
        kept = {w: r for w, r in self.readings.items() if w in positions and r.fetch_offset == positions[w]}
        self.readings = {w: kept.get(w) or self._reading(w, offset) for w, offset in positions.items()}
        self._fetch()

    def seek(self, where: TopicPartition, offset: int) -> None:
        self.readings[where] = self._reading(where, offset)
        self._fetch()

    def _reading(self, where: TopicPartition, offset: int) -> Reading:
        self._versions += 1
        return Reading(where, offset, self._versions)

    def pause(self, partitions: Iterable[TopicPartition], paused: bool = True) -> None:
        """Stop fetching partitions for a while, or go on (`paused=False`)."""
        for where in partitions:
            if where in self.readings:
                self.readings[where].paused = paused
        self._fetch()

    # --- what came
    async def take(self, timeout_ms: int) -> list[Fetched]:
        """All that is buffered, after waiting for something at most so long."""
        self._fetch()
        if not self._buffer and not self._failure and timeout_ms > 0:
            self._arrived.clear()
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._arrived.wait()
            except TimeoutError:
                return []
        if not self._buffer and self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        taken = [f for reading, version, f in self._buffer if self._current(reading, version)]
        self._buffer.clear()
        self._buffered_bytes = 0
        self._fetch()
        return taken

    def _current(self, reading: Reading, version: int) -> bool:
        return self.readings.get(reading.where) is reading and reading.version == version

    async def close(self) -> None:
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.cluster.close_lane(self._lane)

    # --- fetching
    def _fetch(self) -> None:
        """Start a long poll to every broker that leads something to read and has none under way."""
        if self._closed:
            raise Closed("this consumer was closed: make a new one")
        if self._buffered_bytes >= self.settings.buffer_bytes_max:
            return
        now = self._loop.time()
        leaderless: dict[str, None] = {}
        by_broker: dict[int, list[Reading]] = {}
        for reading in self.readings.values():
            if reading.paused or self._later(reading, now):
                continue
            topic = self.cluster.known_topic(reading.where.topic)
            partition = topic.partitions.get(reading.where.partition) if topic else None
            if partition is None or not self.cluster.knows(partition.leader):
                leaderless[reading.where.topic] = None
            else:
                by_broker.setdefault(partition.leader, []).append(reading)
        if leaderless and not self._looking_up:
            self._looking_up = True
            self._spawn(self._look_up(list(leaderless)))
        for broker, readings in by_broker.items():
            if broker not in self._busy:
                self._busy[broker] = self._spawn(self._poll(broker, readings))

    def _later(self, reading: Reading, now: float) -> bool:
        """Whether this partition has a pause after a failure; if so, it is looked at again when it ends."""
        if reading.not_before <= now:
            return False
        if self._timer is None:
            self._timer = self._loop.call_at(reading.not_before, self._pause_over)
        return True

    def _pause_over(self) -> None:
        self._timer = None
        if not self._closed:
            self._fetch()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (fault := task.exception()) is not None:
            closed = Closed(f"reading stopped because of a fault in the client: {fault!r}; report it")
            closed.__cause__ = fault
            self._fail(closed)

    def _fail(self, error: RunnelError) -> None:
        self._failure = self._failure or error
        self._arrived.set()

    async def _look_up(self, topics: list[str]) -> None:
        try:
            for topic in topics:
                self.cluster.forget(topic)
                known = await self.cluster.topic(topic)
                for reading in self.readings.values():
                    if reading.where.topic == topic:
                        self._check_exists(reading, known.partitions.keys())
        except RetriableError:
            pass  # asked again after the pause
        except RunnelError as error:
            self._fail(error)
        finally:
            self._looking_up = False
            self._hold([r for r in self.readings.values() if r.where.topic in topics and not self._led(r)])
            if not self._closed:
                self._fetch()

    def _check_exists(self, reading: Reading, numbers: Iterable[int]) -> None:
        if reading.where.partition not in numbers:
            raise LeaderNotAvailable(f"partition {reading.where} does not exist (yet): check its number")

    def _led(self, reading: Reading) -> bool:
        topic = self.cluster.known_topic(reading.where.topic)
        partition = topic.partitions.get(reading.where.partition) if topic else None
        return partition is not None and self.cluster.knows(partition.leader)

    def _hold(self, readings: Iterable[Reading]) -> None:
        until = self._loop.time() + 2 * self.cluster.settings.backoff_ms_min / 1000
        for reading in readings:
            reading.not_before = until

    async def _poll(self, broker: int, readings: list[Reading]) -> None:
        """One long poll, and what follows from its answer."""
        try:
            node = self.cluster.broker(broker, self._lane)
            asked = {r.where: (r, r.version, r.fetch_offset) for r in readings}
            answer = await self._ask(node, readings)
            if answer.error_code:
                raise error_of(answer.error_code, action="fetch", broker=str(node))
            for topic in answer.responses:
                name = topic.topic or self.cluster.topic_name(topic.topic_id) or ""
                for data in topic.partitions:
                    entry = asked.get(TopicPartition(name, data.partition_index))
                    if entry is not None and self._current(entry[0], entry[1]):
                        await self._arrive(entry[0], data, str(node))
        except (BrokerUnreachable, RequestTimedOut):
            self.cluster.doubt()
            self._hold(readings)
        except RunnelError as error:
            self._hold(readings)
            if isinstance(error, CorruptBatch) or not isinstance(error, RetriableError):
                self._fail(error)
        finally:
            self._busy.pop(broker, None)
            if not self._closed:
                self._fetch()

    async def _ask(self, node: Node, readings: list[Reading]) -> m.FetchResponse:
        connection = await node.connection()
        topics: dict[str, m.FetchRequest.FetchTopic] = {}
        by_id = True
        for reading in readings:
            topic = await self.cluster.topic(reading.where.topic)
            partition = topic.partitions[reading.where.partition]
            if partition.leader != node.address.id:
                continue
            by_id = by_id and topic.has_id
            entry = topics.get(topic.name)
            if entry is None:
                entry = topics[topic.name] = m.FetchRequest.FetchTopic(
                    topic=topic.name, topic_id=topic.id, partitions=[]
                )
            entry.partitions.append(
                m.FetchRequest.FetchPartition(
                    partition=reading.where.partition,
                    current_leader_epoch=partition.leader_epoch,
                    fetch_offset=reading.fetch_offset,
                    partition_max_bytes=self.settings.partition_bytes_max,
                )
            )
        if not topics:
            return m.FetchResponse()
        request = m.FetchRequest(
            max_wait_ms=self.settings.wait_ms,
            min_bytes=self.settings.bytes_min,
            max_bytes=self.settings.bytes_max,
            isolation_level=self.settings.isolation,
            session_id=0,
            session_epoch=NO_SESSION,
            topics=list(topics.values()),
        )
        version = connection.version_of(Api.FETCH, version_max=None if by_id else FETCH_BY_ID - 1)
        timeout_ms = self.settings.wait_ms + max(ANSWER_GRACE_MS, self.settings.request_timeout_ms)
        return await connection.ask(Api.FETCH, request, m.FetchResponse, timeout_ms=timeout_ms, version=version)

    async def _arrive(self, reading: Reading, data: m.FetchResponse.PartitionData, broker: str) -> None:
        code = data.error_code
        if code == ErrorCode.OFFSET_OUT_OF_RANGE:
            await self._reset(reading, broker)
            return
        if code:
            remedy = remedy_of(code)
            if Remedy.REFRESH in remedy:
                self.cluster.forget(reading.where.topic)
            self._hold([reading])
            if Remedy.RETRY not in remedy:
                self._fail(error_of(code, action=f"fetch {reading.where} at {reading.fetch_offset}", broker=broker))
            return
        reading.high_watermark, reading.log_start = data.high_watermark, data.log_start_offset
        reading.last_stable = data.last_stable_offset
        if data.records:
            self._keep(reading, data, broker)

    def _keep(self, reading: Reading, data: m.FetchResponse.PartitionData, broker: str) -> None:
        """Put the batches of one partition into the buffer and move on behind them."""
        records = memoryview(data.records or b"")
        aborted = Aborted((a.first_offset, a.producer_id) for a in data.aborted_transactions or ())
        for at, header in record_batch.headers(records):
            if not record_batch.intact(records, header, at):
                raise CorruptBatch(
                    f"the batch at offset {header.base_offset} of {reading.where} came damaged from broker {broker}: "
                    f"look for disk errors there"
                )
            if header.last_offset < reading.fetch_offset:
                continue
            content = records[at : at + header.size]
            batch = Fetched(reading.where, header, content, reading.fetch_offset, aborted.judge(header))
            self._buffer.append((reading, reading.version, batch))
            self._buffered_bytes += header.size
            reading.fetch_offset = header.last_offset + 1
        self._arrived.set()

    async def _reset(self, reading: Reading, broker: str) -> None:
        """The offset is not there: go where the settings say."""
        if self.settings.reset == "none":
            action = f"fetch {reading.where} at {reading.fetch_offset}"
            self._fail(error_of(ErrorCode.OFFSET_OUT_OF_RANGE, action=action, broker=broker))
            self._hold([reading])
            return
        target = EARLIEST if self.settings.reset == "earliest" else LATEST
        found = await list_offsets(self.cluster, {reading.where: target}, isolation=self.settings.isolation)
        if self.readings.get(reading.where) is reading:
            self.seek(reading.where, found[reading.where].offset)
