"""The fleet's job: two streams over the cars' reports, each exactly once into its topics.

    track   what each car does now, and who went silent    -> fleet.cars, fleet.alerts
    heat    each cell and minute, when it is final         -> fleet.heat

Rule 1: state is bounded: `heat` keeps the minutes that the watermark has not passed, `track` the cars of the last hour.
Rule 2: a report that can't be read is left out, and counted in the progress (`unreadable`).
"""

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from runnel.pipelines.conf import StreamConf
from runnel.pipelines.jobs.fleet.topics import Topics, make_all
from runnel.pipelines.jobs.fleet.track import Rules

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
BEGIN_S = 60.0
SHAPE = "car STRING, at BIGINT, lat DOUBLE, lon DOUBLE"


@dataclass(frozen=True, slots=True)
class FleetConf:
    stream: StreamConf
    topics: Topics = Topics()
    rules: Rules = Rules()
    late_ms: int = 30_000  # how much later than others a report may come and count
    cell_m: int = 400
    buckets: int = 16  # of cars, in the state; fixed for a checkpoint
    rows_max: int = 200_000  # in one batch
    begin: str = "earliest"
    source_options: dict[str, str] = field(default_factory=dict)


def run(spark: "SparkSession", conf: FleetConf) -> "list[StreamingQuery]":
    """Start both streams."""
    spark.conf.set("spark.sql.streaming.stateStore.providerClass", ROCKSDB)  # timers need it
    make_all(conf.stream.brokers, conf.topics)
    track = _started(tracked(reports(spark, conf), conf), conf, "track")
    _wait_begun(track)
    return [track, _started(heated(reports(spark, conf), conf), conf, "heat")]


def reports(spark: "SparkSession", conf: FleetConf) -> "DataFrame":
    """The cars' reports, as they come."""
    messages = (
        spark.readStream.format("runnel")
        .option("runnel.brokers", conf.stream.brokers)
        .option("subscribe", conf.topics.source)
        .option("startingOffsets", conf.begin)
        .option("maxOffsetsPerTrigger", conf.rows_max)
        .options(**conf.source_options)
        .load()
    )
    return parsed(messages, conf)


def parsed(messages: "DataFrame", conf: FleetConf) -> "DataFrame":
    """Reports out of messages, with their time and its watermark; rule 2."""
    from pyspark.sql import functions as F

    fields = messages.select(F.from_json(F.col("value").cast("string"), SHAPE).alias("report")).select("report.*")
    good = F.col("car").isNotNull() & F.col("at").isNotNull() & F.col("lat").between(-90, 90)
    good = good & F.col("lon").between(-180, 180)
    counted = fields.observe("reports", F.count_if(~good | good.isNull()).alias("unreadable"))
    timed = counted.where(good).withColumnRenamed("at", "at_ms").withColumn("at", F.timestamp_millis("at_ms"))
    return timed.withWatermark("at", f"{conf.late_ms} milliseconds")


def tracked(seen: "DataFrame", conf: FleetConf) -> "DataFrame":
    """Messages of the stream `track`."""
    from pyspark.sql import functions as F

    from runnel.pipelines.jobs.fleet.processor import OUTPUT, TrackCars

    bucket = F.pmod(F.xxhash64("car"), F.lit(conf.buckets)).cast("int")
    by_bucket = seen.withColumn("bucket", bucket).groupBy("bucket")
    processor = TrackCars(conf.topics, conf.rules)
    return by_bucket.transformWithState(processor, OUTPUT, outputMode="Append", timeMode="EventTime")


def heated(seen: "DataFrame", conf: FleetConf) -> "DataFrame":
    """Messages of the stream `heat`."""
    from pyspark.sql import functions as F

    from runnel.pipelines.jobs.fleet.heat import heat

    messages = heat(seen, cell_m=conf.cell_m)
    return messages.select(F.lit(conf.topics.heat).alias("topic"), "key", "value")


def _started(messages: "DataFrame", conf: FleetConf, name: str) -> "StreamingQuery":
    return (
        messages.writeStream.queryName(name)
        .format("runnel")
        .option("runnel.brokers", conf.stream.brokers)
        .option("checkpointLocation", conf.stream.checkpoint_of(name))
        .outputMode("append")
        .trigger(**conf.stream.trigger)
        .start()
    )


def _wait_begun(query: "StreamingQuery") -> None:
    """Let its Python processes start before others do: Spark gives each ten seconds, which a busy machine may need."""
    deadline = time.monotonic() + BEGIN_S
    while query.isActive and query.status["message"].startswith("Initializing") and time.monotonic() < deadline:
        time.sleep(0.1)
