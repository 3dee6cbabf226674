r"""`runnel pipeline traffic`: how much goes through topics, how late, of which keys, and how far groups are behind.

    topics ----> query traffic: windows with a watermark ----\
    groups ----> query lag: a sample at each trigger --------+--> TOPIC, compacted: runnel.traffic
                                                              \-> tables TABLE/windows and TABLE/lags

Rule 1: what a batch tells is published once in the topic, and is once in the table, whoever dies meanwhile.
Rule 2: a window is told whenever a batch brought messages of it: the newest record of a key is the truth.
Rule 3: the job does not count its own records, nor Runnel's internal topics.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from runnel.pipelines.conf import StreamConf
from runnel.pipelines.connector.gateway import gateway
from runnel.pipelines.errors import BadOption
from runnel.pipelines.jobs.traffic.cluster import make_output, partition_counts, sample_lags
from runnel.pipelines.jobs.traffic.records import Lag, Window, message_of, row_of, window_of
from runnel.pipelines.jobs.traffic.windows import READ_DDL, windows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NAME: Final = "traffic"
LAG: Final = "lag"
OUTPUT: Final = "runnel.traffic"
KEYS_MAX: Final = 1_000  # that a record names: it is one message
MESSAGE_DDL: Final = "key string, value string"
Merge = Callable[[str, str, int, Sequence[dict[str, Any]]], bool]


@dataclass(frozen=True, slots=True)
class TrafficConf:
    """What is measured, and where it is told."""

    stream: StreamConf
    topics: str = ""  # with commas; nothing: all
    output: str = OUTPUT
    table: str = ""  # a folder or URL; nothing: no tables
    start: str = "latest"  # as startingOffsets
    window_ms: int = 60_000
    late_ms: int = 600_000  # messages that are later than that are not counted
    keys: int = 10  # the busiest that are named
    lag: bool = True

    def __post_init__(self) -> None:
        if self.window_ms < 1_000:
            raise BadOption("window", f"{self.window_ms}ms", "a window has a second at least")
        if not 1 <= self.keys <= KEYS_MAX:
            raise BadOption("keys", self.keys, f"1 to {KEYS_MAX} keys are named")

    @property
    def brokers(self) -> tuple[str, ...]:
        return tuple(part.strip() for part in self.stream.brokers.split(",") if part.strip())


def run(spark: "SparkSession", conf: TrafficConf) -> "list[StreamingQuery]":
    """Measure what comes; with `once`, what is there and the lags of now."""
    cluster = gateway(conf.brokers)
    cluster.run(make_output(cluster.cluster, conf.output))
    if conf.lag and conf.stream.once:
        _tell(spark, conf, cluster.run(sample_lags(cluster.cluster)), "", 0)
    counted = windows(_messages(spark, conf), window_ms=conf.window_ms, late_ms=conf.late_ms, keys=conf.keys)
    queries = [_started(counted, conf, NAME, partial(_tell_windows, conf=conf), mode="update")]
    if conf.lag and not conf.stream.once:
        ticks = spark.readStream.format("rate").load()  # brings a row a second: every trigger has a batch
        queries.append(_started(ticks, conf, LAG, partial(_tell_lags, conf=conf), mode="append"))
    return queries


def _messages(spark: "SparkSession", conf: TrafficConf) -> "DataFrame":
    source = (
        spark.readStream.format("runnel")
        .schema(READ_DDL)
        .option("runnel.brokers", conf.stream.brokers)
        .option("startingOffsets", conf.start)
        .option("failOnDataLoss", "false")  # what retention took before it was counted is no reason to stop
        .option("group.id", NAME)
    )
    if conf.topics:
        return source.option("subscribe", conf.topics).load()
    return source.option("subscribePattern", ".*").option("excludePattern", re.escape(conf.output)).load()


def _started(
    rows: "DataFrame", conf: TrafficConf, name: str, step: "Callable[[DataFrame, int], None]", *, mode: str
) -> "StreamingQuery":
    return (
        rows.writeStream.queryName(name)
        .outputMode(mode)
        .option("checkpointLocation", conf.stream.checkpoint_of(name))
        .trigger(**conf.stream.trigger)
        .foreachBatch(step)
        .start()
    )


# --- batches
def _tell_windows(rows: "DataFrame", batch: int, *, conf: TrafficConf) -> None:
    """Few rows, whatever the traffic: as many as windows, topics and partitions that messages came for."""
    found = rows.collect()
    cluster = gateway(conf.brokers)
    counts = cluster.run(partition_counts(cluster.cluster, (row["topic"] for row in found))) if found else {}
    records = [window_of(row.asDict(), counts.get(row["topic"])) for row in found]
    _tell(rows.sparkSession, conf, records, _query(rows), batch)


def _tell_lags(ticks: "DataFrame", batch: int, *, conf: TrafficConf) -> None:
    cluster = gateway(conf.brokers)
    _tell(ticks.sparkSession, conf, cluster.run(sample_lags(cluster.cluster)), _query(ticks), batch)


def _query(rows: "DataFrame") -> str:
    """The id of the query that is under way, which is the same in all runs from one checkpoint."""
    return str(rows.sparkSession.sparkContext.getLocalProperty("sql.streaming.queryId"))


def _tell(
    spark: "SparkSession", conf: TrafficConf, records: "Sequence[Window] | Sequence[Lag]", query: str, batch: int
) -> None:
    """Publish records in the topic, and put them into the table; both once for each batch of a query."""
    if not records:
        return
    messages = spark.createDataFrame([message_of(record) for record in records], MESSAGE_DDL)
    writer = messages.coalesce(1).write.format("runnel").mode("append").option("topic", conf.output)
    if query:
        writer = writer.option("sinkId", f"{NAME}-{query}").option("batchId", str(batch))
    writer.option("runnel.brokers", conf.stream.brokers).save()
    if conf.table:
        _keep(conf, records, query, batch)


def _keep(conf: TrafficConf, records: "Sequence[Window] | Sequence[Lag]", query: str, batch: int) -> None:
    from runnel.pipelines.jobs.traffic.table import add_lags, merge_windows

    rows = [row_of(record) for record in records]
    if isinstance(records[0], Window):
        merge_windows(f"{conf.table.rstrip('/')}/windows", query, batch, rows)
    else:
        add_lags(f"{conf.table.rstrip('/')}/lags", query, batch, rows)
