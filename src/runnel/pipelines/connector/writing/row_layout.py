"""The columns of what is written, and what they mean.

Rule 1: columns are looked at once, in the driver: a name or a type that can't be written fails before any job.
Rule 2: a column that nothing listens to is refused, but for those that reading brings and writing has no use for.

    value        string or binary; null is a message without one       key        the same; may be left out
    topic        string; may be left out if the option says            partition  int; null: by key, else in turn
    headers      array<struct<key,value>> or map, of string and binary or string
    timestamp    timestamp, or milliseconds as bigint; null: now
    delay        milliseconds, or an interval    |  both: the message is delivered later
    deliverAt    timestamp, or milliseconds      |
"""

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from runnel.pipelines.connector.writing.packing import Numbers, numbers_of
from runnel.pipelines.errors import BadOption

if TYPE_CHECKING:
    from pyspark.sql.types import StructField, StructType

_TEXT = ("string", "binary")
_TIME = ("timestamp", "timestamp_ntz", "bigint")
_HEADERS = ("array<struct<key:string,value:binary>>", "array<struct<key:string,value:string>>")
TYPES: dict[str, tuple[str, ...]] = {
    "value": _TEXT,
    "key": _TEXT,
    "topic": ("string",),
    "partition": ("int", "bigint", "smallint"),
    "headers": (*_HEADERS, "map<string,binary>", "map<string,string>"),
    "timestamp": _TIME,
    "delay": ("bigint", "int", "interval"),
    "deliverAt": _TIME,
}
READ_ONLY = ("offset", "timestampType")  # what reading brings: so a table that was read can be written
NAMES = {name.lower(): name for name in TYPES}


@dataclass(frozen=True)
class Layout:
    """Where the columns are. It travels to the executors."""

    places: dict[str, int]

    @classmethod
    def of(cls, schema: "StructType", topic: str | None) -> "Layout":
        places: dict[str, int] = {}
        for place, field in enumerate(schema.fields):
            name = _meaning(field)
            if name in places:
                raise _bad(f"{field.name}", f"two columns are called {name}: keep one")
            if name is not None:
                places[name] = place
        if "value" not in places:
            raise _bad(", ".join(schema.names), "one column has to be called value")
        if "topic" not in places and topic is None:
            raise _bad(", ".join(schema.names), "say where to write: with the option topic, or a column of that name")
        return cls(places)

    def column(self, batch: pa.RecordBatch, name: str) -> pa.Array | None:
        return batch.column(self.places[name]) if name in self.places else None

    def times(self, batch: pa.RecordBatch, name: str, missing: int) -> Numbers | None:
        """A column of times in milliseconds since 1970; None if there is no such column."""
        column = self.column(batch, name)
        return None if column is None else _millis(column, missing)

    @property
    def delays(self) -> bool:
        return "delay" in self.places or "deliverAt" in self.places

    def due(self, batch: pa.RecordBatch, now_ms: int) -> Numbers:
        """When each message is to be delivered, in milliseconds since 1970; -1: at once."""
        due = np.full(len(batch), -1)
        spans, times = self.times(batch, "delay", -1), self.times(batch, "deliverAt", -1)
        if spans is not None:
            due = np.where(spans >= 0, now_ms + spans, due)
        return due if times is None else np.where(times >= 0, times, due)


def _millis(column: pa.Array, missing: int) -> Numbers:
    """Spark keeps times and intervals in microseconds."""
    if pa.types.is_integer(column.type):
        return numbers_of(column, missing)
    known = column.is_valid().to_numpy(zero_copy_only=False)
    micros = numbers_of(pc.fill_null(column.cast(pa.int64()), 0), 0)
    return np.where(known, micros // 1000, missing)


def _meaning(field: "StructField") -> str | None:
    """What a column is for; None: nothing here."""
    name = NAMES.get(field.name.lower())
    if name is None:
        if field.name in READ_ONLY:
            return None
        near = difflib.get_close_matches(field.name.lower(), NAMES, n=1)
        hint = f"did you mean {NAMES[near[0]]}?" if near else f"there are {', '.join(TYPES)}"
        raise _bad(field.name, f"no column of this name can be written: {hint} Leave it out with select")
    kind = field.dataType.simpleString()
    if not any(kind == allowed or kind.startswith(f"{allowed} day") for allowed in TYPES[name]):
        raise _bad(f"{field.name} {kind}", f"{name} can be {' or '.join(TYPES[name])}: cast it in the query")
    return name


def _bad(shown: str, allowed: str) -> BadOption:
    return BadOption("schema", shown, allowed)
