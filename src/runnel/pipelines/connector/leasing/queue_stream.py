"""Queues as a stream: `spark.readStream.format("runnel").option("queues", ...)`. The lease is the offset.

Rule 1: `latestOffset(start)` is called once all that `start` stands for is kept by the sink and by Spark: what was
        leased with it is accepted then, and not before; and more is leased.
Rule 2: rows are read from the log by the offsets of the lease: a task or a batch that is repeated brings the same.
Rule 3: the lease is extended for as long as the driver works on it. If the driver ends, it runs out; a driver that
        starts again in time goes on with it, as it is in the checkpoint.
Rule 4: what ran out before it could be accepted comes again, to this stream or to another consumer. This stream knows
        what it has finished, and accepts that without a row.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Self

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from runnel.client.metadata import TopicPartition
from runnel.client.offsets import READ_COMMITTED
from runnel.pipelines.connector.arrow.columns import Projection, rows
from runnel.pipelines.connector.gateway import gateway
from runnel.pipelines.connector.given import Given
from runnel.pipelines.connector.leasing.lease import Json, Lease, Place, Stretch, leased, stretches, with_finished
from runnel.pipelines.connector.leasing.lease_keeper import LeaseKeeper
from runnel.pipelines.connector.leasing.queue_calls import QueueCalls
from runnel.pipelines.connector.reading.losses import Losses
from runnel.pipelines.connector.reading.options import QUEUE_NAMES, Shape
from runnel.pipelines.connector.reading.ranges import Range
from runnel.pipelines.errors import BadOption

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

ROWS_DEFAULT = 10_000  # a batch; the offset that Spark keeps grows with them
BYTES_DEFAULT = 64 << 20
LEASE_DEFAULT = "5m"  # how long a driver may be gone; while it is there, it extends
LEASE_MS_MIN = 1_000
GAP_MAX = 1_000  # offsets between leased ones that are read and dropped, rather than fetched around


@dataclass(frozen=True)
class QueueOptions:
    """All that a stream of queues is told."""

    brokers: tuple[str, ...]
    queues: tuple[str, ...]
    lease_ms: int
    filter: str
    rows_max: int
    bytes_max: int
    shape: Shape
    losses: Losses

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        given = Given(options, QUEUE_NAMES)
        queues = tuple(dict.fromkeys(part.strip() for part in given.text("queues").split(",") if part.strip()))
        lease_ms = given.span_ms("lease", LEASE_DEFAULT)
        if not queues:
            raise BadOption("queues", given.text("queues"), "name queues, with commas between")
        if lease_ms < LEASE_MS_MIN:
            raise BadOption("lease", given.text("lease"), "a lease lasts a second at least, so that it can be extended")
        return cls(
            given.brokers(), queues, lease_ms, given.text("filter"),
            given.count("maxOffsetsPerTrigger") or ROWS_DEFAULT, given.size("maxBytesPerTrigger") or BYTES_DEFAULT,
            Shape.given(given),
            Losses(given.flag("failOnDataLoss", True), given.text("lossLog")),
        )  # fmt: skip


class QueueTask(InputPartition):
    """What one task reads: leased messages of one partition."""

    def __init__(self, where: TopicPartition, wanted: list[Stretch]) -> None:
        super().__init__((where, wanted))
        self.where = where
        self.wanted = wanted


class QueueStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads queues batch by batch."""

    def __init__(self, options: QueueOptions, schema: "StructType") -> None:
        self._options = options
        self._projection = Projection.of(schema, options.shape.value_format)
        self._left: int | None = None  # messages that Trigger.AvailableNow may still take
        self._settled: Lease | None = None  # accepted already; its `finished` is what it left

    @cached_property
    def _calls(self) -> QueueCalls:
        return QueueCalls(gateway(self._options.brokers), self._options.lease_ms, self._options.filter)

    @cached_property
    def _keeper(self) -> LeaseKeeper:
        return LeaseKeeper(self._calls.extend, self._options.lease_ms / 3000)

    # --- in the driver
    def prepareForTriggerAvailableNow(self) -> None:
        self._left = sum(self._calls.ready(queue) for queue in self._options.queues)

    def initialOffset(self) -> Json:
        return Lease().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.rows_max)

    def latestOffset(self, start: Json, limit: ReadLimit) -> Json:
        """Accept what `start` leased, and lease more. `start` again if there is nothing."""
        before = self._accepted(Lease.from_json(start))
        found = self._calls.receive(
            self._options.queues, self._room(), self._options.bytes_max, wait=self._left is None
        )
        new, again = leased(before.id + 1, found, before.finished)
        refused = self._calls.accept(again)
        new = Lease(new.id, new.receipts, with_finished(new, refused))
        self._settled = Lease(before.id, {}, new.finished)
        if self._left is not None:
            self._left -= len(found)
        if not new:
            return start
        self._keeper.keep(new)
        return new.to_json()

    def _accepted(self, lease: Lease) -> Lease:
        """What is left to be known of a lease whose messages are all done."""
        if self._settled is not None and self._settled.id == lease.id:
            return self._settled
        self._keeper.keep(None)
        return Lease(lease.id, {}, with_finished(lease, self._calls.accept(lease)))

    def _room(self) -> int:
        return self._options.rows_max if self._left is None else max(0, min(self._left, self._options.rows_max))

    def partitions(self, start: Json, end: Json) -> list[InputPartition]:
        lease = Lease.from_json(end)
        if lease.id == start["id"]:
            return []
        held = self._keeper.lease
        if held is None or held.id != lease.id:  # a batch of before the last restart
            self._calls.extend(lease)
            self._keeper.keep(lease)
        return [_task(place, each) for place, each in lease.receipts.items()]

    def stop(self) -> None:
        self._keeper.close()

    # --- in a worker
    def read(self, partition: InputPartition) -> "Iterator[RecordBatch]":
        if not isinstance(partition, QueueTask):  # Spark makes one of its own if there is nothing to read
            return
        where, through = partition.where, gateway(self._options.brokers)
        for run in _runs(partition.wanted):
            span = Range(where, run[0][0], run[-1][1] + 1)
            fetched = through.read(span, READ_COMMITTED, self._options.losses)
            yield from rows(self._projection, where.topic, where.partition, fetched, span.first, span.end, run)


def queue_stream(options: Mapping[str, str], schema: "StructType") -> QueueStream:
    return QueueStream(QueueOptions.of(options), schema)


def _task(place: Place, receipts: Mapping[int, str]) -> QueueTask:
    return QueueTask(TopicPartition(place.topic, place.partition), stretches(receipts))


def _runs(wanted: list[Stretch]) -> Iterator[list[Stretch]]:
    """Stretches that are read in one go."""
    run: list[Stretch] = []
    for stretch in wanted:
        if run and stretch[0] - run[-1][1] > GAP_MAX:
            yield run
            run = []
        run.append(stretch)
    if run:
        yield run
