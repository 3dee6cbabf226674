"""Offsets lie under their topic's name and belong to its id; and what is made of a log in which a record of a group was
set aside."""

from uuid import UUID

import pytest

from runnel.broker.internal import ImageTopics
from runnel.cluster.image import Image
from runnel.groups import GroupConfig, GroupShard
from runnel.groups.record_codec import decode, encode_key, encode_value
from runnel.groups.records import (
    AnyKey,
    ClassicGroupRecord,
    ConsumerMemberRecord,
    CurrentRecord,
    GroupDetails,
    GroupEpochRecord,
    Key,
    Kind,
    MemberState,
    OffsetKey,
    OffsetRecord,
    ShareMemberRecord,
    TargetEpochRecord,
    TargetRecord,
    TopicKey,
    TopicRecord,
    Value,
)
from runnel.groups.store import Store
from runnel.model.ids import Millis, PartitionKey, TopicId
from runnel.testing.clock import SeededRng

FORMER, LATTER = TopicId(UUID(int=1)), TopicId(UUID(int=2))


def record(offset: int) -> OffsetRecord:
    return OffsetRecord(offset, -1, "", 1_000)


def read(store: Store) -> list[object]:
    """What the store has written since the last look."""
    return [decode(key, value) for key, value in store.drain()]


def test_the_topic_is_written_with_its_first_offset_and_goes_with_its_last() -> None:
    store = Store()
    store.put_offset("g", "t", PartitionKey(FORMER, 0), record(5))
    assert read(store) == [(TopicKey("g", "t"), TopicRecord(FORMER)), (OffsetKey("g", "t", 0), record(5))]
    store.put_offset("g", "t", PartitionKey(FORMER, 1), record(6))
    store.put_offset("g", "t", PartitionKey(FORMER, 1), record(6))
    assert read(store) == [(OffsetKey("g", "t", 1), record(6))]
    store.drop_offset("g", "t", 0)
    assert read(store) == [(OffsetKey("g", "t", 0), None)]
    store.drop_offset("g", "t", 1)
    assert read(store) == [(OffsetKey("g", "t", 1), None), (TopicKey("g", "t"), None)]
    assert store.groups == {}


def test_a_topic_that_was_created_again_takes_the_offsets_of_the_former_with_it() -> None:
    store = Store()
    for number in (0, 1):
        store.put_offset("g", "t", PartitionKey(FORMER, number), record(5))
    store.put_offset("h", "t", PartitionKey(FORMER, 0), record(7))
    log = store.drain()
    store.put_offset("g", "t", PartitionKey(LATTER, 1), record(1))
    stored = store.groups["g"]
    assert stored.offset("t", PartitionKey(FORMER, 0)) is None
    assert stored.offset("t", PartitionKey(FORMER, 1)) is None
    assert stored.offset("t", PartitionKey(LATTER, 0)) is None
    assert stored.offset("t", PartitionKey(LATTER, 1)) == record(1)
    assert store.groups["h"].offset("t", PartitionKey(FORMER, 0)) == record(7)
    again = Store()
    for key, value in [*log, *store.drain()]:
        found = decode(key, value)
        assert found is not None
        again.apply(*found)
    assert again.groups == store.groups


def test_an_offset_without_the_id_of_its_topic_counts_for_no_topic() -> None:
    store = Store()
    store.apply(OffsetKey("g", "t", 0), record(5))
    assert store.groups["g"].offset("t", PartitionKey(FORMER, 0)) is None
    store.put_offset("g", "t", PartitionKey(FORMER, 1), record(6))
    assert store.groups["g"].offset("t", PartitionKey(FORMER, 0)) is None


GROUPS: dict[str, dict[AnyKey, Value]] = {
    "classic": {Key(Kind.CLASSIC_GROUP, "g"): ClassicGroupRecord("consumer", 1, "range", "", 1, ())},
    "consumer": {
        Key(Kind.CONSUMER_GROUP, "g"): GroupEpochRecord(1, 0),
        Key(Kind.CONSUMER_TARGET_EPOCH, "g"): TargetEpochRecord(1),
    },
    "share": {
        Key(Kind.SHARE_GROUP, "g"): GroupEpochRecord(1, 0),
        Key(Kind.SHARE_TARGET_EPOCH, "g"): TargetEpochRecord(1),
    },
    "none": {},
}
NOTHING = CurrentRecord(1, 0, MemberState.STABLE, (), ())
MEMBERS: dict[str, dict[AnyKey, Value]] = {
    "consumer": {
        Key(Kind.CONSUMER_MEMBER, "g", "m"): ConsumerMemberRecord(None, None, "c", "h", 10_000, ("t",), "", ""),
        Key(Kind.CONSUMER_TARGET, "g", "m"): TargetRecord(()),
        Key(Kind.CONSUMER_CURRENT, "g", "m"): NOTHING,
    },
    "share": {
        Key(Kind.SHARE_MEMBER, "g", "m"): ShareMemberRecord(None, "c", "h", ("t",)),
        Key(Kind.SHARE_TARGET, "g", "m"): TargetRecord(()),
        Key(Kind.SHARE_CURRENT, "g", "m"): NOTHING,
    },
}
GONE: dict[AnyKey, Value] = {
    Key(Kind.CONSUMER_TARGET, "g", "gone"): TargetRecord(()),
    Key(Kind.SHARE_CURRENT, "g", "gone"): NOTHING,
}


def taken_out(records: dict[AnyKey, Value]) -> set[AnyKey]:
    """Of what a shard makes tombstones when it has read these records; there must be none at the next look."""
    log: dict[bytes, bytes | None] = {encode_key(key): encode_value(key, value) for key, value in records.items()}
    found = []
    for _ in range(2):
        shard = GroupShard(GroupConfig(), SeededRng(1))
        for key, value in log.items():
            shard.replay(key, value)
        step = shard.wake(ImageTopics(Image("cluster")), Millis(1), Millis(1))
        found.append({row[0] for key, value in step.records if value is None and (row := decode(key, None))})
        log.update(step.records)
    assert found[1] == set()
    return found[0]


@pytest.mark.parametrize("kind", GROUPS)
def test_members_of_another_type_than_their_group_are_taken_out(kind: str) -> None:
    details: dict[AnyKey, Value] = {Key(Kind.DETAILS, "g"): GroupDetails(1)}
    strays = {key: row for name, part in MEMBERS.items() if name != kind for key, row in part.items()} | GONE
    lost = details if kind == "none" else {}
    assert taken_out({**GROUPS[kind], **details, **MEMBERS.get(kind, {}), **strays}) == set(strays | lost)


def test_a_group_of_two_types_is_of_one_afterwards() -> None:
    """A record that ended the former type may have been set aside."""
    assert taken_out(GROUPS["consumer"] | GROUPS["classic"] | GROUPS["share"]) == {
        *GROUPS["classic"], *GROUPS["share"],
    }  # fmt: skip


def test_a_topic_whose_offsets_are_all_gone_is_taken_out() -> None:
    records: dict[AnyKey, Value] = {TopicKey("g", "t"): TopicRecord(FORMER), TopicKey("g", "u"): TopicRecord(LATTER)}
    assert taken_out({**records, OffsetKey("g", "u", 0): record(5)}) == {TopicKey("g", "t")}
