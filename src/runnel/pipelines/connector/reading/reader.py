"""Topics as a table: `spark.read.format("runnel")`.

Rule: what is read is decided once, in the driver, when the tasks are made; a task that is repeated reads the same.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from runnel.pipelines.connector.arrow.columns import Projection, rows
from runnel.pipelines.connector.gateway import gateway
from runnel.pipelines.connector.reading import plan
from runnel.pipelines.connector.reading.losses import Losses
from runnel.pipelines.connector.reading.options import ReadOptions
from runnel.pipelines.connector.reading.ranges import Range
from runnel.pipelines.connector.reading.survey import Survey

if TYPE_CHECKING:
    from pyarrow import RecordBatch
    from pyspark.sql.types import StructType


class Task(InputPartition):
    """What one task reads: messages of one partition that follow each other."""

    def __init__(self, span: Range) -> None:
        super().__init__(tuple(span))
        self.span = span


class RunnelReader(DataSourceReader):
    """Reads what the options say is there when the query starts."""

    def __init__(self, options: ReadOptions, schema: "StructType") -> None:
        self.options = options
        self.projection = Projection.of(schema, options.shape.value_format)

    def ranges(self, survey: Survey) -> list[Range]:
        """What is to be read, cut into tasks."""
        bounds = survey.bounds(survey.all_partitions())
        start = survey.place(self.options.start, bounds)
        for lost in survey.rewound(start, {where: held.end for where, held in bounds.items()}):
            survey.losses(lost)
        wanted = self.narrowed(survey, plan.ranges(start, survey.finish(bounds)))
        return survey.tasks(wanted, {where: held.start for where, held in bounds.items()})

    def narrowed(self, survey: Survey, wanted: list[Range]) -> list[Range]:
        """What is left of the ranges once it is known that some of it does not count."""
        return wanted

    def partitions(self) -> list[InputPartition]:
        return [Task(span) for span in self.ranges(Survey(self.options))]

    def read(self, partition: InputPartition) -> "Iterator[RecordBatch]":
        return read(self.options, self.projection, partition)


def read(options: ReadOptions, projection: Projection, task: InputPartition) -> "Iterator[RecordBatch]":
    """The rows of one task, in a worker. Spark makes a task without a range if there is nothing to read."""
    if not isinstance(task, Task):
        return iter(())
    span = task.span
    losses = Losses(options.fail_on_data_loss, options.loss_log)
    fetched = gateway(options.brokers).read(span, options.isolation, losses)
    return rows(projection, span.where.topic, span.where.partition, fetched, span.first, span.end)
