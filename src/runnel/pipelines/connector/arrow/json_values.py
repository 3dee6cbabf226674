"""JSON values as columns, by the schema that the user gave.

Rule 1: a value that is no JSON, or not of the schema, is a row of nulls with the reason in `_error`; the others count.
Rule 2: types are taken at their word: "1" is no number, and 1.5 no integer. A field that is missing is null.
Rule 3: a value that is null (a tombstone, or JSON's own null) is null in every column, and no error.
Rule 4: a time without a zone is UTC; bytes are base64; fields that the schema does not name are passed over.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import cached_property
from operator import attrgetter
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa

from runnel.pipelines.errors import BadOption


def _integer(bits: int) -> Any:
    return Annotated[int, msgspec.Meta(ge=-(2 ** (bits - 1)), le=2 ** (bits - 1) - 1)]


_PLAIN: dict[pa.DataType, Any] = {
    pa.bool_(): bool,
    pa.string(): str,
    pa.binary(): bytes,
    pa.int8(): _integer(8),
    pa.int16(): _integer(16),
    pa.int32(): _integer(32),
    pa.int64(): _integer(64),
    pa.float32(): float,
    pa.float64(): float,
    pa.date32(): date,
    pa.timestamp("us"): datetime,
    pa.timestamp("us", tz="UTC"): datetime,
}


@dataclass(frozen=True)
class JsonValues:
    """What is read of each value: an object as a whole (`value`), fields of it as columns, or both."""

    value: pa.Field | None
    fields: tuple[pa.Field, ...]

    def __post_init__(self) -> None:
        _ = self._decoder  # a schema that can't be read is refused now, in the driver

    def __reduce__(self) -> tuple[type["JsonValues"], tuple[pa.Field | None, tuple[pa.Field, ...]]]:
        return JsonValues, (self.value, self.fields)

    @cached_property
    def _decoder(self) -> "msgspec.json.Decoder[Any]":
        return msgspec.json.Decoder(_python(self._object) | None)

    @cached_property
    def _object(self) -> pa.StructType:
        """All that is read, as one object."""
        whole = {} if self.value is None else {field.name: field for field in self.value.type}
        for field in self.fields:
            if whole.setdefault(field.name, field).type != field.type:
                raise BadOption("schema", field.name, f"it is {whole[field.name].type} in value: give it the same type")
        return pa.struct(list(whole.values()))

    def columns(self, values: Sequence[bytes | None]) -> tuple[dict[str, pa.Array], pa.Array]:
        """A column of each name, and the errors."""
        objects, errors = _decode_all(self._decoder.decode, values)
        found = _objects(self._object, objects)
        columns = {field.name: found.field(field.name) for field in self.fields}
        if self.value is not None:
            fields = list(self.value.type)
            parts = [found.field(field.name) for field in fields]
            columns[self.value.name] = pa.StructArray.from_arrays(parts, fields=fields, mask=found.is_null())
        return columns, pa.array(errors, pa.string()) if errors else pa.nulls(len(objects), pa.string())


# --- reading
def _decode_all(decode: Callable[[bytes], Any], values: Sequence[bytes | None]) -> tuple[list[Any], list[str | None]]:
    """The objects, and the errors: none at all if all went well, which is the usual case and has a loop in C."""
    try:
        return list(map(decode, (b"null" if value is None else value for value in values))), []
    except (ValueError, RecursionError):
        pass
    objects: list[Any] = []
    errors: list[str | None] = []
    for value in values:
        try:
            objects.append(None if value is None else decode(value))
            errors.append(None)
        except (ValueError, RecursionError) as problem:
            objects.append(None)
            errors.append(str(problem))
    return objects, errors


# --- types
def _python(kind: pa.DataType) -> Any:
    """The type that msgspec reads for a type of Arrow's."""
    if pa.types.is_struct(kind):
        if not kind.num_fields:
            raise BadOption("schema", str(kind), "an object needs fields")
        fields = [_field(number, field) for number, field in enumerate(kind)]
        return msgspec.defstruct("Object", fields, rename={f"f{n}": field.name for n, field in enumerate(kind)})
    if pa.types.is_list(kind):
        return list[_optional(kind.value_field)]  # type: ignore[misc]
    if pa.types.is_map(kind) and kind.key_type == pa.string():
        return dict[str, _optional(kind.item_field)]  # type: ignore[misc]
    if kind not in _PLAIN:
        raise BadOption("schema", str(kind), "JSON is read as structs, arrays, maps by string, and " + _names())
    return _PLAIN[kind]


def _names() -> str:
    return ", ".join(dict.fromkeys(str(kind) for kind in _PLAIN))


def _optional(field: pa.Field) -> Any:
    return _python(field.type) | None if field.nullable else _python(field.type)


def _field(number: int, field: pa.Field) -> tuple[Any, ...]:
    name = f"f{number}"  # the names of users need not be names in Python
    return (name, _optional(field), None) if field.nullable else (name, _optional(field))


# --- columns
def _column(kind: pa.DataType, values: list[Any]) -> pa.Array:
    if pa.types.is_struct(kind):
        return _objects(kind, values)
    if pa.types.is_list(kind):
        items = _column(kind.value_type, [item for value in values if value is not None for item in value])
        return pa.ListArray.from_arrays(_offsets(values), items, type=kind, mask=_mask(values))
    if pa.types.is_map(kind):
        keys = [key for value in values if value is not None for key in value]
        items = _column(kind.item_type, [item for value in values if value is not None for item in value.values()])
        return pa.MapArray.from_arrays(
            _offsets(values), pa.array(keys, pa.string()), items, type=kind, mask=_mask(values)
        )
    return pa.array(values, kind)


def _objects(kind: pa.StructType, objects: list[Any]) -> pa.StructArray:
    """A column of objects; where there is none, its fields are null too."""
    mask = _mask(objects)
    if mask is not None:
        objects = [_Nothing if value is None else value for value in objects]
    columns = [_column(field.type, list(map(attrgetter(f"f{n}"), objects))) for n, field in enumerate(kind)]
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)


class _AllNull(type):
    """Has every attribute, and each is null: stands for an object that is not there."""

    def __getattr__(cls, name: str) -> None:
        return None


class _Nothing(metaclass=_AllNull):
    pass


def _mask(values: list[Any]) -> pa.Array | None:
    null = [value is None for value in values]
    return pa.array(null, pa.bool_()) if any(null) else None


def _offsets(values: list[Any]) -> pa.Array:
    sizes = [0 if value is None else len(value) for value in values]
    return pa.array(np.concatenate(([0], np.cumsum(sizes))).astype(np.int32))
