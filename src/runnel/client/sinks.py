"""Publishing batches exactly once: many write, one publishes what they wrote, as a whole.

    sinks = Sinks(cluster)

    # each task, as often as it is tried; `handle` goes to the driver
    begun = await sinks.begin("clicks", batch, partition, attempt)
    if begun.handle is not None:                     # else the batch was published before: there is nothing to write
        async with sinks.writing(begun) as producer:     # an exception aborts
            await producer.send("clicks", b"...")
            handle = await producer.hand_over()          # None: nothing was sent

    # the driver, once all tasks are done; as often as it likes
    await sinks.commit("clicks", batch, [handle, ...])

Rule 1: nobody sees anything of a batch before `commit`, and then all of it. A batch that was published is not published
        again, whoever asks: `begin` says so, and `commit` drops what was written for it.
Rule 2: all calls may be repeated, and are, for as long as `timeout_ms` says.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Final, TypeVar

from runnel.client.calls import question, result
from runnel.client.cluster import Cluster
from runnel.client.errors import BrokerUnreachable
from runnel.client.line import Identity
from runnel.client.producer import Producer, ProducerSettings
from runnel.model.calls import Verb
from runnel.model.errors import InvalidRequest, RequestTimedOut, RunnelError
from runnel.model.sinks import (
    SINK_ABORT,
    SINK_BEGIN,
    SINK_COMMIT,
    SINK_DESCRIBE,
    SINK_FORGET,
    SINK_LIST,
    AbortBatch,
    BeginAttempt,
    Begun,
    CommitBatch,
    Handle,
    ListedSink,
    ListSinks,
    NamedSink,
    Published,
    SinkDescription,
)
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api

LANE: Final = "sinks"  # a connection of their own: a commit may wait, and answers come in order
TIMEOUT_MS: Final = 120_000
PAUSE_MS: Final = 10  # the first pause while something else of the sink is under way

Q = TypeVar("Q")
A = TypeVar("A")


class Sinks:
    """The sinks of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._turn = 0  # whose turn it is to be asked
        self._doubtful = False  # brokers may have moved

    # --- for those who write
    async def begin(
        self, sink: str, batch: int, partition: int, attempt: int, *,
        query: str = "", transaction_timeout_ms: int = 0, timeout_ms: int = TIMEOUT_MS,
    ) -> Begun:  # fmt: skip
        """Let an attempt write its part of a batch.

        `attempt`: a number that no other attempt at this partition has that may still run. The same again takes the
        place of the earlier one.
        """
        asked = BeginAttempt(sink, batch, partition, attempt, query, transaction_timeout_ms)
        return await self._persist(SINK_BEGIN, asked, timeout_ms)

    @asynccontextmanager
    async def writing(self, begun: Begun, settings: ProducerSettings | None = None) -> AsyncIterator[Producer]:
        """A producer in an attempt's transaction. What is not handed over by the end of the block is aborted."""
        if begun.handle is None:
            raise InvalidRequest("the batch was published already: there is nothing to write")
        handle = begun.handle
        settings = replace(
            settings or ProducerSettings(),
            transactional_id=handle.transactional_id,
            transaction_timeout_ms=begun.timeout_ms,
        )
        producer = Producer(self.cluster, settings, identity=Identity(handle.producer_id, handle.epoch))
        try:
            await producer.begin()
            yield producer
        finally:
            with suppress(RunnelError):  # it can't be aborted twice; what can't be aborted now, its sink will see to
                await producer.close(flush=False)

    # --- for who publishes
    async def commit(
        self, sink: str, batch: int, handles: Sequence[Handle], *,
        query: str = "", final: bool = False, timeout_ms: int = TIMEOUT_MS,
    ) -> Published:  # fmt: skip
        """Publish a batch. When this returns, everybody who reads committed messages sees all of it.

        InvalidTransactionState: an attempt was replaced or took too long; nothing is published, write the batch anew.
        """
        return await self._persist(SINK_COMMIT, CommitBatch(sink, batch, list(handles), query, final), timeout_ms)

    async def abort(self, sink: str, batch: int, handles: Sequence[Handle], *, timeout_ms: int = TIMEOUT_MS) -> None:
        """Drop what attempts wrote; what was published stays so."""
        await self._persist(SINK_ABORT, AbortBatch(sink, batch, list(handles)), timeout_ms)

    async def abort_if_possible(self, sink: str, batch: int, handles: Sequence[Handle]) -> None:
        """The same on the way out of trouble: what can't be reached now is dropped by the next batch, or by time."""
        with suppress(RunnelError):
            await self.abort(sink, batch, handles, timeout_ms=self.cluster.settings.request_timeout_ms)

    # --- for who looks after them
    async def describe(self, sink: str, *, timeout_ms: int = TIMEOUT_MS) -> SinkDescription:
        return await self._persist(SINK_DESCRIBE, NamedSink(sink), timeout_ms)

    async def list(self, prefix: str = "", *, timeout_ms: int = TIMEOUT_MS) -> list[ListedSink]:
        return (await self._persist(SINK_LIST, ListSinks(prefix), timeout_ms)).sinks

    async def forget(self, sink: str, *, timeout_ms: int = TIMEOUT_MS) -> int:
        """Abort all that is open, and forget which batches were published; returns how many attempts were open."""
        return (await self._persist(SINK_FORGET, NamedSink(sink), timeout_ms)).attempts

    async def _persist(self, verb: Verb[Q, A], request: Q, timeout_ms: int) -> A:
        return await self.cluster.persist(lambda: self._ask(verb, request), timeout_ms=timeout_ms, pause_ms=PAUSE_MS)

    async def _ask(self, verb: Verb[Q, A], request: Q) -> A:
        """One try. Where a broker does not answer, the next one is asked next."""
        if not self.cluster.brokers or self._doubtful:
            await self.cluster.refresh([])
            self._doubtful = False
        brokers = sorted(self.cluster.brokers)
        node = self.cluster.broker(brokers[self._turn % len(brokers)], LANE)
        try:
            answer = await node.ask(Api.RUNNEL_CALL, question(verb, request), m.RunnelCallResponse)
        except (BrokerUnreachable, RequestTimedOut):
            self._turn += 1
            self._doubtful = True
            raise
        return result(verb, answer, str(node))
