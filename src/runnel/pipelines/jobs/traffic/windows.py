"""Messages to windows: what Spark counts, and what of it stays in its state.

Rule 1: state is bounded by windows within the watermark, topics and partitions, never by keys: the busiest keys are
        found by a sketch of a fixed size (frequent items), which overlooks no key that has more than a few
        KEYS_TRACKEDths of the messages.
Rule 2: what a batch makes of its messages depends on them and on the time that Spark wrote down for the batch: a batch
        that is done again says the same.
"""

from typing import TYPE_CHECKING, Final

from runnel.pipelines.jobs.traffic.records import ALL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

READ_DDL: Final = "topic string, partition int, timestamp timestamp, timestampType int, key binary, value binary"
KEYS_TRACKED: Final = 1_000  # in the sketch of a topic and window
PARTITIONS_TRACKED: Final = 8_192  # exact for three quarters of as many
PARTITIONS_MAX: Final = 6_000
KEY_CHARS_MAX: Final = 100
ACCURACY: Final = 200  # of quantiles: to half a percent
KEY_TEXT: Final = f"""
    CASE WHEN key IS NULL THEN NULL
         WHEN is_valid_utf8(cast(key AS string)) THEN left(cast(key AS string), {KEY_CHARS_MAX})
         ELSE left(concat('base64:', base64(key)), {KEY_CHARS_MAX}) END"""


def windows(messages: "DataFrame", *, window_ms: int, late_ms: int, keys: int) -> "DataFrame":
    """For each window and topic, and each of its partitions: how much came, how late, and of which keys."""
    from pyspark.sql import functions as f

    sizes = messages.select(
        "topic",
        "partition",
        "timestamp",
        f.col("timestampType").alias("kind"),
        f.expr("coalesce(octet_length(key), 0) + coalesce(octet_length(value), 0)").alias("size"),
        f.expr(KEY_TEXT).alias("key"),
        f.expr("greatest(0, unix_millis(current_timestamp()) - unix_millis(timestamp))").alias("latency"),
    )
    places = sizes.withWatermark("timestamp", f"{late_ms} milliseconds").withColumn(
        "place", f.explode(f.array("partition", f.lit(ALL)))
    )
    grouped = places.groupBy(f.window("timestamp", f"{window_ms} milliseconds"), "topic", "place")
    return grouped.agg(
        f.count("*").alias("messages"),
        f.sum("size").alias("bytes"),
        f.max("size").alias("size_max"),
        f.min("kind").alias("kind_min"),
        f.max("kind").alias("kind_max"),
        f.expr(f"percentile_approx(latency, array(0.5, 0.95, 0.99), {ACCURACY})").alias("latency"),
        f.max("latency").alias("latency_max"),
        f.expr(
            f"approx_top_k(CASE WHEN place = {ALL} THEN partition END, {PARTITIONS_MAX}, {PARTITIONS_TRACKED})"
        ).alias("used"),
        # One more than is asked for: messages without a key are counted like a key.
        f.expr(f"approx_top_k(CASE WHEN place = {ALL} THEN key END, {keys + 1}, {max(KEYS_TRACKED, 4 * keys)})").alias(
            "keys"
        ),
    ).select(
        "topic", f.col("place").alias("partition"), "window.start", "window.end", "messages", "bytes", "size_max",
        "kind_min", "kind_max", "latency", "latency_max", "used", "keys",
    )  # fmt: skip
