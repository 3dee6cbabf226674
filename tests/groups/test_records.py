"""Records come back as they were written, and are Kafka's: an independent reader understands them."""

import struct
import uuid
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.groups.record_codec import FORMS, TYPES_OF_RUNNEL, decode, encode_key, encode_value
from runnel.groups.records import (
    AnyKey,
    ClassicGroupRecord,
    ClassicMemberRecord,
    ClassicTerms,
    ConsumerMemberRecord,
    CurrentRecord,
    GroupDetails,
    GroupEpochRecord,
    Key,
    Kind,
    MemberState,
    OffsetKey,
    OffsetRecord,
    PendingKey,
    PendingOffset,
    PendingRecord,
    ShareMemberRecord,
    TargetEpochRecord,
    TargetRecord,
    TopicKey,
    TopicRecord,
    Value,
    expiry_ms,
)
from runnel.model.errors import RecordUnreadable
from runnel.model.ids import PartitionKey, TopicId
from runnel.model.partition_sets import grouped, ungrouped

ID, OTHER = uuid.UUID(int=7), uuid.UUID(int=8)
MEMBER = ClassicMemberRecord("m", "i", "c", "/h", 60_000, 45_000, b"\x00\xff", b"\x01")
BARE = ClassicMemberRecord("n", None, "", "", 1, 2, b"", b"")
CLASSIC = ClassicTerms(1, (("range", b"\xff"),))
ASSIGNED = ((3, ((ID, (0, 2)),)), (5, ((ID, (1,)), (OTHER, (7,)))))
VALUES: list[tuple[AnyKey, Value]] = [
    (OffsetKey("g", "t", 2), OffsetRecord(2**62, -1, "mémo", 1_000)),
    (OffsetKey("g", "t", 2), OffsetRecord(5, -1, "", 1_000, 2_000)),
    (OffsetKey("", "t", 2**31 - 1), OffsetRecord(0, 9, "", 1_000)),
    (TopicKey("g", "t"), TopicRecord(ID)),
    (PendingKey("g", 2**62), PendingRecord(3, 4, (PendingOffset(ID, 2, 1, 2**62, -1, "mémo"),))),
    (Key(Kind.CLASSIC_GROUP, "g"), ClassicGroupRecord("consumer", 3, "range", "m", 1_000, (MEMBER, BARE))),
    (Key(Kind.CLASSIC_GROUP, "g"), ClassicGroupRecord("", 3, "", "", 1_000, ())),
    (Key(Kind.CONSUMER_GROUP, "g"), GroupEpochRecord(5, 2**48 - 1)),
    (Key(Kind.CONSUMER_TARGET_EPOCH, "g"), TargetEpochRecord(4)),
    (Key(Kind.CONSUMER_MEMBER, "g", "m"), ConsumerMemberRecord("i", "r", "c", "h", 1, ("t",), "a.*", "range")),
    (Key(Kind.CONSUMER_MEMBER, "g", "m"), ConsumerMemberRecord(None, None, "", "", 1, (), "", "", CLASSIC)),
    (Key(Kind.CONSUMER_TARGET, "g", "m"), TargetRecord(((ID, (0, 1)),))),
    (Key(Kind.CONSUMER_CURRENT, "g", "m"), CurrentRecord(-2, 3, MemberState.UNREVOKED, ASSIGNED, ((ID, (9,)),))),
    (Key(Kind.CONSUMER_CURRENT, "g", "m"), CurrentRecord(1, 0, MemberState.STABLE, (), ())),
    (Key(Kind.SHARE_GROUP, "g"), GroupEpochRecord(5, 2**48 - 1)),
    (Key(Kind.SHARE_TARGET_EPOCH, "g"), TargetEpochRecord(5)),
    (Key(Kind.SHARE_MEMBER, "g", "m"), ShareMemberRecord(None, "c", "h", ("t", "u"))),
    (Key(Kind.SHARE_TARGET, "g", "m"), TargetRecord(())),
    (Key(Kind.SHARE_CURRENT, "g", "m"), CurrentRecord(5, 4, MemberState.STABLE, ((5, ((ID, (0,)),)),), ())),
    (Key(Kind.DETAILS, "g"), GroupDetails(stable=True, protocols=(("m", (("range", b"\x00"), ("rr", b""))),))),
    (Key(Kind.DETAILS, "g"), GroupDetails(1_000, assignor="uniform")),
    (Key(Kind.DETAILS, "g"), GroupDetails(1_000, session_timeout_ms=45_000, topics=((ID, 3), (OTHER, -1)))),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value"), VALUES)
def test_a_record_comes_back(key: AnyKey, value: Value) -> None:
    assert decode(encode_key(key), encode_value(key, value)) == (key, value)
    assert decode(encode_key(key), None) == (key, None)


def test_every_kind_is_among_them() -> None:
    assert set(FORMS) == set(Kind)
    assert {int.from_bytes(encode_key(key)[:2], "big") for key, _ in VALUES} == set(Kind)


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def test_an_offset_is_written_as_kafka_has_it() -> None:
    """OffsetCommitKey 1, OffsetCommitValue 3; 1 where an old client asked for its own retention."""
    assert encode_key(VALUES[0][0]) == struct.pack(">h", 1) + string("g") + string("t") + struct.pack(">i", 2)
    value = struct.pack(">hqi", 3, 2**62, -1) + string("mémo") + struct.pack(">q", 1_000)
    assert encode_value(*VALUES[0]) == value
    assert encode_value(*VALUES[1]) == struct.pack(">hq", 1, 5) + string("") + struct.pack(">qq", 1_000, 2_000)


def test_a_classic_group_is_written_as_kafka_has_it() -> None:
    """GroupMetadataKey 2, GroupMetadataValue 3."""
    assert encode_key(VALUES[5][0]) == struct.pack(">h", 2) + string("g")
    head = struct.pack(">h", 3) + string("consumer") + struct.pack(">i", 3) + string("range") + string("m")
    first = string("m") + string("i") + string("c") + string("/h") + struct.pack(">ii", 60_000, 45_000)
    second = string("n") + struct.pack(">h", -1) + string("") + string("") + struct.pack(">iiii", 1, 2, 0, 0)
    states = struct.pack(">i2s", 2, b"\x00\xff") + struct.pack(">i1s", 1, b"\x01")
    assert encode_value(*VALUES[5]) == head + struct.pack(">qi", 1_000, 2) + first + states + second
    empty = struct.pack(">h", 3) + string("") + struct.pack(">ihhqi", 3, -1, -1, 1_000, 0)
    assert encode_value(*VALUES[6]) == empty


@pytest.mark.parametrize(("wanted_ms", "kept_ms"), [(2**63 + 5, 2**63 - 1), (5, 5), (-1, 0)])
def test_a_time_to_expire_may_lie_in_any_future(wanted_ms: int, kept_ms: int) -> None:
    """A client may ask for a retention of 2**63 - 1, from now on; and -1 would be none."""
    key, record = OffsetKey("g", "t", 2), OffsetRecord(5, -1, "", 1_000, expiry_ms(wanted_ms))
    assert decode(encode_key(key), encode_value(key, record)) == (key, OffsetRecord(5, -1, "", 1_000, kept_ms))


def test_all_versions_of_an_offset_are_read() -> None:
    key = encode_key(OffsetKey("g", "t", 2))
    tagged = b"\x01\x00\x10" + ID.bytes
    versions = [
        struct.pack(">hq", 0, 5) + string("m") + struct.pack(">q", 9),
        struct.pack(">hq", 1, 5) + string("m") + struct.pack(">qq", 9, 11),
        struct.pack(">hq", 2, 5) + string("m") + struct.pack(">q", 9),
        struct.pack(">hqi", 3, 5, 4) + string("m") + struct.pack(">q", 9),
        struct.pack(">hqi", 4, 5, 4) + b"\x02m" + struct.pack(">q", 9) + tagged,
    ]
    read = [decode(key, value) for value in versions]
    wanted = [OffsetRecord(5, -1, "m", 9), OffsetRecord(5, -1, "m", 9, 11), OffsetRecord(5, -1, "m", 9)]
    assert [each and each[1] for each in read] == [*wanted, *[OffsetRecord(5, 4, "m", 9)] * 2]


def test_what_only_runnel_keeps_lies_where_kafka_has_no_type() -> None:
    assert [kind for kind in Kind if kind > 1_000] == [Kind.PENDING, Kind.TOPIC, Kind.DETAILS]
    assert all((kind in TYPES_OF_RUNNEL) == (kind > 1_000) for kind in Kind)


@pytest.mark.parametrize("number", [0, 4, 9, 15, 16, 17, 999, 10_103, 11_099])
def test_a_type_that_is_not_known_is_skipped(number: int) -> None:
    assert decode(struct.pack(">h", number) + string("g"), b"anything") is None


@pytest.mark.parametrize("value", [b"", b"\xff", struct.pack(">h", 5), struct.pack(">hq", 3, 1)])
def test_an_unreadable_value_is_refused(value: bytes) -> None:
    with pytest.raises(RecordUnreadable, match="can't be read"):
        decode(encode_key(VALUES[0][0]), value)


@pytest.mark.parametrize("key", [b"", b"\x00", struct.pack(">h", 1), struct.pack(">hh", 1, 9) + b"g",
                                 struct.pack(">hh", 1, 1) + b"\xff", b"order-17", b"\xff\xffg",
                                 struct.pack(">h", 1_000) + string("g")])  # fmt: skip
def test_an_unreadable_key_is_refused(key: bytes) -> None:
    with pytest.raises(RecordUnreadable, match="can't be read"):
        decode(key, b"")


@given(st.sampled_from([encode_key(key) for key, _ in VALUES]), st.integers(0, 5), st.binary(max_size=80), st.binary())
@settings(max_examples=500)
def test_any_bytes_are_read_or_refused(key: bytes, version: int, value: bytes, junk: bytes) -> None:
    for each in (key, key[:2] + junk, junk):
        with suppress(RecordUnreadable):
            decode(each, struct.pack(">h", version) + value)


@given(st.frozensets(st.builds(PartitionKey, st.uuids().map(TopicId), st.integers(0, 2**31 - 1)), max_size=20))
@settings(max_examples=50)
def test_partitions_are_grouped_and_ungrouped(partitions: frozenset[PartitionKey]) -> None:
    assert ungrouped(grouped(partitions)) == partitions
