"""Rows of the log, made up for tests of the lake."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import pyarrow as pa

from runnel.pipelines.lake.columns import TIME, table_schema

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
GIVEN = pa.schema(
    [
        ("key", pa.binary()), ("value", pa.binary()), ("topic", pa.string()), ("partition", pa.int32()),
        ("offset", pa.int64()), ("timestamp", TIME), ("timestampType", pa.int32()), ("headers", HEADERS),
    ]
)  # fmt: skip
TABLE = table_schema(GIVEN)
DAY = datetime(2026, 3, 1, 12, tzinfo=UTC)


def batch(
    offsets: Iterable[int],
    *,
    topic: str | Sequence[str] = "cars",
    partition: int = 0,
    at: datetime | Sequence[datetime] = DAY,
    value: bytes = b"v",
) -> pa.RecordBatch:
    numbers = list(offsets)
    topics = [topic] * len(numbers) if isinstance(topic, str) else list(topic)
    times = [at] * len(numbers) if isinstance(at, datetime) else list(at)
    columns = {
        "key": [b"k%d" % n for n in numbers],
        "value": [value + b"%d" % n for n in numbers],
        "topic": topics,
        "partition": [partition] * len(numbers),
        "offset": numbers,
        "timestamp": times,
        "timestampType": [0] * len(numbers),
        "headers": [[{"key": "h", "value": b"x"}]] * len(numbers),
    }
    return pa.RecordBatch.from_pydict(columns, schema=GIVEN)
