"""Record batches as they lie in the log, turned into rows of Spark: Arrow batches of exactly the types it expects.

Rule 1: the columns are those of Spark's own Kafka source, so that queries port; those that the schema names are made.
Rule 2: rows come in the order of their offsets, those of [first, end) and no others; control batches are no rows.
Rule 3: an Arrow batch has at most `ROWS_MAX` rows and `BYTES_MAX` bytes of records; a larger record comes alone.
Rule 4: with `valueFormat=json`, a value that can't be read is a row whose `_error` says why, and never a failure.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from runnel.model.limits import MIB
from runnel.model.seams import Buffer
from runnel.pipelines.connector.arrow.header_column import header_column
from runnel.pipelines.connector.arrow.json_values import JsonValues
from runnel.pipelines.connector.arrow.scan import Scan, Section, Span, scan
from runnel.pipelines.connector.arrow.strings import strings
from runnel.pipelines.errors import BadOption
from runnel.record.batch import HEADER_BYTES, BatchHeader, headers
from runnel.record.compression import Compression, decompress
from runnel.record.records import RECORDS_BYTES_MAX

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

ROWS_MAX = 10_000  # Spark's own Arrow batches have as many
BYTES_MAX = 4 * MIB  # rows of 1 KB pass through Spark as fast in 4 MB as in 10 MB
ERROR = "_error"
FORMATS = ("raw", "json")
MILLIS_MAX = (2**63 - 1) // 1000  # of what Spark can keep, in microseconds

_HEADERS = pa.list_(pa.field("element", pa.struct([("key", pa.string()), ("value", pa.binary())])))
TYPES: dict[str, pa.DataType] = {
    "key": pa.binary(),
    "value": pa.binary(),
    "topic": pa.string(),
    "partition": pa.int32(),
    "offset": pa.int64(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestampType": pa.int32(),
    "headers": _HEADERS,
}
NULLABLE = ("key", "value", "headers")


# --- schemas
def default_schema(*, headers: bool = True) -> "StructType":
    """What a topic looks like to whoever names no columns."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(pa.schema([(n, t) for n, t in TYPES.items() if headers or n != "headers"]))


def json_schema(value: str, *, headers: bool = True) -> str:
    """The same where values are JSON of these fields ("id bigint, name string"), as DDL, which Spark reads."""
    columns = {field.name: field.dataType.simpleString() for field in default_schema(headers=headers)}
    columns |= {"value": f"struct<{value}>", ERROR: "string"}
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


@dataclass(frozen=True)
class Projection:
    """The columns that a query asked for. It travels to the executors."""

    schema: pa.Schema
    json: JsonValues | None = None

    @classmethod
    def of(cls, schema: "StructType", value_format: str = "raw") -> "Projection":
        """Of Spark's schema; BadOption if it names columns that are not there."""
        from pyspark.sql.pandas.types import to_arrow_schema

        if value_format not in FORMATS:
            raise BadOption("valueFormat", value_format, f"one of {', '.join(FORMATS)}")
        arrow = to_arrow_schema(schema, timezone="UTC")
        return cls.raw(arrow) if value_format == "raw" else cls.parsed(arrow)

    @classmethod
    def raw(cls, schema: pa.Schema) -> "Projection":
        for field in schema:
            if field.name not in TYPES:
                raise BadOption("schema", field.name, f"it has {', '.join(TYPES)}; others with valueFormat=json")
            _check(field)
        return cls(schema)

    @classmethod
    def parsed(cls, schema: pa.Schema) -> "Projection":
        """`value` is a struct of the user's, and every column that is none of ours a field of the JSON object."""
        for field in schema:
            if field.name in TYPES and not (field.name == "value" and pa.types.is_struct(field.type)):
                _check(field)
            elif not field.nullable or (field.name == ERROR and field.type != pa.string()):
                raise BadOption("schema", f"{field.name} {field.type}", "columns are nullable, and _error is a string")
        value = next((f for f in schema if f.name == "value" and pa.types.is_struct(f.type)), None)
        fields = tuple(f for f in schema if f.name not in TYPES and f.name != ERROR)
        if value is None and not fields:
            raise BadOption("valueFormat", "json", "say what values look like: name fields with schema or valueSchema")
        return cls(schema, JsonValues(value, fields))


def _check(field: pa.Field) -> None:
    if field.type != TYPES[field.name]:
        raise BadOption("schema", f"{field.name} {field.type}", f"it is {TYPES[field.name]}; cast it in the query")
    if field.name in NULLABLE and not field.nullable:
        raise BadOption("schema", f"{field.name} not null", "a message may have none")


# --- rows
def rows(
    projection: Projection, topic: str, partition: int, fetched: Iterable[Buffer], first: int, end: int,
    wanted: Sequence[tuple[int, int]] | None = None,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """The records of one partition in [first, end), from batches that follow each other, some in each buffer.

    With `wanted`, those alone whose offsets lie in one of these stretches, which name their first and their last.
    """
    for sections in _piles(fetched, first, end):
        found = scan(sections).between(first, end)
        for part in _parts(found if wanted is None else found.only(wanted)):
            yield _Rows(part, projection, topic, partition).batch()


def _piles(fetched: Iterable[Buffer], first: int, end: int) -> Iterator[list[Section]]:
    """Batches opened, as many together as one Arrow batch may hold. One that is half full is not mixed with the next
    buffer: that would have to be copied."""
    pile: list[Section] = []
    size = count = 0
    for section in _sections(fetched, first, end):
        full = size + section.size > BYTES_MAX or count + section.header.count > ROWS_MAX
        if pile and (full or (size > BYTES_MAX // 2 and section.buffer is not pile[-1].buffer)):
            yield pile
            pile, size, count = [], 0, 0
        pile.append(section)
        size += section.size
        count += section.header.count
    if pile:
        yield pile


def _sections(fetched: Iterable[Buffer], first: int, end: int) -> Iterator[Section]:
    for buffer in fetched:
        for at, header in headers(buffer):
            if header.base_offset >= end:
                return
            if header.control or not header.count or header.last_offset < first:
                continue
            yield _opened(header, buffer, at + HEADER_BYTES, at + header.size)


def _opened(header: BatchHeader, buffer: Buffer, start: int, end: int) -> Section:
    codec = header.compression
    if codec is Compression.NONE:
        return Section(header, buffer, start, end)
    data = decompress(codec, memoryview(buffer)[start:end], bytes_max=RECORDS_BYTES_MAX)
    return Section(header, data, 0, len(data))


def _parts(found: Scan) -> Iterator[Scan]:
    """Cut by rows and bytes."""
    ends = np.cumsum(found.sizes)
    low = taken = 0
    while low < len(found):
        fit = int(np.searchsorted(ends, taken + BYTES_MAX, "right"))
        high = max(low + 1, min(fit, low + ROWS_MAX))
        yield found.part(low, high)
        low, taken = high, int(ends[high - 1])


class _Rows:
    """The columns of some records. What several of them need is found once."""

    def __init__(self, found: Scan, projection: Projection, topic: str, partition: int) -> None:
        self._scan = found
        self._projection = projection
        self._topic, self._partition = topic, partition
        self._data = pa.py_buffer(found.data)

    def batch(self) -> pa.RecordBatch:
        columns = self._parsed() if self._projection.json else {}
        for name in self._projection.schema.names:
            if name not in columns:
                columns[name] = _COLUMNS[name](self)
        return pa.RecordBatch.from_arrays(
            [columns[name] for name in self._projection.schema.names], schema=self._projection.schema
        )

    @cached_property
    def _keys(self) -> Span:
        return self._scan.keys()

    @cached_property
    def _values(self) -> Span:
        return self._scan.values(self._keys)

    def _parsed(self) -> dict[str, pa.Array]:
        assert self._projection.json is not None
        columns, errors = self._projection.json.columns(self.value().to_pylist())
        return columns | {ERROR: errors}

    def key(self) -> pa.Array:
        return strings(self._data, self._keys)

    def value(self) -> pa.Array:
        return strings(self._data, self._values)

    def topic(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._topic, pa.string()), len(self._scan))

    def partition(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._partition, pa.int32()), len(self._scan))

    def offset(self) -> pa.Array:
        return pa.array(self._scan.offsets)

    def timestamp(self) -> pa.Array:
        micros = np.clip(self._scan.timestamps_ms, -MILLIS_MAX, MILLIS_MAX) * 1000
        return pa.array(micros).view(TYPES["timestamp"])

    def timestamp_type(self) -> pa.Array:
        return pa.array(self._scan.append_time.astype(np.int32))

    def headers(self) -> pa.Array:
        return header_column(self._scan, self._values, _HEADERS)


_COLUMNS: dict[str, Callable[[_Rows], pa.Array]] = {
    "key": _Rows.key,
    "value": _Rows.value,
    "topic": _Rows.topic,
    "partition": _Rows.partition,
    "offset": _Rows.offset,
    "timestamp": _Rows.timestamp,
    "timestampType": _Rows.timestamp_type,
    "headers": _Rows.headers,
}
