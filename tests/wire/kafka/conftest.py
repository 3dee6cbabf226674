"""Random messages of every kind and version, for the tests of this folder."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import strategies as st

from runnel.wire.kafka import messages, notation
from runnel.wire.kafka.error_codes import ErrorCode

WHOLE_NUMBERS = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
SMALL: dict[str, st.SearchStrategy[Any]] = {
    **{name: st.integers(-(1 << bits), (1 << bits) - 1) for name, bits in WHOLE_NUMBERS.items()},
    "uint16": st.integers(0, 65_535),
    "bool": st.booleans(),
    "float64": st.floats(allow_nan=False),
    "uuid": st.uuids(allow_nil=True),
    "string": st.text(max_size=6) | st.sampled_from(["x" * 126, "x" * 127, "ä" * 100]),
    "bytes": st.binary(max_size=6) | st.sampled_from([b"x" * 126, b"x" * 127]),
    "records": st.binary(max_size=6) | st.just(b"x" * 70_000),
}
# The oracle reads some numbers as error codes, moments and spans of time, and refuses those outside of their range.
ERROR_CODES = st.sampled_from([code.value for code in ErrorCode])
MILLISECONDS = st.integers(0, 1 << 31 - 1)


@cache
def values(field_type: str, field_name: str) -> st.SearchStrategy[Any]:
    if field_type == "int16" and field_name.endswith("error_code"):
        return ERROR_CODES
    if field_type == "int64" and ("time" in field_name or field_name.endswith("_ms")):
        return MILLISECONDS
    return SMALL[field_type]


@cache
def struct_values(message_name: str, struct_name: str, version: int) -> st.SearchStrategy[Any]:
    schema = notation.message(message_name)
    root = getattr(messages, message_name)
    struct = schema.structs.get(struct_name, schema.root)
    built = getattr(root, struct_name, root)
    fields = {field.name: field_values(message_name, field, version) for field in struct.fields if field.at(version)}
    return st.builds(built, **fields)


def field_values(message_name: str, field: notation.Field, version: int) -> st.SearchStrategy[Any]:
    if field.is_struct:
        one = struct_values(message_name, field.type, version)
    else:
        one = values(field.type, field.name)
    if field.array:
        one = st.lists(one, max_size=2)
        if field.type == "int32":
            one |= st.just([7] * 130)
    unset_struct = field.is_struct and field.tag is not None and not field.array
    return st.none() | one if version in field.nullable or unset_struct else one


@pytest.fixture(scope="session")
def messages_of() -> Callable[[str, int], st.SearchStrategy[Any]]:
    """messages_of(name, version): a strategy for that message, with only what travels in that version set."""
    return lambda name, version: struct_values(name, name, version)
