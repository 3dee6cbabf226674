"""Which columns a lake takes: those that every Delta reader understands, and none that hides another."""

import pyarrow as pa
import pytest
from tests.pipelines.lake.rows import GIVEN, TABLE

from runnel.pipelines.errors import BadOption
from runnel.pipelines.lake.columns import TIME, added, file_schema, measured, table_schema


def with_field(name: str, kind: pa.DataType) -> pa.Schema:
    return GIVEN.append(pa.field(name, kind))


def test_a_table_adds_the_day_and_when_it_was_written() -> None:
    assert TABLE.names == [*GIVEN.names, "date", "ingested_at"]
    assert file_schema(TABLE).names == [name for name in TABLE.names if name not in ("topic", "date")]


@pytest.mark.parametrize("missing", ["topic", "partition", "offset", "timestamp"])
def test_rows_say_where_they_were(missing: str) -> None:
    with pytest.raises(BadOption, match=missing):
        table_schema(pa.schema([field for field in GIVEN if field.name != missing]))


def test_names_that_the_lake_adds_are_taken() -> None:
    with pytest.raises(BadOption, match="date"):
        table_schema(with_field("date", pa.date32()))


@pytest.mark.parametrize(
    "kind", [pa.timestamp("us"), pa.time64("us"), pa.duration("us"), pa.null(), pa.list_(pa.timestamp("us"))]
)
def test_types_that_need_a_newer_reader_are_refused(kind: pa.DataType) -> None:
    with pytest.raises(BadOption, match="a lake has no such type"):
        table_schema(with_field("x", kind))


@pytest.mark.parametrize("name", ["two words", "a,b", "a=b", "a(b)"])
def test_names_that_parquet_does_not_have_are_refused(name: str) -> None:
    with pytest.raises(BadOption, match="no spaces"):
        table_schema(with_field(name, pa.string()))
    with pytest.raises(BadOption, match="no spaces"):
        table_schema(with_field("x", pa.struct([(name, pa.string())])))


def test_types_are_kept_as_files_have_them() -> None:
    """Spark may hand over times in its own zone, and large variants of texts."""
    wide = pa.struct([("at", pa.timestamp("us", "Europe/Berlin")), ("names", pa.large_list(pa.large_string()))])
    kept = table_schema(with_field("x", wide)).field("x").type
    assert kept == pa.struct([("at", TIME), ("names", pa.list_(pa.string()))])


def test_no_bounds_are_told_of_floating_point() -> None:
    """Spark takes NaN for the greatest number, and statistics pass it over: a file would be skipped that matches."""
    assert "speed" not in measured(table_schema(with_field("speed", pa.float64())))
    assert "car" in measured(table_schema(with_field("car", pa.string())))


def test_only_what_is_new_is_added() -> None:
    wider = table_schema(with_field("car", pa.string()))
    assert [field.name for field in added(TABLE, wider)] == ["car"]
    assert added(wider, TABLE) == []
