"""Large groups: changes are gathered, and cost little."""

import uuid
from collections.abc import Collection

from runnel.groups import GroupConfig, GroupShard, Step
from runnel.groups.values import ConsumerAlive, ConsumerHeartbeat
from runnel.model.ids import Life, Millis, PartitionKey, TopicId


class OneTopic:
    version = 1
    topic_id = TopicId(uuid.UUID(int=1))

    def __init__(self, count: int) -> None:
        self.count = count

    def names(self) -> Collection[str]:
        return ["t"]

    def id_of(self, name: str) -> TopicId | None:
        return self.topic_id

    def name_of(self, topic_id: TopicId) -> str | None:
        return "t"

    def is_over(self, life: Life) -> bool:
        return False

    def partition_count(self, topic_id: TopicId) -> int:
        return self.count


class NoChance:
    def below(self, bound: int) -> int:
        return 0

    def token(self, size: int) -> bytes:
        return bytes(size)


class Large:
    def __init__(self, count: int) -> None:
        self.topics = OneTopic(count)
        self.shard = GroupShard(GroupConfig(), NoChance())
        self.shard.wake(self.topics, Millis(0), Millis(0))

    def beat(
        self, member_id: str, epoch: int, now: int, owned: tuple[PartitionKey, ...] | None = None
    ) -> ConsumerAlive:
        joins = epoch == 0
        request = ConsumerHeartbeat(
            "g", member_id, epoch, rebalance_timeout_ms=60_000 if joins else None,
            topic_names=("t",) if joins else None, owned=() if joins else owned,
        )  # fmt: skip
        step = self.shard.consumer_heartbeat(request, 1, self.topics, Millis(now), Millis(now))
        (reply,) = step.replies
        assert isinstance(reply.result, ConsumerAlive)
        return reply.result

    def tick(self) -> Step:
        deadline = self.shard.next_deadline_ms()
        assert deadline is not None
        return self.shard.tick(deadline, self.topics, deadline)


def test_a_large_group_gathers_changes_for_a_moment() -> None:
    large = Large(5_000)
    assert len(large.beat("a", 0, now=0).assigned or ()) == 5_000
    for name in "bcde":
        alive = large.beat(name, 0, now=10)
        assert (alive.member_epoch, alive.assigned) == (1, ())  # the targets of epoch 1 do not know them
    assert large.shard.next_deadline_ms() == 500
    assert len(large.tick().records) == 5 + 1  # one target each, for all four that came, and the group
    alive = large.beat("a", 1, now=600)
    assert (alive.member_epoch, len(alive.assigned or ())) == (1, 1_000)
    assert large.beat("a", 1, now=700, owned=alive.assigned).member_epoch == 5
    assert len(large.beat("b", 1, now=700).assigned or ()) == 1_000


def test_a_small_group_is_assigned_at_once() -> None:
    small = Large(100)
    small.beat("a", 0, now=0)
    assert small.beat("b", 0, now=0).member_epoch == 2


def test_a_heartbeat_without_news_writes_nothing() -> None:
    small = Large(100)
    small.beat("a", 0, now=0)
    request = ConsumerHeartbeat("g", "a", 1)
    step = small.shard.consumer_heartbeat(request, 1, small.topics, Millis(5), Millis(5))
    assert not step.records
