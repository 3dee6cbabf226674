"""`df.writeStream.format("runnel")`: a stream into topics, every row exactly once.

Rule 1: a micro-batch is published once, however often Spark runs it: its sink and its number say which one it is.
Rule 2: a sink belongs to one query: another one has batches of the same numbers, and is refused.
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, DataSourceStreamWriter, WriterCommitMessage

from runnel.pipelines.connector.writing.row_layout import Layout
from runnel.pipelines.connector.writing.write_options import WriteOptions
from runnel.pipelines.connector.writing.writer import (
    QUERY,
    attempt_of,
    publish,
    refuse_overwrite,
    running_batch,
    withdraw,
)
from runnel.pipelines.connector.writing.written import write_at_least_once, write_exactly_once

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def stream_writer(options: Mapping[str, str], schema: "StructType", overwrite: bool) -> DataSourceStreamWriter:
    """What Spark asks for to write a stream."""
    refuse_overwrite(overwrite)
    wanted = WriteOptions.streaming(options)
    layout = Layout.of(schema, wanted.topic)
    return RunnelStreamWriter(wanted, layout) if wanted.exactly_once else PlainStreamWriter(wanted, layout)


class RunnelStreamWriter(DataSourceStreamArrowWriter):
    """Tasks write what nobody sees yet, the driver publishes it."""

    def __init__(self, options: WriteOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        query = running_query()
        attempt = attempt_of(self._options.sink_id or query, running_batch(), query)
        return write_exactly_once(self._options, self._layout, attempt, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        publish(self._options, messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        withdraw(self._options, messages)


class PlainStreamWriter(DataSourceStreamArrowWriter):
    """Rows are there when their task has ended."""

    def __init__(self, options: WriteOptions, layout: Layout) -> None:
        self._options = options
        self._layout = layout

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return write_at_least_once(self._options, self._layout, iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All is there already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What is there stays."""


def running_query() -> str:
    """The id of the query that is under way: the same for all its runs on one checkpoint."""
    context = TaskContext.get()
    assert context is not None, "rows are written by tasks alone"
    query = context.getLocalProperty(QUERY)
    assert query is not None, "Spark tells every task of a stream whose it is"
    return query
