"""Spark streams into a lake: `format("runnel_lake")`. Tasks write files side by side; the driver commits them at once.

    df.writeStream.format("runnel_lake").option("path", "/lake").option("checkpointLocation", ...).start()

Rule 1: a batch is named by its query and its number, which a restart keeps: what was committed is not committed again.
Rule 2: names of files tell their batch, and are never used twice: no try of a task writes to the file of another.
Rule 3: after a commit was tried, only what the log proves is removed: an error says nothing about what was written.
Rule 4: upkeep is done between two batches, and never fails one.
"""

import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage

from runnel.pipelines.connector.given import Given
from runnel.pipelines.errors import BadOption
from runnel.pipelines.lake.place import Place

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamWriter
    from pyspark.sql.types import StructType

    from runnel.pipelines.lake.files import Account, DataFile
    from runnel.pipelines.lake.table import BatchKey

FORMAT = "runnel_lake"
STORAGE = "storage."  # what follows is an option of the object store
NAMES = ("path", "fileSize", "compactEvery", "vacuumAfter", "checkpointLocation", "queryName")
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"  # as Spark's tasks are told

log = logging.getLogger(__name__)


class LakeFormat(DataSource):
    """A lake as a sink of streams."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def streamWriter(self, schema: "StructType", overwrite: bool) -> "DataSourceStreamWriter":
        if overwrite:
            raise BadOption("outputMode", "complete", "a lake is added to: use append")
        return cast("DataSourceStreamWriter", LakeWriter(SinkOptions.of(self.options), schema))


@dataclass(frozen=True)
class SinkOptions:
    """What a sink is told."""

    place: Place
    file_bytes: int
    compact_every: int  # batches; 0: never
    vacuum_after_h: int | None

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "SinkOptions":
        from runnel.pipelines.lake.files import FILE_BYTES

        storage = {name[len(STORAGE) :]: text for name, text in options.items() if name.lower().startswith(STORAGE)}
        given = Given({n: t for n, t in options.items() if not n.lower().startswith(STORAGE)}, NAMES)
        return cls(
            Place.of(given.text("path"), storage),
            given.size("fileSize") or FILE_BYTES,
            given.count("compactEvery") or 0,
            _vacuum_after_h(given),
        )


def _vacuum_after_h(given: Given) -> int | None:
    if "vacuumAfter" not in given:
        return None
    from runnel.pipelines.lake.upkeep import AFTER_H_MIN

    hours = given.span_ms("vacuumAfter", "0h") // 3_600_000
    if hours < AFTER_H_MIN:
        raise BadOption("vacuumAfter", given.text("vacuumAfter"), f"use {AFTER_H_MIN}h or more")
    return hours


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What one task wrote."""

    key: "BatchKey"
    files: "tuple[DataFile, ...]"
    account: "Account"


class LakeWriter(DataSourceStreamArrowWriter):
    """Writes on executors, commits in the driver."""

    def __init__(self, options: SinkOptions, schema: "StructType") -> None:
        from pyspark.sql.pandas.types import to_arrow_schema

        from runnel.pipelines.lake.columns import table_schema

        self.options = options
        self.schema: pa.Schema = table_schema(to_arrow_schema(schema, timezone="UTC"))

    # --- on executors
    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Written:
        from pyspark import TaskContext

        from runnel.pipelines.lake.table import BatchKey

        task = TaskContext.get()
        assert task is not None, "rows are written by tasks"
        key = BatchKey(str(task.getLocalProperty(QUERY_ID)), int(task.getLocalProperty(BATCH_ID) or 0))
        return self.write_task(iterator, key, f"{task.partitionId()}-{task.attemptNumber()}")

    def write_task(self, iterator: "Iterator[pa.RecordBatch]", key: "BatchKey", task: str) -> Written:
        """One try of one task."""
        from runnel.pipelines.lake.files import FileCutter

        prefix = f"{key.prefix}{task}-{uuid.uuid4().hex[:12]}"  # a driver that restarts counts its tries anew
        now_ms = time.time_ns() // 1_000_000
        options = self.options
        cutter = FileCutter(options.place, self.schema, prefix, file_bytes=options.file_bytes, now_ms=now_ms)
        try:
            for batch in iterator:
                cutter.add(batch)
            return Written(key, tuple(cutter.finish()), cutter.account)
        except BaseException:
            cutter.discard()
            raise

    # --- in the driver
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        from runnel.pipelines.lake.files import as_json, merged
        from runnel.pipelines.lake.table import commit, sweep

        written = _written(messages)
        files = [file for each in written for file in each.files]
        if not files:
            return  # no rows: a repetition has none either
        key, place = written[0].key, self.options.place
        if commit(place, key, self.schema, files, as_json(merged([each.account for each in written]))):
            sweep(place, key, files)
            self._upkeep(key)
        else:
            place.remove(file.name for file in files)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Remove what tasks wrote for a batch of which a task failed; with all there, a commit may have been tried."""
        if any(message is None for message in messages):
            self.options.place.remove(file.name for each in _written(messages) for file in each.files)

    def _upkeep(self, key: "BatchKey") -> None:
        from runnel.pipelines.lake.upkeep import compact, vacuum

        options = self.options
        if not options.compact_every or (key.batch + 1) % options.compact_every:
            return
        try:
            compact(options.place, file_bytes=options.file_bytes)
            if options.vacuum_after_h is not None:
                vacuum(options.place, after_h=options.vacuum_after_h)
        except Exception as error:  # noqa: BLE001  rule 4: the batch is committed, and the next turn comes
            log.warning("upkeep of %s failed and is tried again later: %s", options.place.path, error)


def _written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    return [cast(Any, message) for message in messages if message is not None]
