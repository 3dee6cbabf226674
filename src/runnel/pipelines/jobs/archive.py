"""`runnel pipeline archive`: topics into a lake, where their history stays when brokers have long removed it.

Rule 1: every message up to where the job is, is in the lake once: the query's checkpoint says what a batch is, the lake
        says whether it is there.
Rule 2: a job without a checkpoint goes on behind what the lake has of its topics; what it has not, it begins at the
        earliest. So nothing is doubled when a checkpoint is lost.
Rule 3: with a schema, the fields of the JSON in `value` are columns too. A value that does not fit has none of them,
        and why in `_error`; the bytes themselves are kept either way.
Rule 4: a batch is written by `writers` tasks at most: more partitions do not make more files.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from runnel.client.metadata import TopicPartition
from runnel.client.offsets import READ_COMMITTED
from runnel.pipelines.conf import StreamConf
from runnel.pipelines.connector.gateway import gateway
from runnel.pipelines.connector.reading.options import Topics
from runnel.pipelines.connector.reading.plan import to_json
from runnel.pipelines.errors import BadOption, DataLoss
from runnel.pipelines.lake.columns import ERROR
from runnel.pipelines.lake.files import FILE_BYTES
from runnel.pipelines.lake.place import Place
from runnel.pipelines.lake.read import read_lake
from runnel.pipelines.lake.sink import FORMAT, STORAGE

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

EARLIEST = -2  # as offsets are written for Spark
ROWS_PER_TRIGGER = 5_000_000  # a batch that failed is done again: let it be one that ends
BROKEN = "_broken"  # the text that from_json could not make anything of
BASE = ("topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers", "date", "ingested_at")


@dataclass(frozen=True, slots=True)
class ArchiveConf:
    """What is archived, where, and how."""

    stream: StreamConf
    lake: str
    topics: tuple[str, ...] = ()
    pattern: str | None = None  # instead of topics
    exclude: str | None = None
    schema: str | None = None  # of the JSON in values: DDL, or a file with DDL or Spark's JSON
    prefix: str = ""  # of the names of its columns
    starting: str = "earliest"
    file_bytes: int = FILE_BYTES
    rows_per_trigger: int = ROWS_PER_TRIGGER
    writers: int | None = None  # None: as many as there are cores
    compact_every: int = 0  # batches; 0: never
    vacuum_after_h: int | None = None
    group: str = ""  # under which its progress is seen; empty: by the name of the lake
    fail_on_data_loss: bool = True
    storage: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return Path(self.lake.rstrip("/")).name or "lake"

    @property
    def group_id(self) -> str:
        return self.group or f"archive-{self.name}"


def run(spark: "SparkSession", conf: ArchiveConf) -> "StreamingQuery":
    """Start archiving."""
    rows = archived(spark, conf)
    writers = conf.writers or spark.sparkContext.defaultParallelism
    sink = rows.coalesce(writers).writeStream.format(FORMAT).options(**sink_options(conf))
    sink = sink.option("checkpointLocation", conf.stream.checkpoint).outputMode("append")
    return sink.queryName(f"archive to {conf.name}").trigger(**conf.stream.trigger).start()


def sink_options(conf: ArchiveConf) -> dict[str, str]:
    options = {"path": Place.of(conf.lake).path, "fileSize": f"{conf.file_bytes}b"}
    if conf.compact_every:
        options["compactEvery"] = str(conf.compact_every)
    if conf.vacuum_after_h is not None:
        options["vacuumAfter"] = f"{conf.vacuum_after_h}h"
    return options | {f"{STORAGE}{name}": text for name, text in conf.storage.items()}


def archived(spark: "SparkSession", conf: ArchiveConf) -> "DataFrame":
    """The rows as the lake will have them."""
    reader = spark.readStream.format("runnel").options(**source_options(conf))
    rows = reader.option("startingOffsets", starting_offsets(spark, conf)).load()
    columns = ["topic", "partition", "offset", "timestamp", "timestampType", "key", "value", "headers"]
    rows = rows.select(*columns)
    return rows if conf.schema is None else flattened(rows, parsed_schema(spark, conf.schema), conf.prefix)


def source_options(conf: ArchiveConf) -> dict[str, str]:
    options = {
        "runnel.brokers": conf.stream.brokers,
        "group.id": conf.group_id,
        "maxOffsetsPerTrigger": str(conf.rows_per_trigger),
        "failOnDataLoss": str(conf.fail_on_data_loss).lower(),
    }
    if bool(conf.topics) == (conf.pattern is not None):
        raise BadOption("topic", ",".join(conf.topics), "name topics, or give a pattern: one of them")
    if conf.pattern is None:
        return options | {"subscribe": ",".join(conf.topics)}
    excluded = {"excludePattern": conf.exclude} if conf.exclude else {}
    return options | {"subscribePattern": conf.pattern} | excluded


def checkpoint_in(lake: str) -> str:
    """Where a job keeps how far it is, unless told otherwise: in the lake, below a name that no reader looks at."""
    return f"{Place.of(lake).path}/_archive"


# --- where to begin
def starting_offsets(spark: "SparkSession", conf: ArchiveConf) -> str:
    """Behind what the lake has; Spark asks only if the checkpoint does not say."""
    place = Place.of(conf.lake, conf.storage)
    if _begun(conf.stream.checkpoint) or not place.exists():
        return conf.starting
    gate = gateway(tuple(conf.stream.brokers.split(",")))
    there = gate.partitions(Topics(names=conf.topics, pattern=conf.pattern, exclude=conf.exclude))
    held = _held(spark, conf)
    if not any(where in held for where in there):
        return conf.starting
    ends = gate.ends(there, READ_COMMITTED)
    return json.dumps(to_json(behind(held, ends)))


def behind(held: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Where each partition goes on: behind the last that is held, else at the earliest."""
    for where, last in held.items():
        if where in ends and last >= ends[where]:
            raise DataLoss(
                f"the lake has {where} up to {last}, and its log ends at {ends[where]}: the topic was created anew, or "
                "its end was lost; archive it into another lake"
            )
    return {where: held[where] + 1 if where in held else EARLIEST for where in ends}


def _held(spark: "SparkSession", conf: ArchiveConf) -> dict[TopicPartition, int]:
    from pyspark.sql import functions as F

    rows = read_lake(spark, conf.lake, storage=conf.storage).groupBy("topic", "partition").agg(F.max("offset"))
    return {TopicPartition(topic, partition): last for topic, partition, last in rows.collect()}


def _begun(checkpoint: str) -> bool:
    """Whether a checkpoint says how far the job is. One that is not a folder here is Spark's to look into."""
    if "://" in checkpoint and not checkpoint.startswith("file://"):
        return False
    return any(Path(checkpoint.removeprefix("file://"), "offsets").glob("[0-9]*"))


# --- JSON
def parsed_schema(spark: "SparkSession", text: str) -> "StructType":
    """A schema from DDL, or from a file that has DDL or Spark's JSON."""
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    told = Path(text).read_text().strip() if Path(text).suffix in (".ddl", ".json") and Path(text).is_file() else text
    try:
        if told.startswith("{"):
            return StructType.fromJson(json.loads(told))
        return cast("StructType", StructType.fromDDL(told))
    except (PySparkException, ValueError, KeyError) as error:
        shown = str(error).splitlines()[0]
        raise BadOption("schema", text, f"use DDL as 'car string, speed double', or a file of it: {shown}") from None


def flattened(rows: "DataFrame", schema: "StructType", prefix: str = "") -> "DataFrame":
    """The fields of the JSON in `value` beside it, and `_error` where it is none."""
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructType

    check_names([f"{prefix}{field.name}" for field in schema.fields])
    whole = StructType([*schema.fields]).add(BROKEN, StringType())
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": BROKEN}
    parsed = rows.withColumn("_json", F.from_json(F.col("value").cast("string"), whole, options))
    bad = F.col("value").isNotNull() & (F.col("_json").isNull() | F.col(f"_json.{BROKEN}").isNotNull())
    text = F.lit(f"the value is no JSON of the schema {schema.simpleString()[:200]}")
    good = [F.when(~bad, F.col(f"_json.`{f.name}`")).alias(f"{prefix}{f.name}") for f in schema.fields]
    return parsed.select(*[rows[name] for name in rows.columns], *good, F.when(bad, text).alias(ERROR))


def check_names(names: list[str]) -> None:
    """Refuse fields that would hide a column of the log, or each other."""
    taken = {name.lower() for name in (*BASE, ERROR)}
    for name in names:
        if name.lower() in taken:
            raise BadOption("schema", name, "a lake has a column of this name already: give a prefix for the fields")
        taken.add(name.lower())
