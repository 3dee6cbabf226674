"""Rebalances whose members have odd timeouts end, and leave time for others."""

import random
import uuid
from collections.abc import Collection

from runnel.groups import GroupConfig, GroupShard
from runnel.groups.classic import ClassicGroup
from runnel.groups.rebalance import SILENT_MS_MIN
from runnel.groups.values import Join, Leave, Leaver, OfferedProtocol, Sync
from runnel.model.ids import Life, Millis, TopicId

NOW = Millis(1_000)


class Topics:
    version = 0

    def names(self) -> Collection[str]:
        return ["t"]

    def id_of(self, name: str) -> TopicId | None:
        return TopicId(uuid.UUID(int=1))

    def name_of(self, topic_id: TopicId) -> str | None:
        return "t"

    def is_over(self, life: Life) -> bool:
        return False

    def partition_count(self, topic_id: TopicId) -> int:
        return 2


class Rng:
    def __init__(self) -> None:
        self._random = random.Random(1)

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)

    def token(self, size: int) -> bytes:
        return self._random.randbytes(size)


def _join(member_id: str, name: str) -> Join:
    protocols = (OfferedProtocol("range", b""),)
    return Join("g", member_id, name, name, "/127.0.0.1", 60_000, 60_000, "other", protocols)


def test_silent_static_members_are_waited_for_in_turns_that_take_time() -> None:
    topics = Topics()
    shard = GroupShard(GroupConfig(initial_rebalance_delay_ms=0), Rng())
    shard.wake(topics, NOW, NOW)
    names = "a", "b"
    for name in names:
        shard.join(_join("", name), name, topics, NOW, NOW)
    group = shard._groups["g"]
    assert isinstance(group, ClassicGroup)
    shard.join(_join(group.roster.statics["a"], "a"), "a", topics, NOW, NOW)
    assignments = tuple((member_id, b"x") for member_id in group.roster.members)
    for name in names:
        sync = Sync("g", group.generation, group.roster.statics[name], name, "other", "range", assignments)
        shard.sync(sync, name, topics, NOW, NOW)
    assert group.state.name == "STABLE"
    for member in group.roster.members.values():
        member.rebalance_timeout_ms = 0  # as an earlier broker let it in
    shard.leave(Leave("g", (Leaver("", "a"),)), "left", topics, NOW, NOW)
    shard.tick(NOW, topics, NOW)  # would never end
    assert group.state.name == "PREPARING_REBALANCE"
    due = shard.next_deadline_ms()
    assert due is not None
    assert due >= NOW + SILENT_MS_MIN
