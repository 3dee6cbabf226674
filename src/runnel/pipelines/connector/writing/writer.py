"""`df.write.format("runnel")`: a table into topics, all of it or nothing.

Rule 1: nobody who reads committed messages sees a row before all are written.
Rule 2: a write has a name of its own, so one that is done again is another write, and its rows come twice; unless it is
        named (`sinkId` and `batchId`): then the second one writes nothing.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING
from uuid import uuid4

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceWriter, WriterCommitMessage

from runnel.client.sinks import Sinks
from runnel.pipelines.connector.gateway import gateway
from runnel.pipelines.connector.writing.later import give
from runnel.pipelines.connector.writing.row_layout import Layout
from runnel.pipelines.connector.writing.write_options import WriteOptions
from runnel.pipelines.connector.writing.written import Attempt, Written, write_at_least_once, write_exactly_once
from runnel.pipelines.errors import BadOption

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

QUERY, BATCH = "sql.streaming.queryId", "streaming.sql.batchId"  # what Spark tells tasks of a micro-batch


def writer(options: Mapping[str, str], schema: "StructType", overwrite: bool) -> DataSourceWriter:
    """What Spark asks for to write a table."""
    refuse_overwrite(overwrite)
    wanted = WriteOptions.batch(options)
    layout = Layout.of(schema, wanted.topic)
    return RunnelWriter(wanted, layout) if wanted.exactly_once else PlainWriter(wanted, layout)


def refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise BadOption("mode", "overwrite", "what is in a topic stays there: use append")


class RunnelWriter(DataSourceArrowWriter):
    """Tasks write what nobody sees yet, the driver publishes it."""

    def __init__(self, options: WriteOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout
        self._own = "" if options.sink_id else f"write-{uuid4().hex}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_exactly_once(self._options, self._layout, self._attempt(), iterator)

    def _attempt(self) -> Attempt:
        if self._own:
            return attempt_of(self._own, 0)
        batch = self._options.batch_id
        return attempt_of(self._options.sink_id, running_batch() if batch is None else batch)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        publish(self._options, messages, final=bool(self._own))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        withdraw(self._options, messages)


class PlainWriter(DataSourceArrowWriter):
    """Rows are there when their task has ended."""

    def __init__(self, options: WriteOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_at_least_once(self._options, self._layout, iterator)


# --- tasks
def attempt_of(sink: str, batch: int, query: str = "") -> Attempt:
    """The task that is under way, as an attempt at a batch."""
    context = TaskContext.get()
    assert context is not None, "rows are written by tasks alone"
    return Attempt(sink, batch, context.partitionId(), context.taskAttemptId(), query)


def running_batch() -> int:
    """The number of the micro-batch that is under way."""
    context = TaskContext.get()
    number = None if context is None else context.getLocalProperty(BATCH)
    if number is None:
        raise BadOption("batchId", "", "outside of foreachBatch, a sink that has a name needs the batch's number too")
    return int(number)


# --- the driver
def publish(options: WriteOptions, messages: list[WriterCommitMessage | None], *, final: bool = False) -> None:
    """Let everybody see what the tasks of a batch wrote; what is delivered later, goes to the schedule then."""
    told = [one for one in messages if isinstance(one, Written) and one.sink]
    if not told:
        return
    first, gate = told[0], gateway(options.brokers)
    handles = [one.handle for one in told if one.handle is not None]
    if handles:
        sinks = Sinks(gate.cluster)
        gate.run(sinks.commit(first.sink, first.batch, handles, query=first.query, final=final))
    later = [row for one in told for row in one.later]
    if later:
        gate.run(give(gate.cluster, first.sink, first.batch, later, again=not final))


def withdraw(options: WriteOptions, messages: list[WriterCommitMessage | None]) -> None:
    """Drop what the tasks of a batch wrote, if it can be; else it is dropped with the next batch, or by time."""
    told = [one for one in messages if isinstance(one, Written) and one.handle is not None]
    if told:
        gate = gateway(options.brokers)
        handles = [one.handle for one in told if one.handle is not None]
        gate.run(Sinks(gate.cluster).abort_if_possible(told[0].sink, told[0].batch, handles))
