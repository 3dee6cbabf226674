"""A member that joins without an id is given one that requests, answers and records have a place for."""

import pytest

from runnel.groups.record_codec import decode, encode_key, encode_value
from runnel.groups.records import ClassicGroupRecord, ClassicMemberRecord, Key, Kind
from runnel.groups.seats import new_member_id
from runnel.groups.values import Join
from runnel.testing.clock import SeededRng

STRING_BYTES_MAX = 32_767


def join(client_id: str, instance_id: str | None = None) -> Join:
    return Join("g", "", instance_id, client_id, "/h", 60_000, 60_000, "consumer", ())


def test_an_id_begins_with_the_name_of_the_instance_or_of_the_client() -> None:
    rng = SeededRng(1)
    assert new_member_id(join("c"), rng).startswith("c-")
    assert new_member_id(join("c", "i"), rng).startswith("i-")
    assert new_member_id(join("c"), rng) != new_member_id(join("c"), rng)


@pytest.mark.parametrize("name", ["c" * STRING_BYTES_MAX, "é" * (STRING_BYTES_MAX // 2)])
def test_a_very_long_name_is_cut(name: str) -> None:
    member_id = new_member_id(join(name), SeededRng(1))
    assert STRING_BYTES_MAX - 2 <= len(member_id.encode()) <= STRING_BYTES_MAX
    assert name.startswith(member_id.rpartition("-")[0])
    member = ClassicMemberRecord(member_id, None, name, "/h", 60_000, 60_000, b"", b"")
    key, record = Key(Kind.CLASSIC_GROUP, "g"), ClassicGroupRecord("consumer", 1, "range", member_id, 1, (member,))
    assert decode(encode_key(key), encode_value(key, record)) == (key, record)
