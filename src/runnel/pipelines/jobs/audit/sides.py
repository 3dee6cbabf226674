"""What is held against each other: a log, a lake, or a topic that was filled by a replay.

Rule 1: a side is rows of (topic, partition, offset, digest), of the whole range or of one bucket.
Rule 2: the digest is of all that a message is: key, value, headers, time; null is not empty. Where a replay put it is
        no part of it.
Rule 3: files that a lake names and does not have are told, not stumbled over.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol

from runnel.client.metadata import TopicPartition
from runnel.pipelines.connector.reading.plan import to_json
from runnel.pipelines.jobs.audit.judge import Archived, Detail, Pair, Scope
from runnel.pipelines.jobs.audit.offsets import BITS, EMPTY, MASK, SIZE, Bucket
from runnel.pipelines.jobs.origin import at_origin, bare
from runnel.pipelines.lake.place import Place
from runnel.pipelines.lake.read import chosen_files, path_of, rows_of, spark_schema
from runnel.pipelines.lake.table import opened, told

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import Column, DataFrame, SparkSession

PLACE = ("topic", "partition")


class Side(Protocol):
    """One of the two."""

    @property
    def name(self) -> str: ...

    def rows(self) -> "DataFrame":
        """All rows of interest: topic, partition, offset, timestamp, key, value, headers."""
        ...

    def part(self, scope: Scope, first: int, end: int) -> "DataFrame":
        """Those of some offsets of one partition."""
        ...


@dataclass(frozen=True)
class LogSide:
    """Topics, between two maps of offsets."""

    spark: "SparkSession"
    brokers: str
    first: Mapping[TopicPartition, int]
    end: Mapping[TopicPartition, int]

    @property
    def name(self) -> str:
        return "topic " + ", ".join(sorted({where.topic for where in self.first}))

    def rows(self) -> "DataFrame":
        return self._read(self.first, self.end)

    def part(self, scope: Scope, first: int, end: int) -> "DataFrame":
        where = TopicPartition(scope.topic, scope.partition)
        return self._read({where: max(first, scope.first)}, {where: max(min(end, scope.end), scope.first)})

    def _read(self, first: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> "DataFrame":
        named: dict[str, list[int]] = {}
        for where in sorted(first):
            named.setdefault(where.topic, []).append(where.partition)
        reader = self.spark.read.format("runnel").option("runnel.brokers", self.brokers)
        reader = reader.option("assign", json.dumps(named)).option("startingOffsets", json.dumps(to_json(first)))
        return reader.option("endingOffsets", json.dumps(to_json(end))).load()


@dataclass(frozen=True)
class LakeSide:
    """A version of a lake, or some of its rows."""

    spark: "SparkSession"
    path: str
    version: int | None = None
    where: str | None = None

    @property
    def name(self) -> str:
        return f"lake {self.path}"

    @cached_property
    def place(self) -> Place:
        return Place.of(self.path)

    @cached_property
    def table(self) -> "DeltaTable":
        return opened(self.place, self.version)

    @cached_property
    def lacking(self) -> set[str]:
        """The files that the table names and does not have."""
        return set(self.place.lacking(file["path"] for file in self.files()))

    def files(self) -> list[dict[str, Any]]:
        import pyarrow as pa

        return list(pa.table(self.table.get_add_actions(flatten=True)).to_pylist())

    def rows(self) -> "DataFrame":
        return self._read(self.where)

    def part(self, scope: Scope, first: int, end: int) -> "DataFrame":
        here = f"topic = '{scope.topic}' AND partition = {scope.partition} AND offset >= {first} AND offset < {end}"
        return self._read(here if self.where is None else f"{here} AND ({self.where})")

    def _read(self, where: str | None) -> "DataFrame":
        base = path_of(self.table)
        gone = {f"{base}/{name}" for name in self.lacking}
        present = [uri for uri in chosen_files(self.table, where) if uri not in gone]
        rows = rows_of(self.spark, base, spark_schema(self.table), present)
        return rows if where is None else rows.where(where)

    def archived(self) -> dict[tuple[str, int], list[Archived]]:
        """What the commits of this version say that they put in, as far as the log still tells."""
        found: dict[tuple[str, int], list[Archived]] = {}
        for commit in told(self.place, self.table.version()):
            for topic, partitions in commit["held"].items():
                for number, (rows, first, last) in partitions.items():
                    batch = f"batch {commit['batch']} of {commit['query']}"
                    found.setdefault((topic, int(number)), []).append(Archived(rows, first, last, batch))
        return found


@dataclass(frozen=True)
class ReplayedSide:
    """A topic that was filled by a replay, seen as what it was filled from."""

    log: LogSide

    @property
    def name(self) -> str:
        return f"{self.log.name}, as replayed"

    def rows(self) -> "DataFrame":
        return at_origin(self.log.rows())

    def part(self, scope: Scope, first: int, end: int) -> "DataFrame":
        here = f"topic = '{scope.topic}' AND partition = {scope.partition} AND offset >= {first} AND offset < {end}"
        return self.rows().where(here)


# --- digests and buckets
def digest(rows: "DataFrame") -> "Column":
    """Of all that a message is, and of its offset: so that two that changed places are seen."""
    from pyspark.sql import functions as F

    headers = F.transform(
        bare(rows["headers"]), lambda each: F.struct(each["key"], each["value"].isNull(), each["value"])
    )
    whole = [each for name in ("key", "value") for each in (rows[name].isNull(), rows[name])]
    return F.xxhash64(rows["offset"], F.unix_millis(rows["timestamp"]), *whole, F.size(headers), headers)


def within(rows: "DataFrame", scopes: "Sequence[Scope] | None") -> "DataFrame":
    """The rows of these ranges."""
    from pyspark.sql import functions as F

    if scopes is None:
        return rows
    listed = [(scope.topic, scope.partition, scope.first, scope.end) for scope in scopes]
    bounds = rows.sparkSession.createDataFrame(listed, "topic string, partition int, first long, end long")
    inside = rows.join(F.broadcast(bounds), list(PLACE)).where("offset >= first AND offset < end")
    return inside.drop("first", "end")


def buckets(rows: "DataFrame", prefix: str) -> "DataFrame":
    """A row for each bucket; its bitmap is null where every offset is there."""
    from pyspark.sql import functions as F

    small = rows.select(*PLACE, "offset", digest(rows).alias("digest"))
    summed = small.groupBy(*PLACE, F.shiftright("offset", BITS).alias("bucket")).agg(
        F.count("*").alias(f"{prefix}_count"),
        F.bitmap_construct_agg(F.col("offset").bitwiseAND(MASK)).alias("bitmap"),
        F.bit_xor("digest").alias(f"{prefix}_digest"),
    )
    partial = F.when(F.bitmap_count("bitmap") < SIZE, F.col("bitmap"))
    return summed.select(*PLACE, "bucket", f"{prefix}_count", partial.alias(f"{prefix}_bitmap"), f"{prefix}_digest")


def details(side: Side, scope: Scope, number: int) -> list[Detail]:
    """The rows of a bucket, one by one."""
    base = number << BITS
    rows = side.part(scope, max(base, scope.first), min(base + SIZE, scope.end))
    return [Detail(*row) for row in rows.select("offset", digest(rows)).collect()]


Where = tuple[str, int]  # topic and partition


def pairs(left: "DataFrame", right: "DataFrame") -> Iterator[tuple[Where, Iterator[Pair]]]:
    """What both sides hold, partition by partition, bucket by bucket."""
    both = buckets(left, "left").join(buckets(right, "right"), [*PLACE, "bucket"], "full_outer")
    lines = both.orderBy(*PLACE, "bucket").toLocalIterator()
    for place, group in groupby(lines, key=lambda row: (row["topic"], row["partition"])):
        yield place, (Pair(row["bucket"], _bucket(row, "left"), _bucket(row, "right")) for row in group)


def single(rows: "DataFrame") -> Iterator[tuple[Where, Iterator[tuple[int, Bucket]]]]:
    """What one side holds."""
    lines = buckets(rows, "right").orderBy(*PLACE, "bucket").toLocalIterator()
    for place, group in groupby(lines, key=lambda row: (row["topic"], row["partition"])):
        yield place, ((row["bucket"], _bucket(row, "right")) for row in group)


def _bucket(row: Any, prefix: str) -> Bucket:
    count = row[f"{prefix}_count"]
    if count is None:
        return EMPTY
    bitmap = row[f"{prefix}_bitmap"]
    return Bucket(count, None if bitmap is None else bytes(bitmap), row[f"{prefix}_digest"])


# --- order
@dataclass(frozen=True, slots=True)
class Disorder:
    """A replayed message that stands behind one that came later."""

    topic: str
    partition: int
    offset: int
    at: int
    at_offset: int


DISORDER_TOLD = 1_000


def disorder(rows: "DataFrame") -> list[Disorder]:
    """Replayed messages of one partition that are not in its order, in one partition of the target."""
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    line = Window.partitionBy("at", *PLACE).orderBy("at_offset")
    placed = rows.select(*PLACE, "offset", "at", "at_offset", F.lag("offset").over(line).alias("before"))
    wrong = placed.where("before > offset").orderBy("at", "at_offset").limit(DISORDER_TOLD)
    return [Disorder(*row) for row in wrong.select(*PLACE, "offset", "at", "at_offset").collect()]
