"""What a task that writes does with its rows, and what it tells the driver.

Rule 1: exactly once: rows go into a transaction that is left open, and its handle to the driver. Nobody sees them
        before the driver publishes the batch; if the batch was published before, the rows are dropped here.
Rule 2: at least once: rows are there when the task ends. One that fails half-way leaves some, and they come again.
Rule 3: a task without rows asks nobody for anything.
Rule 4: connections, and the producer of rule 2, are kept for the tasks that this process gets later.
"""

from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from itertools import chain
from uuid import uuid4

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from runnel.client.cluster import Cluster
from runnel.client.metadata import Topic
from runnel.client.producer import Producer, ProducerSettings
from runnel.client.sinks import Sinks
from runnel.model.sinks import Begun, Handle
from runnel.pipelines.connector.gateway import Gateway, gateway
from runnel.pipelines.connector.writing.later import Held, Waiting, give, topic_of, waiting_rows
from runnel.pipelines.connector.writing.row_layout import Layout
from runnel.pipelines.connector.writing.rows import Encoded, Encoder
from runnel.pipelines.connector.writing.write_options import WriteOptions

FIRST_BOUND = 2**16  # enough to spread rows without keys over any number of partitions


@dataclass(frozen=True)
class Attempt:
    """One try at one partition of a batch."""

    sink: str
    batch: int
    partition: int
    number: int
    query: str = ""


@dataclass
class Written(WriterCommitMessage):
    """What became of the rows of a task."""

    sink: str = ""  # empty: it had nothing to publish
    batch: int = -1
    query: str = ""
    handle: Handle | None = None
    rows: int = 0
    later: list[Waiting] = field(default_factory=list)  # those of them that are delivered later


def write_at_least_once(options: WriteOptions, layout: Layout, batches: Iterator[pa.RecordBatch]) -> Written:
    """Send the rows of a task; when it returns, they are there."""
    some = _some(batches)
    if some is None:
        return Written()
    gate = gateway(options.brokers)
    producer = _producer(gate, options)
    rows = Rows(gate, options, layout)
    try:
        for piece in rows.pieces(some):
            gate.run(_produce(producer, piece.encoded()))
            if piece.later:
                gate.run(give(gate.cluster, uuid4().hex, 0, piece.later, again=False))
        gate.run(producer.flush())
    except BaseException:
        _producers.pop((options.brokers, options.producer), None)
        gate.run(producer.close(flush=False))
        raise
    return Written(rows=rows.count)


def write_exactly_once(
    options: WriteOptions, layout: Layout, attempt: Attempt, batches: Iterator[pa.RecordBatch]
) -> Written:
    """Write the rows of a task into a transaction, unless their batch was published before."""
    some = _some(batches)
    if some is None:
        return Written()
    gate = gateway(options.brokers)
    sinks = Sinks(gate.cluster)
    rows = Rows(gate, options, layout)
    begun = gate.run(_begin(sinks, attempt, options.producer.transaction_timeout_ms))
    try:
        handle, later = _write(gate, options.producer, begun, rows.pieces(some))
    except BaseException:
        if begun.handle is not None:
            gate.run(sinks.abort_if_possible(attempt.sink, attempt.batch, [begun.handle]))
        raise
    return Written(attempt.sink, attempt.batch, attempt.query, handle, rows.count, later)


async def _begin(sinks: Sinks, attempt: Attempt, timeout_ms: int) -> Begun:
    return await sinks.begin(
        attempt.sink, attempt.batch, attempt.partition, attempt.number,
        query=attempt.query, transaction_timeout_ms=timeout_ms,
    )  # fmt: skip


def _write(
    gate: Gateway, settings: ProducerSettings, begun: Begun, pieces: "Iterator[Piece]"
) -> tuple[Handle | None, list[Waiting]]:
    """What was written, if anything is to be; and what is delivered later, which the driver has to see to."""
    later = Held()
    if begun.handle is None:
        for piece in pieces:
            later.add(piece.later)
        return None, later.rows
    with _Writing(gate, Sinks(gate.cluster).writing(begun, settings)) as producer:
        for piece in pieces:
            gate.run(_produce(producer, piece.encoded()))
            later.add(piece.later)
        return gate.run(producer.hand_over()), later.rows


async def _produce(producer: Producer, batches: list[Encoded]) -> None:
    for one in batches:
        await producer.send_batch(one.topic, one.partition, one.batch)


class _Writing:
    """A producer that lives on the gateway's loop, for a block of code that does not."""

    def __init__(self, gate: Gateway, writing: AbstractAsyncContextManager[Producer]) -> None:
        self._gate = gate
        self._writing = writing

    def __enter__(self) -> Producer:
        return self._gate.run(self._enter())

    async def _enter(self) -> Producer:
        return await self._writing.__aenter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self._gate.run(self._exit(kind, error))

    async def _exit(self, kind: type[BaseException] | None, error: BaseException | None) -> None:
        await self._writing.__aexit__(kind, error, None)


class Piece:
    """Rows of one topic, some of which may be delivered later."""

    def __init__(self, topic: Topic, rows: pa.RecordBatch, layout: Layout, encoder: Encoder, now_ms: int) -> None:
        self._topic, self._rows = topic, rows
        self._encoder, self._now_ms = encoder, now_ms
        self.later: list[Waiting] = []
        if layout.delays:
            due = layout.due(rows, now_ms)
            self._rows = rows.filter(pa.array(due < 0))
            self.later = waiting_rows(layout, topic.name, rows.filter(pa.array(due >= 0)), due[due >= 0])

    def encoded(self) -> list[Encoded]:
        return list(self._encoder.encode(self._rows, self._topic, self._now_ms))


class Rows:
    """The rows of a task, a piece at a time: memory holds one, and what the producer may hold."""

    def __init__(self, gate: Gateway, options: WriteOptions, layout: Layout) -> None:
        self._gate = gate
        self._layout = layout
        cluster, settings = gate.cluster, options.producer
        self._encoder = Encoder(
            layout,
            options.topic,
            compression=settings.compression,
            batch_bytes=settings.batch_bytes,
            first=cluster.rng.below(FIRST_BOUND) if cluster.rng is not None else 0,
        )
        self.count = 0

    def pieces(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Piece]:
        for batch in batches:
            self.count += len(batch)
            for part in self._encoder.pieces(batch):
                for name, rows in self._encoder.by_topic(part).items():
                    now_ms = self._gate.cluster.clock.wall_ms()
                    yield Piece(self._topic(name), rows, self._layout, self._encoder, now_ms)

    def _topic(self, name: str) -> Topic:
        known = self._gate.cluster.known_topic(name)
        return known if known is not None else self._gate.run(topic_of(self._gate.cluster, name))


def _some(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch] | None:
    """The batches that have rows; None if there is none."""
    full = (batch for batch in batches if len(batch))
    first = next(full, None)
    return None if first is None else chain([first], full)


# --- the producers of this process
_producers: dict[tuple[tuple[str, ...], ProducerSettings], Producer] = {}


def _producer(gate: Gateway, options: WriteOptions) -> Producer:
    """One for all tasks that come to this process. A fork has another gateway, and so another producer."""
    key = (options.brokers, options.producer)
    found = _producers.get(key)
    if found is None or found.cluster is not gate.cluster:
        found = _producers[key] = gate.run(_made(gate.cluster, options.producer))
    return found


async def _made(cluster: Cluster, settings: ProducerSettings) -> Producer:
    return Producer(cluster, settings)
