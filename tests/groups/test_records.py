"""Records come back as they were written, and mean what docs/formats/group-records.md says."""

import uuid

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.groups.records import (
    AnyKey,
    ClassicGroupRecord,
    ClassicMemberRecord,
    ClassicTerms,
    ConsumerGroupRecord,
    ConsumerMemberRecord,
    CurrentRecord,
    Key,
    Kind,
    MemberState,
    OffsetKey,
    OffsetRecord,
    PendingKey,
    PendingOffset,
    PendingRecord,
    ShareGroupRecord,
    ShareMemberRecord,
    TargetRecord,
    Value,
    decode,
    encode_key,
    encode_value,
)
from runnel.model.errors import RecordUnreadable
from runnel.model.ids import PartitionKey, TopicId
from runnel.model.partition_sets import grouped, ungrouped

ID = uuid.UUID(int=7)
TOPIC = TopicId(ID)
CLASSIC = ClassicTerms(1, (("range", b""),))
VALUES: list[tuple[AnyKey, Value]] = [
    (Key(Kind.GROUP, "g"), ClassicGroupRecord("consumer", 3, "range", "m", True, 1_000)),
    (Key(Kind.GROUP, "g"), ConsumerGroupRecord(5, 4, "uniform", 2**48 - 1, 1_000)),
    (Key(Kind.MEMBER, "g", "m"), ClassicMemberRecord(None, "c", "h", 1, 2, (("range", b"\x00\xff"),), b"\x01")),
    (Key(Kind.MEMBER, "g", "m"), ConsumerMemberRecord("i", "r", "c", "h", 1, ("t",), "a.*", "range")),
    (Key(Kind.MEMBER, "g", "m"), ConsumerMemberRecord(None, None, "", "", 1, (), "", "", CLASSIC)),
    (Key(Kind.TARGET, "g", "m"), TargetRecord(((ID, (0, 1)),))),
    (Key(Kind.CURRENT, "g", "m"), CurrentRecord(-2, 3, MemberState.UNREVOKED, ((3, ((ID, (0,)),)),), ())),
    (OffsetKey("g", PartitionKey(TOPIC, 2)), OffsetRecord(2**62, -1, "mémo", 1_000, None)),
    (PendingKey("g", 2**62), PendingRecord(3, 4, (PendingOffset(ID, 2, 1, 2**62, -1, "mémo"),))),
    (Key(Kind.GROUP, "g"), ShareGroupRecord(5, 2**48 - 1, 1_000, (ID,), (3,))),
    (Key(Kind.MEMBER, "g", "m"), ShareMemberRecord(None, "c", "h", 45_000, ("t", "u"))),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), VALUES)
def test_a_record_comes_back(key: AnyKey, value: Value) -> None:
    assert decode(encode_key(key), encode_value(value)) == (key, value)
    assert decode(encode_key(key), None) == (key, None)


def test_the_bytes_are_those_of_the_page() -> None:
    assert msgspec.msgpack.decode(encode_key(Key(Kind.GROUP, "g"))) == [1, "g", ""]
    assert msgspec.msgpack.decode(encode_key(OffsetKey("g", PartitionKey(TOPIC, 2)))) == [5, "g", ID.bytes, 2]
    assert msgspec.msgpack.decode(encode_value(VALUES[1][1])) == [2, 5, 4, "uniform", 2**48 - 1, 1_000]
    assert msgspec.msgpack.decode(encode_value(VALUES[5][1])) == [1, [[ID.bytes, [0, 1]]]]
    assert msgspec.msgpack.decode(encode_value(VALUES[7][1])) == [1, 2**62, -1, "mémo", 1_000, None]
    assert msgspec.msgpack.decode(encode_key(VALUES[8][0])) == [6, "g", 2**62]
    assert msgspec.msgpack.decode(encode_value(VALUES[8][1])) == [1, 3, 4, [[ID.bytes, 2, 1, 2**62, -1, "mémo"]]]
    assert msgspec.msgpack.decode(encode_value(VALUES[9][1])) == [3, 5, 2**48 - 1, 1_000, [ID.bytes], [3]]
    assert msgspec.msgpack.decode(encode_value(VALUES[10][1])) == [3, None, "c", "h", 45_000, ["t", "u"]]


def test_a_field_at_the_end_is_skipped_and_a_missing_one_has_its_default() -> None:
    key = encode_key(VALUES[7][0])
    longer = msgspec.msgpack.encode([1, 5, -1, "", 1_000, None, "from a newer broker"])
    shorter = msgspec.msgpack.encode([1, 5, -1, "", 1_000])
    expected = OffsetRecord(5, -1, "", 1_000)
    assert [decode(key, value) for value in (longer, shorter)] == [(VALUES[7][0], expected)] * 2


def test_an_unknown_kind_is_skipped() -> None:
    assert decode(msgspec.msgpack.encode([99, "g"]), b"anything") is None


@pytest.mark.parametrize("value", [b"", b"\xff", msgspec.msgpack.encode([9, 1]), msgspec.msgpack.encode({"a": 1})])
def test_an_unreadable_value_is_refused(value: bytes) -> None:
    with pytest.raises(RecordUnreadable, match="can't be read"):
        decode(encode_key(Key(Kind.GROUP, "g")), value)


@pytest.mark.parametrize("key", [b"", b"\xc1", msgspec.msgpack.encode([]), msgspec.msgpack.encode([5, "g", "x", 1]),
                                 msgspec.msgpack.encode([5, "g", b"short", 1]), msgspec.msgpack.encode([1]),
                                 msgspec.msgpack.encode([6, "g", "x"]), msgspec.msgpack.encode([6, "g"]),
                                 msgspec.msgpack.encode(7), msgspec.msgpack.encode({5: 1})])  # fmt: skip
def test_an_unreadable_key_is_refused(key: bytes) -> None:
    with pytest.raises(RecordUnreadable, match="can't be read"):
        decode(key, b"")


@given(st.frozensets(st.builds(PartitionKey, st.uuids().map(TopicId), st.integers(0, 2**31 - 1)), max_size=20))
@settings(max_examples=50, deadline=None)
def test_partitions_are_grouped_and_ungrouped(partitions: frozenset[PartitionKey]) -> None:
    assert ungrouped(grouped(partitions)) == partitions
