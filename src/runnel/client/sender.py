"""Getting batches to the leaders of their partitions: which requests are sent when, and what follows from the answers.

Rule 1: a broker has at most `in_flight_max` requests of ours to answer; a request holds one batch of a partition.
Rule 2: a batch is settled exactly once: appended, refused for good, or given up at its deadline.
Rule 3: requests to a broker leave in the order they were made: numbered batches must not overtake each other.
Rule 4: nothing waits for ever: what has no leader is looked up again after a pause, until the deadline.
Rule 5: when a transaction is doomed, all of it that is not answered yet is given up.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeAlias

from runnel.client.cluster import Cluster
from runnel.client.connection import Asked
from runnel.client.errors import BrokerUnreachable, Closed, Remedy, error_of, remedy_of
from runnel.client.identity import Admission, Anonymous, Idempotence
from runnel.client.line import Appended, Batch, Line
from runnel.client.metadata import TopicPartition
from runnel.client.producer_settings import ACKS_ALL, ProducerSettings
from runnel.client.transactions import CONCURRENT_PAUSE_MS, Transactions
from runnel.model.errors import ConcurrentTransactions, RequestTimedOut, RetriableError, RunnelError
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api
from runnel.wire.kafka.error_codes import ErrorCode

__all__ = ["ACKS_ALL", "ProducerSettings", "Sender"]

PRODUCE_BY_ID = 13  # from this version on, Produce names topics by id
Request: TypeAlias = list[tuple[Line, Batch]]
ANSWER_GRACE_MS = 5_000  # so that the broker's own word (timed out, not enough replicas) can still arrive


class Sender:
    """Sends the batches of all lines. `on_settled` hears of each batch when its fate is known."""

    line_type: type[Line] = Line  # simulated producers have one that is watched

    def __init__(
        self,
        cluster: Cluster,
        settings: ProducerSettings,
        *,
        urgent: Callable[[], bool],
        on_settled: Callable[[Batch, Appended | RunnelError], None],
        transactions: Transactions | None = None,
    ) -> None:
        self.cluster = cluster
        self.settings = settings
        self.urgent = urgent  # whether to send now what could still wait for company
        self.crash: BaseException | None = None
        self._on_settled = on_settled
        self._lines: dict[TopicPartition, Line] = {}
        self._active: dict[TopicPartition, Line] = {}  # those that have something to do
        self._in_flight: dict[int, int] = {}  # broker -> requests
        self._outbox: dict[int, deque[Request]] = {}  # broker -> requests in the order they are to be sent
        self._writing: set[int] = set()  # brokers whose outbox is being emptied
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._admission: Admission = transactions or (self._idempotence() if settings.idempotent else Anonymous())
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._looking_up: set[str] = set()
        self._pump: asyncio.Task[None] | None = None

    def _idempotence(self) -> Admission:
        return Idempotence(self.cluster, self._lines, wake=self.wake, refuse=self._fail_topic)

    # --- for the producer
    def line(self, where: TopicPartition) -> Line:
        line = self._lines.get(where)
        if line is None:
            line = self._lines[where] = self.line_type(
                where, self.settings.in_flight_max, transactional=self._admission.transactional_id is not None
            )
        return line

    def new_batch(self, line: Line) -> Batch:
        """Start a batch, and the pump if it does not run yet."""
        now = self._loop.time()
        deadline = now + self.settings.delivery_timeout_ms / 1000
        self._active[line.where] = line
        if self._pump is None:
            self._pump = self._spawn(self._run())
        self._wake.set()
        return line.new_batch(self._loop.create_future(), now, deadline)

    def wake(self) -> None:
        """Something changed: look again what there is to send."""
        self._wake.set()

    @property
    def idle(self) -> bool:
        return all(line.idle for line in self._active.values())

    async def close(self) -> None:
        """Stop; what was not answered yet is given up."""
        running = list(self._tasks)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        self.abandon()

    def abandon(self) -> None:
        error = Closed("the producer was closed before the broker answered: the message may or may not be there")
        error.__cause__ = self.crash
        for line in self._lines.values():
            for batch in [*line.in_flight, *line.expired(float("inf"))]:
                self._settle(line, batch, error)

    # --- what is sent when
    async def _run(self) -> None:
        """The pump: send what is ready, then sleep until something is, or something happens."""
        while True:
            self._wake.clear()
            self._expire()
            due = self._dispatch()
            try:
                async with asyncio.timeout_at(due):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _expire(self) -> None:
        doom = self._admission.doom
        now = self._loop.time() if doom is None else float("inf")
        for line in self._active.values():
            for batch in line.expired(now):
                self._settle(line, batch, doom or self._late(batch))

    def _late(self, batch: Batch) -> RequestTimedOut:
        return RequestTimedOut(
            f"{batch.count} messages for {batch.where} were not delivered to {self.cluster} within "
            f"{self.settings.delivery_timeout_ms} ms and are given up: see whether the partition has a leader"
        )

    def _dispatch(self) -> float | None:
        """Send what is ready; the loop time of the next thing to do."""
        now = self._loop.time()
        linger_s = 0.0 if self.urgent() else self.settings.linger_ms / 1000
        due: float | None = None
        ready: dict[int, list[Line]] = {}
        for line in list(self._active.values()):
            at = line.ready_at(linger_s)
            if at is None:
                if line.idle:
                    del self._active[line.where]
                continue
            if at <= now:
                self._sort_by_leader(line, ready)
                at = min((b.deadline for b in line.waiting), default=now + 1)
            due = at if due is None else min(due, at)
        for broker, lines in ready.items():
            while lines and self._in_flight.get(broker, 0) < self.settings.in_flight_max:
                lines = self._send_request(broker, lines, linger_s)
        return due

    def _sort_by_leader(self, line: Line, ready: dict[int, list[Line]]) -> None:
        leader = self._leader(line.where)
        if leader is None:
            self._look_up(line.where.topic)
        elif line.may_go_to(leader) and self._admission.admits(line, self._spawn):
            ready.setdefault(leader, []).append(line)

    def _send_request(self, broker: int, lines: list[Line], linger_s: float) -> list[Line]:
        """Start one request with a batch of each line, as far as they fit; the lines that have more to send."""
        batches: Request = []
        size = 0
        for line in lines:
            if size and line.waiting and size + line.waiting[0].size_bytes > self.settings.request_bytes_max:
                break
            batch = line.take(broker)
            if batch is not None:
                batches.append((line, batch))
                size += batch.size_bytes
        if batches:
            self._in_flight[broker] = self._in_flight.get(broker, 0) + 1
            self._outbox.setdefault(broker, deque()).append(batches)
            if broker not in self._writing:
                self._writing.add(broker)
                self._spawn(self._write(broker))
        now = self._loop.time()
        return [line for line in lines if (at := line.ready_at(linger_s)) is not None and at <= now]

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        """An error that is not one of ours is a fault in this code: nobody may wait for it for ever."""
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            self.crash = self.crash or task.exception()
            self.abandon()

    # --- what it takes to send: leaders
    def _look_up(self, topic: str) -> None:
        if topic not in self._looking_up:
            self._looking_up.add(topic)
            self._spawn(self._lookup(topic))

    async def _lookup(self, topic: str) -> None:
        """Find the leaders; lines that still have none ask again after a pause, until their batches expire."""
        try:
            self.cluster.forget(topic)
            await self.cluster.topic(topic)
        except RetriableError:
            pass  # the lines ask again after a pause
        except RunnelError as error:
            self._fail_topic(topic, error)
        finally:
            self._looking_up.discard(topic)
            self._delay_leaderless(topic)
            self._wake.set()

    def _leader(self, where: TopicPartition) -> int | None:
        """The broker that leads a partition, as far as is known."""
        topic = self.cluster.known_topic(where.topic)
        partition = topic.partitions.get(where.partition) if topic else None
        return partition.leader if partition is not None and self.cluster.knows(partition.leader) else None

    def _delay_leaderless(self, topic: str) -> None:
        pause_s = self.cluster.settings.backoff_ms_min / 1000
        for line in self._active.values():
            if line.where.topic == topic and self._leader(line.where) is None:
                line.not_before = self._loop.time() + pause_s

    def _fail_topic(self, topic: str, error: RunnelError) -> None:
        for line in self._lines.values():
            if line.where.topic == topic:
                for batch in line.expired(float("inf")):
                    self._settle(line, batch, error)

    # --- one request
    async def _write(self, broker: int) -> None:
        """Send the requests to one broker in their order; when one can't be sent, those behind it are not either."""
        outbox = self._outbox[broker]
        while outbox:
            batches = outbox[0]
            try:
                await self._begin(broker, batches)
                outbox.popleft()
            except RunnelError as error:
                failed = list(outbox)
                outbox.clear()
                for batches in failed:
                    self._failed(broker, batches, error)
        self._writing.discard(broker)

    async def _begin(self, broker: int, batches: Request) -> None:
        node = self.cluster.broker(broker, "produce")
        connection = await node.connection()
        await connection.room(self.settings.request_timeout_ms)
        self._put_off_late(batches)
        if not batches:
            self._done(broker)
            return
        topics = [self.cluster.known_topic(batch.where.topic) for _, batch in batches]
        by_id = all(topic is not None and topic.has_id for topic in topics)
        bounds = [None if by_id else PRODUCE_BY_ID - 1, self._admission.produce_version_max]
        version_max = min((bound for bound in bounds if bound is not None), default=None)
        version = connection.version_of(Api.PRODUCE, version_max=version_max)
        request = self._request(batches)
        if self.settings.acks == 0:
            connection.tell(Api.PRODUCE, request, version=version)
            self._done(broker)
            for line, batch in batches:
                self._settle(line, batch, Appended(-1, -1))
        else:
            asked = connection.begin(Api.PRODUCE, request, m.ProduceResponse, version=version)
            self._spawn(self._finish(broker, batches, asked))

    def _put_off_late(self, batches: Request) -> None:
        """Take out those before which one failed while they waited for a connection: a broker would see a gap."""
        if late := [each for each in batches if each[0].must_wait(each[1])]:
            batches[:] = [each for each in batches if each not in late]
            self._again(late, BrokerUnreachable("a batch that was sent before this one has to be sent again first"))

    async def _finish(self, broker: int, batches: Request, asked: Asked[m.ProduceResponse]) -> None:
        try:
            answer = await asked.finish(self.settings.request_timeout_ms + ANSWER_GRACE_MS)
        except RunnelError as error:
            self._failed(broker, batches, error)
        else:
            self._done(broker)
            self._settle_all(batches, answer, str(self.cluster.brokers.get(broker, broker)))

    def _done(self, broker: int) -> None:
        """The broker owes one answer less."""
        self._in_flight[broker] -= 1
        self._wake.set()

    def _failed(self, broker: int, batches: Request, error: RunnelError) -> None:
        """The request as a whole failed, before or after the broker got it."""
        self._done(broker)
        if isinstance(error, BrokerUnreachable | RequestTimedOut):
            self.cluster.doubt()
        if isinstance(error, RetriableError):
            self._again(batches, error)
        else:
            for line, batch in batches:
                self._settle(line, batch, error)

    def _request(self, batches: Request) -> m.ProduceRequest:
        topics: dict[str, m.ProduceRequest.TopicProduceData] = {}
        for _, batch in batches:
            name = batch.where.topic
            if name not in topics:
                known = self.cluster.known_topic(name)
                topics[name] = m.ProduceRequest.TopicProduceData(name=name, partition_data=[])
                if known is not None:
                    topics[name].topic_id = known.id
            topics[name].partition_data.append(
                m.ProduceRequest.PartitionProduceData(
                    index=batch.where.partition, records=batch.encode(self.settings.compression)
                )
            )
        return m.ProduceRequest(
            transactional_id=self._admission.transactional_id,
            acks=self.settings.acks,
            timeout_ms=self.settings.request_timeout_ms,
            topic_data=list(topics.values()),
        )

    def _settle_all(self, batches: Request, answer: m.ProduceResponse, broker: str) -> None:
        results = {
            TopicPartition(topic.name or self.cluster.topic_name(topic.topic_id) or "", partition.index): partition
            for topic in answer.responses
            for partition in topic.partition_responses
        }
        for line, batch in batches:
            result = results.get(batch.where)
            if result is None:
                self._again(
                    [(line, batch)], BrokerUnreachable(f"broker {broker} did not say what became of {batch.where}")
                )
            else:
                self._settle_one(line, batch, result, broker)

    def _settle_one(
        self, line: Line, batch: Batch, result: m.ProduceResponse.PartitionProduceResponse, broker: str
    ) -> None:
        code = result.error_code
        if code in (ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER):
            self._settle(line, batch, Appended(result.base_offset, result.log_append_time_ms))
            return
        remedy = remedy_of(code)
        if Remedy.REFRESH in remedy:
            self.cluster.forget(batch.where.topic)
        action = f"append {batch.count} message{'' if batch.count == 1 else 's'} to {batch.where}"
        error = error_of(code, action=action, broker=broker, message=result.error_message)
        # A batch in front of this one failed: the broker saw a gap that will close when both are sent again.
        follows = code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and (line.broken or not line.is_first(batch))
        if Remedy.RETRY in remedy or follows:
            self._again([(line, batch)], error, absent=follows)
        else:
            self._settle(line, batch, error)

    def _again(self, batches: Iterable[tuple[Line, Batch]], error: RunnelError, *, absent: bool = False) -> None:
        now = self._loop.time()
        doom = self._admission.doom
        for line, batch in batches:
            if batch.deadline <= now or doom is not None:
                self._settle(line, batch, doom or error)
            else:
                line.retry(batch, now + self._pause_ms(batch, error) / 1000, absent=absent)

    def _pause_ms(self, batch: Batch, error: RunnelError) -> int:
        """The transaction before this one is mostly ended very soon."""
        settings = self.cluster.settings
        if isinstance(error, ConcurrentTransactions):
            return min(CONCURRENT_PAUSE_MS << min(batch.attempts - 1, 8), settings.backoff_ms_max)
        return settings.backoff_ms_min

    def _settle(self, line: Line, batch: Batch, result: Appended | RunnelError) -> None:
        if isinstance(result, RunnelError):
            self._admission.fail(result)
        line.settle(batch, result)
        self._on_settled(batch, result)
