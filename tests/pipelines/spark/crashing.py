"""A stream into a topic whose driver dies at a given point of a given batch: killed, or by an error.

    python -m tests.pipelines.spark.crashing CONF      # JSON: where to read, to write, to keep; when to die

Rule 1: the format is Runnel's own; only its writer dies.
Rule 2: to die is SIGKILL for the driver and its JVM, as of a machine that lost its power; the workers go with them.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType
from tests.pipelines.small_spark import small_spark

from runnel.pipelines.connector.source import RunnelSource
from runnel.pipelines.connector.writing.stream_writer import RunnelStreamWriter, stream_writer
from runnel.pipelines.connector.writing.writer import running_batch

POINTS = ("before-write", "after-write", "before-commit", "inside-commit", "after-commit")
DIE_AT, PIDS = "dieAt", "pids"  # options: "POINT:BATCH", and the file with whom to kill (none: an error is raised)
INSIDE_S = 0.004  # a commit takes some ten milliseconds


class Crash(Exception):
    """The driver dies of an error."""


class CrashingSource(RunnelSource):
    """Runnel, but for a writer that dies."""

    @classmethod
    def name(cls) -> str:
        return "crashing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> "CrashingWriter":
        options = dict(self.options)
        die_at, pids = options.pop(DIE_AT.lower(), ""), options.pop(PIDS, "")
        writer = stream_writer(options, schema, overwrite)
        assert isinstance(writer, RunnelStreamWriter)
        return CrashingWriter(writer, die_at, pids)


class CrashingWriter(RunnelStreamWriter):
    """Dies once."""

    def __init__(self, writer: RunnelStreamWriter, die_at: str, pids: str) -> None:
        super().__init__(writer._options, writer._layout)
        self._die_at = die_at
        self._pids = pids

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        self._perhaps("before-write", running_batch())
        told = super().write(iterator)
        self._perhaps("after-write", running_batch())
        return told

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        self._perhaps("before-commit", batchId)
        if self._die_at == f"inside-commit:{batchId}":
            threading.Timer(INSIDE_S, self._die).start()
        super().commit(messages, batchId)
        self._perhaps("after-commit", batchId)
        if self._die_at == f"inside-commit:{batchId}":
            self._die()  # it was quicker: the next point

    def _perhaps(self, point: str, batch: int) -> None:
        if self._die_at == f"{point}:{batch}":
            self._die()

    def _die(self) -> None:
        if not self._pids:
            raise Crash(self._die_at)
        for pid in json.loads(Path(self._pids).read_text()):
            os.kill(pid, signal.SIGKILL)
        time.sleep(60)  # until the end of the JVM ends this process too


def start(spark: SparkSession, conf: dict[str, Any]) -> StreamingQuery:
    """Stream the files of a folder, one in a batch, until all are read."""
    spark.createDataFrame([], "value string")  # makes this session the active one: it alone knows what it registers
    spark.dataSource.register(CrashingSource)
    stream = spark.readStream.option("maxFilesPerTrigger", 1).text(conf["source"]).repartition(2)
    writer = stream.writeStream.format("crashing").option("runnel.brokers", conf["brokers"])
    writer = writer.option("topic", conf["topic"]).option("checkpointLocation", conf["checkpoint"])
    writer = writer.option(DIE_AT, conf.get("die_at", "")).option(PIDS, conf.get("pids", ""))
    return writer.trigger(availableNow=True).start()


def main(conf: dict[str, Any]) -> None:
    spark = small_spark(Path(conf["folder"]))
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    Path(conf["pids"]).write_text(json.dumps([os.getpid(), gateway.proc.pid]))
    query = start(spark, conf)
    if not query.awaitTermination(conf["wait_s"]):
        sys.exit("the stream did not end in time")


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
