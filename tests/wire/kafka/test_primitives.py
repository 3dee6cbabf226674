"""Varints at their edges, and the small tables."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.wire.kafka import primitives


@given(st.integers(0, 0x7FFF_FFFF) | st.sampled_from([(1 << bits) + d for bits in (7, 14, 21, 28) for d in (-1, 0)]))
def test_varints_come_back(value: int) -> None:
    data = primitives.uvarint(value)
    assert len(data) == max(1, -(-value.bit_length() // 7))
    assert primitives.uvarint_at(memoryview(data), 0) == (value, len(data))


@pytest.mark.parametrize("data", [b"\xff\xff\xff\xff\x08", b"\xff\xff\xff\xff\xff\x01", b"\x80\x80\x80\x80\x80"])
def test_a_varint_above_31_bits_or_5_bytes_is_malformed(data: bytes) -> None:
    with pytest.raises(primitives.Malformed, match="varint"):
        primitives.uvarint_at(memoryview(data), 0)


def test_a_varint_may_be_longer_than_it_needs_to_be() -> None:
    assert primitives.uvarint_at(memoryview(b"\x85\x80\x80\x80\x00"), 0) == (5, 5)


def test_the_uuids_kept_are_bounded() -> None:
    raw = UUID(int=5).bytes
    assert primitives.uuids[raw] is primitives.uuids[raw] == UUID(int=5)
    for number in range(20_000):
        assert primitives.uuids[number.to_bytes(16, "big")].int == number
    assert len(primitives.uuids) <= 8_192


def test_the_structs_kept_are_bounded() -> None:
    packers = primitives.PerCount("i", "pack", head="h")
    assert packers[2](1, 2, 3) == b"\0\1\0\0\0\2\0\0\0\3"
    for count in range(500):
        assert len(packers[count](1, *range(count))) == 2 + 4 * count
    assert len(packers) <= 65
