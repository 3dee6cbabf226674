"""Spark at work, in a process of its own that lives for all rounds: the jobs of the scenario `spark`.

Rule 1: one Spark, on two cores, for all contenders: what its JVM has learned, it has learned for all of them.
Rule 2: CPU time is that of all processes of Spark: the driver, the JVM, and the Python workers.
"""

import shutil
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from random import Random
from statistics import median
from typing import TYPE_CHECKING, Any

from bench import spark_connector
from bench.load.drive import receive
from bench.load.kafka_wire import KafkaWire
from bench.machine import cpu_of_tree
from runnel.record import records
from runnel.record.records import Record

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CORES = 2
PARTITIONS = 2  # of the topic
OURS, JVM, PARQUET = "runnel", "spark-kafka", "limit"
BATCH_ROWS = 500
BATCHES = 64  # that are unlike; then they come again
WINDOW = 4
STREAM_S_MAX = 500
COLUMNS = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers")  # as archived


# --- what is read
@dataclass(frozen=True, slots=True)
class Filled:
    """So many messages of `size` bytes in each partition of a topic."""

    logs: tuple[KafkaWire, ...]
    rows: int
    size: int


def fill(job: Filled) -> None:
    rng = Random(1)
    now_ms = int(time.time() * 1000)  # what is old is removed by retention
    batches = [records.encode([_record(rng, n, now_ms, job.size) for n in range(BATCH_ROWS)]) for _ in range(BATCHES)]
    for log in job.logs:
        with log.connect() as connection:
            acks, waiting = log.acks(), 0
            for number in range(job.rows // BATCH_ROWS):
                connection.sendall(log.request_of(batches[number % BATCHES]))
                waiting += 1
                while waiting >= WINDOW:
                    waiting -= acks(receive(connection))
            while waiting:
                waiting -= acks(receive(connection))


def _record(rng: Random, number: int, now_ms: int, size: int) -> Record:
    """A key, a header, and a value that is text: it can be compressed to about half."""
    key, value = b"%016x" % rng.getrandbits(64), rng.randbytes(size // 2).hex().encode()
    return Record(number, now_ms + number, key, value, (("source", b"bench"),))


# --- one Spark
@dataclass(frozen=True, slots=True)
class Opened:
    folder: str
    jvm: bool  # with Spark's own connector


_open = ExitStack()
_spark: "SparkSession | None" = None


def open_spark(job: Opened) -> None:
    global _spark
    from runnel.pipelines.conf import SessionConf
    from runnel.pipelines.lake.sink import LakeFormat
    from runnel.pipelines.session import session

    settings = {"spark.driver.memory": "2g", "spark.local.dir": job.folder}
    if job.jvm:
        settings["spark.jars"] = ",".join(map(str, spark_connector.jars()))
    conf = SessionConf("bench", f"local[{CORES}]", settings, log=f"{job.folder}/spark.log")
    _spark = _open.enter_context(session(conf))
    _spark.dataSource.register(LakeFormat)


def close_spark(_: None) -> None:
    global _spark
    _open.close()
    _spark = None


# --- reading
@dataclass(frozen=True, slots=True)
class Reading:
    """One contender reads a topic (or the Parquet files of its rows) to the end."""

    contender: str
    address: str
    topic: str
    rows: int
    folder: str  # for checkpoints and tables; it is removed before
    parquet: str
    rows_per_trigger: int = 0  # of a stream; 0: all at once


@dataclass(frozen=True, slots=True)
class Spent:
    rows: int
    seconds: float
    cpu_s: float
    batch_ms: float = 0.0  # of a stream, the median over its batches

    @property
    def rate(self) -> float:
        return self.rows / self.seconds


def write_parquet(job: Reading) -> None:
    """The same rows as files, for the limit."""
    _table(job).write.mode("overwrite").parquet(job.parquet)


def count(job: Reading) -> int:
    return _table(job).count()


def batch(job: Reading) -> Spent:
    """Read as a table, and throw the rows away."""
    table = _table(job)
    return _spent(lambda: table.write.format("noop").mode("overwrite").save(), job.rows)


def stream(job: Reading) -> Spent:
    """Read as a stream up to the present end, and throw the rows away."""
    return _streamed(job, lambda rows: rows.writeStream.format("noop"))


def lake(job: Reading) -> Spent:
    """Archive into a table of Delta's."""
    from runnel.pipelines.lake.sink import FORMAT

    def sink(rows: "DataFrame") -> Any:
        return rows.select(*COLUMNS).coalesce(CORES).writeStream.format(FORMAT).option("path", f"{job.folder}/lake")

    return _streamed(job, sink)


def _table(job: Reading) -> "DataFrame":
    assert _spark is not None
    if job.contender == PARQUET:
        return _spark.read.parquet(job.parquet)
    return _spark.read.format(_format(job)).options(**_options(job)).load()


def _format(job: Reading) -> str:
    return "runnel" if job.contender == OURS else "kafka"


def _options(job: Reading) -> dict[str, str]:
    limit = {"maxOffsetsPerTrigger": str(job.rows_per_trigger)} if job.rows_per_trigger else {}
    asked = {"kafka.bootstrap.servers": job.address, "subscribe": job.topic, "includeHeaders": "true"}
    return asked | {"startingOffsets": "earliest"} | limit


def _streamed(job: Reading, sink: "Callable[[DataFrame], Any]") -> Spent:
    assert _spark is not None
    rows = _spark.readStream.format(_format(job)).options(**_options(job)).load()
    shutil.rmtree(job.folder, ignore_errors=True)
    writer = sink(rows).option("checkpointLocation", f"{job.folder}/checkpoint").trigger(availableNow=True)
    queries: list[StreamingQuery] = []
    spent = _spent(lambda: queries.append(_ended(writer.start())), job.rows)
    progress = [each for each in queries[0].recentProgress if each["numInputRows"]]
    if (found := sum(each["numInputRows"] for each in progress)) != job.rows:
        raise ValueError(f"{job.contender} read {found} rows of {job.rows}")
    return replace(spent, batch_ms=median(each["durationMs"]["triggerExecution"] for each in progress))


def _ended(query: "StreamingQuery") -> "StreamingQuery":
    if not query.awaitTermination(STREAM_S_MAX):
        query.stop()
        raise TimeoutError(f"a stream did not end within {STREAM_S_MAX} s")
    return query


def _spent(work: Callable[[], None], rows: int) -> Spent:
    before, begun = cpu_of_tree(), time.perf_counter()
    work()
    seconds = time.perf_counter() - begun
    return Spent(rows, seconds, cpu_of_tree() - before)
