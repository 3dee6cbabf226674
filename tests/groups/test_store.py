"""What a shard makes of a log in which a record of a group was set aside."""

from uuid import UUID

import pytest

from runnel.broker.internal import ImageTopics
from runnel.cluster.image import Image
from runnel.groups import GroupConfig, GroupShard
from runnel.groups.records import (
    ClassicGroupRecord,
    ClassicMemberRecord,
    ConsumerGroupRecord,
    ConsumerMemberRecord,
    GroupRecord,
    Key,
    Kind,
    MemberRecord,
    ShareGroupRecord,
    ShareMemberRecord,
    TargetRecord,
    encode_key,
    encode_value,
)
from runnel.model.ids import Millis
from runnel.testing.clock import SeededRng

GROUPS: dict[str, GroupRecord | None] = {
    "classic": ClassicGroupRecord("consumer", 1, "range", "classic", True, 1),
    "consumer": ConsumerGroupRecord(1, 1, "uniform", 0, 1),
    "share": ShareGroupRecord(1, 0, 1, (UUID(int=1),), (1, 2)),  # counts of another topic, too
    "none": None,
}
MEMBERS: dict[str, MemberRecord] = {
    "classic": ClassicMemberRecord(None, "c", "h", 10_000, 10_000, (("range", b""),), b""),
    "consumer": ConsumerMemberRecord(None, None, "c", "h", 10_000, ("t",), "", ""),
    "share": ShareMemberRecord(None, "c", "h", 10_000, ("t",)),
}


@pytest.mark.parametrize("kind", GROUPS)
def test_members_of_another_kind_than_their_group_are_taken_out(kind: str) -> None:
    log: dict[bytes, bytes | None] = {}
    if (group := GROUPS[kind]) is not None:
        log[encode_key(Key(Kind.GROUP, "g"))] = encode_value(group)
    for name, member in MEMBERS.items():
        log[encode_key(Key(Kind.MEMBER, "g", name))] = encode_value(member)
    for name in (*MEMBERS, "gone"):
        log[encode_key(Key(Kind.TARGET, "g", name))] = encode_value(TargetRecord(()))
    for turn in range(2):
        shard = GroupShard(GroupConfig(), SeededRng(1))
        for key, value in log.items():
            shard.replay(key, value)
        step = shard.wake(ImageTopics(Image("cluster")), Millis(1), Millis(1))
        strays = [name for name in MEMBERS if name != kind] if turn == 0 else []
        taken_out = {encode_key(Key(part, "g", name)) for name in strays for part in (Kind.MEMBER, Kind.TARGET)}
        gone = {encode_key(Key(Kind.TARGET, "g", "gone"))} if turn == 0 else set()
        assert {key for key, value in step.records if value is None} == taken_out | gone
        log.update(step.records)
