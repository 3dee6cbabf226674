"""Weights are told from bytes alone, and never below what decoding makes of them."""

from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from runnel.model.weight import JSON_BYTES, json_weight, marks, values

plain = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), st.floats(allow_nan=False), st.text(max_size=300),
    st.binary(max_size=300),
)  # fmt: skip
anything = st.recursive(
    plain,
    lambda inner: st.one_of(st.lists(inner, max_size=20), st.dictionaries(st.text(max_size=3), inner)),
    max_leaves=60,
)


def counted(value: Any) -> int:
    match value:
        case list():
            return 1 + sum(map(counted, value))
        case dict():
            return 1 + sum(1 + counted(each) for each in value.values())
    return 1


@given(anything)
def test_the_values_of_msgpack_are_counted_exactly(value: Any) -> None:
    assert values(msgspec.msgpack.encode(value), 1_000_000) == counted(value)


@given(anything)
def test_marks_are_never_fewer_than_arrays_maps_and_short_texts(value: Any) -> None:
    def heavy(value: Any) -> int:
        match value:
            case list():
                return 1 + sum(map(heavy, value))
            case dict():
                return 1 + sum(heavy(name) + heavy(each) for name, each in value.items())
            case str() | bytes():
                return int(len(value) < 32)
        return 0

    assert marks(msgspec.msgpack.encode(value)) >= heavy(value)


def test_extensions_are_one_value() -> None:
    for size in (1, 2, 3, 4, 8, 16, 17, 300, 70_000):
        assert values(msgspec.msgpack.encode([msgspec.msgpack.Ext(1, bytes(size)), 1]), 10) == 3


def test_counting_ends_at_what_is_too_much() -> None:
    assert values(msgspec.msgpack.encode([[]] * 1_000), 10) == 11


def test_torn_bytes_are_counted_as_far_as_they_go() -> None:
    assert values(b"\x92\xc4", 10) == 2
    assert values(b"", 10) == 0


def test_a_list_of_json_weighs_by_what_is_in_it() -> None:
    assert json_weight(b"1") == 0
    assert json_weight(b'{"value":1}') == JSON_BYTES
    assert json_weight(b"[" + b",".join([b"{}"] * 100) + b"]") == JSON_BYTES * 200
