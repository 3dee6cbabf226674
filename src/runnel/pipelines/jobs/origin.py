"""Where a message came from, in its headers: written when it is replayed, read when that is audited.

Rule 1: a message that is replayed has one origin: the place it was replayed from. What it said before is replaced.
Rule 2: without these headers, a replayed message has the headers of its original, in their order.
"""

from typing import TYPE_CHECKING, Final

from runnel.model.headers import ORIGIN_OFFSET, ORIGIN_PARTITION, ORIGIN_TIMESTAMP, ORIGIN_TOPIC

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

NAMES: Final = (ORIGIN_TOPIC, ORIGIN_PARTITION, ORIGIN_OFFSET, ORIGIN_TIMESTAMP)
HEADERS_TYPE: Final = "array<struct<key:string,value:binary>>"


def bare(headers: "Column") -> "Column":
    """The headers without those of the origin; none is an empty list."""
    from pyspark.sql import functions as F

    known = F.coalesce(headers, F.array().cast(HEADERS_TYPE))
    return F.filter(known, lambda each: ~each["key"].isin(*NAMES))


def with_origin(rows: "DataFrame") -> "Column":
    """The headers of rows that are replayed, with where they are now."""
    from pyspark.sql import functions as F

    told = {
        ORIGIN_TOPIC: rows["topic"],
        ORIGIN_PARTITION: rows["partition"].cast("string"),
        ORIGIN_OFFSET: rows["offset"].cast("string"),
        ORIGIN_TIMESTAMP: F.unix_millis(rows["timestamp"]).cast("string"),
    }
    added = [F.struct(F.lit(k).alias("key"), F.encode(v, "utf-8").alias("value")) for k, v in told.items()]
    return F.concat(bare(rows["headers"]), F.array(*added)).cast(HEADERS_TYPE)


def at_origin(rows: "DataFrame") -> "DataFrame":
    """Messages that were replayed as if they were where they came from; where they are is in `at` and `at_offset`."""
    from pyspark.sql import functions as F

    def told(name: str) -> "Column":
        found = F.filter(rows["headers"], lambda each: each["key"] == name)
        return F.decode(F.try_element_at(found, F.lit(-1))["value"], "utf-8")

    moved = rows.select(
        told(ORIGIN_TOPIC).alias("topic"),
        told(ORIGIN_PARTITION).cast("int").alias("partition"),
        told(ORIGIN_OFFSET).cast("long").alias("offset"),
        F.timestamp_millis(told(ORIGIN_TIMESTAMP).cast("long")).alias("timestamp"),
        *[rows[name] for name in ("key", "value", "headers")],
        rows["partition"].alias("at"),
        rows["offset"].alias("at_offset"),
    )
    return moved.where("topic IS NOT NULL AND partition IS NOT NULL AND offset IS NOT NULL")
