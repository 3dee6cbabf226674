"""JSON values as columns: every type, what is missing, what is wrong, and what can't be asked for."""

import json
from datetime import UTC, date, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.pipelines.connector.arrow.columns import Projection, rows
from runnel.pipelines.connector.arrow.json_values import JsonValues
from runnel.pipelines.errors import BadOption
from runnel.record import records
from runnel.record.records import Record

CAR = pa.struct([("id", pa.int64()), ("name", pa.string())])


def whole(kind: pa.DataType, *values: bytes | None) -> tuple[list[Any], list[str | None]]:
    columns, errors = JsonValues(pa.field("value", kind), ()).columns(list(values))
    columns["value"].validate(full=True)
    assert columns["value"].type == kind
    return columns["value"].to_pylist(), errors.to_pylist()


def one(kind: pa.DataType, text: str) -> Any:
    """The field `x` of this type in a JSON text, or what is wrong with it."""
    (value,), (error,) = whole(pa.struct([("x", kind)]), b'{"x": ' + text.encode() + b"}")
    return error if error is not None else value["x"]


def test_good_values_have_their_fields_and_no_error() -> None:
    found = whole(CAR, b'{"id": 1, "name": "a"}', b'{"id": 2, "else": [1, {}]}', b"{}")
    assert found == ([{"id": 1, "name": "a"}, {"id": 2, "name": None}, {"id": None, "name": None}], [None] * 3)


def test_bad_values_are_nulls_with_a_reason_and_the_others_count() -> None:
    values, errors = whole(CAR, b'{"id": 1}', b"{torn", b'{"id": "1"}', b'{"name": "\xff"}', b"[1]", b'{"id": 5}')
    assert values == [{"id": 1, "name": None}, None, None, None, None, {"id": 5, "name": None}]
    assert [error is None for error in errors] == [True, False, False, False, False, True]
    assert "$.id" in (errors[2] or "")


def test_no_value_is_no_error() -> None:
    assert whole(CAR, None, b"null", b'{"id": 1}') == ([None, None, {"id": 1, "name": None}], [None] * 3)
    assert whole(CAR) == ([], [])


def test_a_bottomless_value_is_an_error_like_any_other() -> None:
    values, errors = whole(CAR, b'{"a":' * 100_000, b'{"id": 1}')
    assert values == [None, {"id": 1, "name": None}]
    assert errors[0]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (pa.bool_(), "true", True),
        (pa.int8(), "-128", -128),
        (pa.int64(), str(2**63 - 1), 2**63 - 1),
        (pa.float64(), "1", 1.0),
        (pa.float32(), "0.5", 0.5),
        (pa.string(), '"\\u00e4"', "ä"),
        (pa.binary(), '"AAE="', b"\x00\x01"),
        (pa.date32(), '"2024-02-29"', date(2024, 2, 29)),
        (pa.timestamp("us", tz="UTC"), '"2024-01-01T02:00:00+02:00"', datetime(2024, 1, 1, tzinfo=UTC)),
        (pa.timestamp("us", tz="UTC"), '"2024-01-01T00:00:00"', datetime(2024, 1, 1, tzinfo=UTC)),
        (pa.list_(pa.int32()), "[1, null]", [1, None]),
        (pa.list_(CAR), '[{"id": 1}, null]', [{"id": 1, "name": None}, None]),
        (pa.map_(pa.string(), pa.int64()), '{"a": 1, "b": null}', [("a", 1), ("b", None)]),
        (pa.struct([("y", CAR)]), '{"y": null}', {"y": None}),
    ],
)
def test_types(kind: pa.DataType, text: str, value: object) -> None:
    assert one(kind, text) == value
    assert one(kind, "null") is None


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (pa.int8(), "128"),
        (pa.int64(), "1.5"),
        (pa.int64(), '"1"'),
        (pa.string(), "1"),
        (pa.bool_(), "0"),
        (pa.date32(), '"yesterday"'),
        (pa.float64(), "1e999"),
        (pa.list_(pa.int32()), "{}"),
        (pa.list_(pa.field("element", pa.int32(), nullable=False)), "[null]"),
    ],
)
def test_what_is_not_of_its_type_is_an_error(kind: pa.DataType, text: str) -> None:
    assert "$.x" in one(kind, text) or "out of range" in one(kind, text)


def test_fields_as_columns_beside_the_whole() -> None:
    asked = JsonValues(pa.field("value", CAR), (pa.field("name", pa.string()), pa.field("odd name", pa.int64())))
    columns, _ = asked.columns([b'{"id": 1, "name": "a", "odd name": 3}', None, b"nonsense"])
    assert columns["name"].to_pylist() == ["a", None, None]
    assert columns["odd name"].to_pylist() == [3, None, None]
    assert columns["value"].to_pylist() == [{"id": 1, "name": "a"}, None, None]


@pytest.mark.parametrize("kind", [pa.decimal128(10, 2), pa.map_(pa.int64(), pa.string()), pa.struct([])])
def test_types_that_json_is_not_read_as_are_refused_at_once(kind: pa.DataType) -> None:
    with pytest.raises(BadOption, match="schema"):
        JsonValues(None, (pa.field("x", kind),))


def test_a_field_can_not_have_two_types() -> None:
    with pytest.raises(BadOption, match="same type"):
        JsonValues(pa.field("value", CAR), (pa.field("id", pa.string()),))


VALUES = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers()) | st.floats()


@given(st.lists(st.binary(max_size=10) | st.dictionaries(st.sampled_from(["id", "name"]), VALUES), max_size=5))
def test_nothing_fails_and_each_value_counts_for_itself(values: list[bytes | dict[str, Any]]) -> None:
    raw = [value if isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    found, errors = whole(CAR, *raw)
    alone = [whole(CAR, value) for value in raw]
    assert list(zip(found, errors, strict=True)) == [(value, error) for (value,), (error,) in alone]


def test_what_values_look_like_has_to_be_said() -> None:
    with pytest.raises(BadOption, match="valueSchema"):
        Projection.parsed(pa.schema([("offset", pa.int64()), ("value", pa.binary()), ("_error", pa.string())]))


def test_the_bytes_beside_their_fields() -> None:
    schema = pa.schema([("value", pa.binary()), ("id", pa.int64()), ("_error", pa.string())])
    raw = records.encode([Record(0, 0, None, b'{"id": 1}'), Record(1, 0, None, b"?")])
    (found,) = rows(Projection.parsed(schema), "t", 0, [raw], 0, 2)
    assert [(row["value"], row["id"]) for row in found.to_pylist()] == [(b'{"id": 1}', 1), (b"?", None)]


def test_rows_of_json() -> None:
    schema = pa.schema([("_error", pa.string()), ("offset", pa.int64()), ("value", CAR), ("name", pa.string())])
    raw = records.encode(
        [Record(0, 0, None, b'{"id": 1, "name": "a"}'), Record(1, 0, None, b"?"), Record(2, 0, b"k", None)]
    )
    (found,) = rows(Projection.parsed(schema), "t", 0, [raw], 0, 3)
    assert found.schema.equals(schema)
    good, bad, gone = found.to_pylist()
    assert good == {"_error": None, "offset": 0, "value": {"id": 1, "name": "a"}, "name": "a"}
    assert (bad["value"], bad["name"]) == (None, None)
    assert "malformed" in bad["_error"]
    assert gone == {"_error": None, "offset": 2, "value": None, "name": None}
