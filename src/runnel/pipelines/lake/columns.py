"""Which columns a lake's table has. Pure: Arrow schemas in, Arrow schemas out.

Rule 1: a row says where it was in the log (`topic`, `partition`, `offset`) and when (`timestamp`); the rest is free.
Rule 2: `date` is the day of the row's own `timestamp`, in UTC; it and `topic` are what the table is partitioned by, and
        so are in the path of a file, not in it.
Rule 3: a table takes what every Delta reader understands (protocol 1/2): no type or name that needs a newer one.
Rule 4: columns may be added to a table, never changed: whoever wrote or reads it with fewer goes on.
"""

from typing import Any, Final

import pyarrow as pa

from runnel.pipelines.errors import BadOption

TIME: Final = pa.timestamp("us", "UTC")
PLACE: Final = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "timestamp": TIME}
DATE: Final = pa.field("date", pa.date32())
INGESTED: Final = pa.field("ingested_at", TIME)
OWN: Final = (DATE, INGESTED)  # what the sink adds
PARTITIONED_BY: Final = ("topic", "date")
ERROR: Final = "_error"  # why the value of a row did not become columns
NAME_BARRED: Final = frozenset(" ,;{}()\n\t=")  # what Parquet's column names can't have, where names are not mapped


def table_schema(given: pa.Schema) -> pa.Schema:
    """The table for rows of this schema."""
    for name, kind in PLACE.items():
        index = given.get_field_index(name)
        if index < 0 or _plain(given.field(index).type) != kind:
            raise BadOption("columns", given.names, f"a lake needs a column {name} of type {kind}")
    taken = [field.name for field in OWN if field.name in given.names]
    if taken:
        raise BadOption("columns", taken[0], "the lake adds a column of this name itself: rename yours")
    return pa.schema([pa.field(field.name, kept_type(field.name, field.type)) for field in given] + list(OWN))


def file_schema(table: pa.Schema) -> pa.Schema:
    """What is inside of the table's files."""
    return pa.schema([field for field in table if field.name not in PARTITIONED_BY])


def measured(table: pa.Schema) -> list[str]:
    """The columns whose least and greatest values the log tells for each file.

    No floating point: Spark takes NaN for the greatest number, and Parquet's statistics pass it over.
    """
    return [field.name for field in file_schema(table) if field.type in _MEASURED]


def added(there: pa.Schema, wanted: pa.Schema) -> list[pa.Field]:
    """The columns that a table lacks; a BadOption if one would have to be changed."""
    known = {field.name.lower(): field for field in there}
    lacking = []
    for field in wanted:
        present = known.get(field.name.lower())
        if present is None:
            lacking.append(field)
        elif present.name != field.name or _plain(present.type) != _plain(field.type):
            raise BadOption(
                "columns", field.name, f"the table has it as {present.name} {present.type}, not {field.type}: rename it"
            )
    return lacking


def kept_type(name: str, kind: pa.DataType) -> pa.DataType:
    """How a column of this type is kept; a BadOption if a table of protocol 1/2 can't."""
    barred = NAME_BARRED.intersection(name)
    if barred or not name:
        raise BadOption("columns", name, "a lake's columns have no spaces, commas, semicolons, brackets or =")
    return _kept(name, kind)


def _kept(name: str, kind: Any) -> Any:
    types = pa.types
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, kept_type(field.name, field.type)) for field in kind])
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(_kept(name, kind.value_type))
    if types.is_map(kind):
        return pa.map_(_kept(name, kind.key_type), _kept(name, kind.item_type))
    plain = _plain(kind)
    if plain in _SIMPLE or types.is_decimal128(plain):
        return plain
    raise BadOption("columns", f"{name} {kind}", "a lake has no such type: use a string, or a timestamp with its zone")


_SIMPLE = frozenset(
    (
        pa.string(), pa.binary(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.float32(),
        pa.float64(), pa.date32(), TIME,
    )
)  # fmt: skip


_MEASURED = frozenset((pa.string(), pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.date32(), TIME))


def _plain(kind: Any) -> Any:
    """A type as a file has it: times in UTC, no large variants, no names of list elements."""
    types = pa.types
    if types.is_timestamp(kind) and kind.tz is not None:
        return TIME
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind):
        return pa.binary()
    if types.is_list(kind) or types.is_large_list(kind):
        return pa.list_(_plain(kind.value_type))
    if types.is_struct(kind):
        return pa.struct([pa.field(field.name, _plain(field.type)) for field in kind])
    if types.is_map(kind):
        return pa.map_(_plain(kind.key_type), _plain(kind.item_type))
    return kind
