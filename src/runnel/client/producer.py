"""Sending messages: batched by size and time, a bounded amount in memory, idempotent unless told otherwise.

    linger_ms   how long a message may wait for company: 0 for latency, some milliseconds for throughput
    batch_bytes how large a batch may grow: it leaves at once when it is full

`send` waits only for room (backpressure) and, the first time, for the topic's metadata; the delivery it returns is
awaited by whoever needs the offset. Order within a partition is kept, through retries too.

With a transactional id, what is sent belongs to transactions, each of which is committed as a whole or not at all:

    async with Producer(cluster, ProducerSettings(transactional_id="billing-1")) as producer:
        async with producer.transaction():  # an exception aborts it
            await producer.send("invoices", b"...")
            await producer.send_offsets(consumer.positions, consumer.seat)
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

from runnel.client.cluster import Cluster
from runnel.client.errors import BufferFull, Closed
from runnel.client.line import Appended, Batch, Identity, record_bytes
from runnel.client.metadata import Topic, TopicPartition
from runnel.client.offsets import Committed
from runnel.client.partitioner import partitioner
from runnel.client.producer_settings import ACKS_ALL, ProducerSettings, check_settings
from runnel.client.sender import Sender
from runnel.client.transaction import State
from runnel.client.transaction_calls import Seat
from runnel.client.transactions import Transactions
from runnel.model.errors import InvalidConfig, InvalidPartitions, RetriableError, RunnelError
from runnel.model.seams import Buffer
from runnel.model.sinks import Handle
from runnel.record import batch as record_batch
from runnel.record.records import Headers

__all__ = ["ACKS_ALL", "Delivered", "Delivery", "Producer", "ProducerSettings", "Seat"]

FIRST_BOUND = 2**16  # enough to spread over any number of partitions


class Delivered(NamedTuple):
    topic: str
    partition: int
    offset: int  # -1 with acks=0: the broker does not say
    timestamp_ms: int


class Delivery:
    """One message on its way. Await it for where it went; it raises if the message was given up."""

    __slots__ = ("_batch", "_place", "_timestamp_ms")

    def __init__(self, batch: Batch, place: int, timestamp_ms: int) -> None:
        self._batch = batch
        self._place = place
        self._timestamp_ms = timestamp_ms

    def done(self) -> bool:
        return self._batch.done.done()

    def kept(self) -> bool:
        """Whether it is known that the message was delivered."""
        done = self._batch.done
        return done.done() and not done.cancelled() and done.exception() is None

    def result(self) -> Delivered:
        return self._delivered(self._batch.done.result())

    def add_done_callback(self, call: Callable[[], None]) -> None:
        """Call when the broker has answered, or the message was given up."""
        self._batch.done.add_done_callback(lambda _: call())

    def __await__(self) -> Generator[Any, None, Delivered]:
        return self._delivered((yield from asyncio.shield(self._batch.done).__await__()))

    def _delivered(self, appended: Appended) -> Delivered:
        offset = appended.base_offset + self._place if appended.base_offset >= 0 else -1
        when = appended.append_time_ms if appended.append_time_ms >= 0 else self._timestamp_ms
        return Delivered(*self._batch.where, offset, when)


class Producer:
    """Use it as `async with Producer(cluster) as producer`; leaving the block flushes."""

    sender_type: type[Sender] = Sender  # simulated producers have one that is watched

    def __init__(
        self, cluster: Cluster, settings: ProducerSettings | None = None, *, identity: Identity | None = None
    ) -> None:
        """`identity`: what somebody else got for the transactional id; without it, this producer gets its own."""
        self.cluster = cluster
        self.settings = settings or ProducerSettings()
        check_settings(self.settings)
        self.delivered = 0  # messages
        self.failed = 0
        first = cluster.rng.below(FIRST_BOUND) if cluster.rng is not None else 0
        self._partitioner = partitioner(self.settings.partitioner, first)
        self._transactions = self._made_transactions()
        if identity is not None:
            self._transactional().now.identified(identity)
        self._sender = self.sender_type(
            cluster, self.settings, urgent=self._urgent, on_settled=self._on_settled, transactions=self._transactions
        )
        self._unsettled_bytes = 0
        self._waiters: list[asyncio.Future[None]] = []
        self._flushing = 0
        self._failure: RunnelError | None = None
        self._loop = asyncio.get_running_loop()
        self._settled = asyncio.Event()
        self._closed = False

    def _made_transactions(self) -> Transactions | None:
        settings = self.settings
        if settings.transactional_id is None:
            return None
        return Transactions(
            self.cluster,
            settings.transactional_id,
            timeout_ms=settings.transaction_timeout_ms,
            block_ms=settings.block_timeout_ms,
            classic=settings.classic_transactions,
            wake=lambda: self._sender.wake(),
        )

    async def __aenter__(self) -> "Producer":
        if self._transactions is not None:
            await self._transactions.identify()
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close(flush=kind is None)

    # --- sending
    async def send(
        self,
        topic: str,
        value: bytes | None,
        *,
        key: bytes | None = None,
        partition: int | None = None,
        headers: Headers = (),
        timestamp_ms: int | None = None,
    ) -> Delivery:
        """Put a message into its batch. Waits only for room, and once for the topic's metadata."""
        size = record_bytes(key, value, headers)
        if self._closed or self._unsettled_bytes + size > self.settings.buffer_bytes_max:
            await self._room(size)
        known = self.cluster.known_topic(topic) or await self._topic(topic)
        self._raise_unless_open()
        where = self._place(known, key, partition)
        when = self.cluster.clock.wall_ms() if timestamp_ms is None else timestamp_ms
        batch = self._batch_for(where, size)
        return Delivery(batch, batch.add(key, value, headers, when, size), when)

    async def send_batch(self, topic: str, partition: int, encoded: Buffer) -> Delivery:
        """Send a batch that is encoded already. An idempotent producer numbers it: a bytearray is changed."""
        header = record_batch.read_header(encoded)
        if self._closed or self._unsettled_bytes + header.size > self.settings.buffer_bytes_max:
            await self._room(header.size)
        known = self.cluster.known_topic(topic) or await self._topic(topic)
        self._raise_unless_open()
        batch = self._sender.new_batch(self._sender.line(self._place(known, None, partition)))
        batch.encoded, batch.size_bytes, batch.count, batch.closed = encoded, header.size, header.count, True
        self._unsettled_bytes += header.size
        return Delivery(batch, 0, header.max_timestamp)

    async def _topic(self, name: str) -> Topic:
        return await self.cluster.persist(lambda: self.cluster.topic(name, create=self.settings.create_topics))

    def _place(self, topic: Topic, key: bytes | None, partition: int | None) -> TopicPartition:
        count = len(topic.partitions)
        if partition is None:
            partition = self._partitioner.choose(topic.name, key, topic.led, count)
        if partition not in topic.places:
            raise InvalidPartitions(
                f"topic {topic.name!r} has no partition {partition}: it has {count}, from 0 to {count - 1}"
            )
        return topic.places[partition]

    def _batch_for(self, where: TopicPartition, size: int) -> Batch:
        """The open batch of a partition, or a new one if this message would make it too large."""
        line = self._sender.line(where)
        batch = line.open_batch()
        if batch is not None and batch.size_bytes + size > self.settings.batch_bytes:
            self._close_batch(batch)
            batch = None
        if batch is None:
            batch = self._sender.new_batch(line)
        self._unsettled_bytes += size
        if batch.size_bytes + size >= self.settings.batch_bytes:
            self._close_batch(batch)
        return batch

    def _close_batch(self, batch: Batch) -> None:
        batch.closed = True
        self._partitioner.batch_closed(batch.where.topic)
        self._sender.wake()

    async def _room(self, size: int) -> None:
        """Wait until `size` more bytes may be held."""
        end = self._loop.time() + self.settings.block_timeout_ms / 1000
        while self._unsettled_bytes and self._unsettled_bytes + size > self.settings.buffer_bytes_max:
            self._raise_if_closed()
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._waiters.append(waiter)
            self._sender.wake()
            try:
                async with asyncio.timeout_at(end):
                    await waiter
            except TimeoutError:
                raise BufferFull(
                    f"{self._unsettled_bytes} bytes wait to be sent to {self.cluster} and none left for "
                    f"{self.settings.block_timeout_ms} ms: see whether the broker is up, or send more slowly"
                ) from None
        self._raise_if_closed()

    def _raise_if_closed(self) -> None:
        if self._closed or self._sender.crash is not None:
            raise Closed("this producer was closed: make a new one") from self._sender.crash

    def _raise_unless_open(self) -> None:
        """After the waits: what waited may have outlived its transaction."""
        if self._transactions is not None:
            self._transactions.now.check_open()

    # --- waiting for all
    def _urgent(self) -> bool:
        """Don't wait for company while someone waits for a flush or for room."""
        return bool(self._flushing or self._waiters)

    def _on_settled(self, batch: Batch, result: Appended | RunnelError) -> None:
        self._unsettled_bytes -= batch.size_bytes
        if isinstance(result, RunnelError):
            self.failed += batch.count
            self._failure = self._failure or result
        else:
            self.delivered += batch.count
        self._settled.set()
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def flush(self) -> None:
        """Send everything now and wait for the answers; raises the first failure since the last flush."""
        await self.drain()
        if self._transactions is not None and self._transactions.doom is not None:
            self._transactions.now.check_open()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    async def drain(self) -> None:
        """Send everything now and wait until it is answered or given up: each delivery tells which."""
        self._flushing += 1
        try:
            while not self._sender.idle:
                self._settled.clear()
                self._sender.wake()
                await self._settled.wait()
        finally:
            self._flushing -= 1

    # --- transactions
    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        """A transaction: committed at the end of the block, or aborted if an exception leaves it or the commit fails.

        After OutcomeUnknown neither is known to have happened: `commit` tells.
        """
        await self.begin()
        try:
            yield
            if self._transactional().now.state is not State.READY:  # it may have been ended in the block
                await self.commit()
        except Exception:
            await self._abort_if_open()
            raise
        except BaseException:  # cancelled: whatever becomes of the abort, that is what is to be heard
            with suppress(RunnelError):
                await self._abort_if_open()
            raise

    async def begin(self) -> None:
        """Begin a transaction; all that is sent belongs to it until it is committed or aborted."""
        transactions = self._transactional()
        self._raise_if_closed()
        if transactions.now.state is State.ABORTING:  # an abort that failed or was cancelled
            await self.abort()
        await transactions.begin()
        self._failure = None

    async def commit(self) -> None:
        """Flush, then commit: all messages and offsets of the transaction become visible, or none.

        TransactionAbortable: none will, abort it. ProducerFenced: this producer is done for. OutcomeUnknown: ask again.
        """
        transactions = self._transactional()
        if transactions.now.state is State.OPEN:
            transactions.now.check_open()
            await self.drain()
        await transactions.commit()

    async def abort(self) -> None:
        """Give up all that was sent in the transaction: nobody who reads committed messages will see any of it."""
        transactions = self._transactional()
        transactions.now.aborting()
        if not self._sender.idle:
            transactions.now.give_up()
        await self.drain()
        await transactions.abort()
        self._failure = None

    async def hand_over(self) -> Handle | None:
        """Flush, then leave the transaction open, for somebody else to end; this producer is done for.

        None: nothing was sent, and there is no transaction.
        """
        transactions = self._transactional()
        transactions.now.check_open()
        await self.flush()
        started, identity = transactions.now.started, transactions.now.identity
        transactions.now.handed_over()
        return Handle(transactions.now.id, identity.producer_id, identity.epoch) if started else None

    async def _abort_if_open(self) -> None:
        """An abort that can't be carried out now is made up for by the next `begin`, or by the coordinator in time."""
        transactions = self._transactional()
        if transactions.now.state is State.OPEN:
            try:
                await self.abort()
            except RetriableError:
                return

    async def send_offsets(self, offsets: Mapping[TopicPartition, int | Committed], seat: Seat) -> None:
        """Commit offsets of a group (each: the next one to read) with the transaction, and only with it.

        The seat is a GroupConsumer's: if another member has its partitions meanwhile, the transaction can't commit.
        """
        await self._transactional().send_offsets(offsets, seat)

    def _transactional(self) -> Transactions:
        if self._transactions is None:
            raise InvalidConfig(
                "this producer has no transactional id: make one with ProducerSettings.transactional_id"
            )
        return self._transactions

    # --- the end
    async def close(self, *, flush: bool = True) -> None:
        """Flush, then stop; an open transaction is aborted. Without `flush`, what was not answered is given up."""
        try:
            if self._transactions is not None and not self._closed:
                await self._abort_if_open()
            elif flush and not self._closed:
                await self.flush()
        finally:
            self._closed = True
            await self._sender.close()
