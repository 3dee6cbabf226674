"""Topics as a stream: `spark.readStream.format("runnel")`.

Spark keeps one reader in the driver for the life of a query, and hands copies of a fresh one to the tasks: what the
driver's learns on its way is in its `Course`, which is made when it is first asked.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from runnel.pipelines.connector.arrow.columns import Projection
from runnel.pipelines.connector.reading.course import Course
from runnel.pipelines.connector.reading.options import ReadOptions
from runnel.pipelines.connector.reading.plan import OffsetJson, from_json, to_json
from runnel.pipelines.connector.reading.reader import Task, read

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType

BEHIND = "~behind"


class RunnelStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics batch by batch; the offsets that Spark keeps look like those of its Kafka source."""

    def __init__(self, options: ReadOptions, schema: "StructType") -> None:
        self._options = options
        self._projection = Projection.of(schema, options.shape.value_format)

    @cached_property
    def _course(self) -> Course:
        return Course(self._options)

    # --- in the driver
    def prepareForTriggerAvailableNow(self) -> None:
        self._course.prepare()

    def initialOffset(self) -> OffsetJson:
        return to_json(self._course.initial())

    def getDefaultReadLimit(self) -> ReadLimit:
        """One limit, as Spark knows no two at once. That it is one, tells ours from Trigger.Once, which has none."""
        limits = self._options.limits
        if limits.rows_max is not None:
            return ReadMaxRows(limits.rows_max)
        if limits.bytes_max is not None:
            return ReadMaxBytes(limits.bytes_max)
        return ReadAllAvailable() if limits.rows_min is None else ReadMinRows(limits.rows_min)

    def latestOffset(self, start: OffsetJson, limit: ReadLimit) -> OffsetJson:
        limited = not isinstance(limit, ReadAllAvailable)
        return to_json(self._course.latest(from_json(start), limited=limited))

    def reportLatestOffset(self) -> OffsetJson | None:
        """Where the logs end; and how far the query is behind, under a name that no topic can have."""
        newest = self._course.newest
        if newest is None:
            return None
        behind = self._course.behind()
        return to_json(newest) | ({BEHIND: behind} if behind else {})

    def partitions(self, start: OffsetJson, end: OffsetJson) -> list[InputPartition]:
        return [Task(span) for span in self._course.tasks(from_json(start), from_json(end))]

    # --- in a worker
    def read(self, partition: InputPartition) -> "Iterator[RecordBatch]":
        return read(self._options, self._projection, partition)
