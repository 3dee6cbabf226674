"""The columns that can be written."""

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DayTimeIntervalType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from runnel.pipelines.connector.writing.row_layout import Layout
from runnel.pipelines.errors import BadOption


def schema_of(**columns: DataType) -> StructType:
    schema = StructType()
    for name, kind in columns.items():
        schema.add(name, kind)
    return schema


def test_all_columns() -> None:
    header = StructType().add("key", StringType()).add("value", BinaryType())
    schema = schema_of(
        topic=StringType(), key=BinaryType(), value=StringType(), headers=ArrayType(header), partition=IntegerType(),
        timestamp=TimestampType(), delay=DayTimeIntervalType(), deliverAt=LongType(),
    )  # fmt: skip
    assert list(Layout.of(schema, None).places) == schema.names
    assert (
        Layout.of(schema_of(value=StringType(), headers=MapType(StringType(), BinaryType())), "t").places["headers"]
        == 1
    )


def test_a_table_that_was_read_can_be_written() -> None:
    schema = schema_of(value=BinaryType(), topic=StringType(), offset=LongType(), timestampType=IntegerType())
    assert Layout.of(schema, None).places == {"value": 0, "topic": 1}


@pytest.mark.parametrize(
    ("schema", "topic", "told"),
    [
        (schema_of(key=StringType()), "t", "has to be called value"),
        (schema_of(value=StringType()), None, "say where to write"),
        (schema_of(value=LongType()), "t", "value can be string or binary: cast it"),
        (schema_of(value=StringType(), header=StringType()), "t", "did you mean headers"),
        (schema_of(value=StringType(), speed=LongType()), "t", "Leave it out with select"),
        (schema_of(value=StringType(), Value=StringType()), "t", "two columns are called value"),
        (schema_of(value=StringType(), headers=ArrayType(StringType())), "t", "headers can be array<struct"),
    ],
)
def test_what_cannot_be_written_is_refused(schema: StructType, topic: str | None, told: str) -> None:
    with pytest.raises(BadOption, match=told):
        Layout.of(schema, topic)


def test_when_rows_are_due() -> None:
    layout = Layout({"value": 0, "delay": 1, "deliverAt": 2})
    delay = pa.array([None, 5_000_000, None, 7_000_000], pa.duration("us"))
    at = pa.array([None, None, 123, 456], pa.int64())
    batch = pa.record_batch({"value": pa.array(list("abcd")), "delay": delay, "deliverAt": at})
    assert layout.due(batch, 1_000).tolist() == [-1, 6_000, 123, 456]
    assert layout.delays
    assert not Layout({"value": 0}).delays
