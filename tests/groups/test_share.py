"""Share groups under any order of joins, wishes, silences, topics and crashes."""

import uuid
from collections.abc import Collection

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.helpers.examples import EXAMPLES

from runnel.groups import GroupConfig, GroupShard, Step
from runnel.groups.share_values import DescribedShareGroup, ShareAlive, ShareHeartbeat
from runnel.model.errors import FencedMemberEpoch, UnknownMember
from runnel.model.ids import Life, Millis, PartitionKey, TopicId

NAMES = ("t", "u", "v")
some_topics = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(tuple)
SESSION_MS = 45_000


class Topics:
    def __init__(self) -> None:
        self.version = 0
        self.counts = dict.fromkeys(NAMES[:2], 2)

    def names(self) -> Collection[str]:
        return list(self.counts)

    def id_of(self, name: str) -> TopicId | None:
        return TopicId(uuid.UUID(int=1 + NAMES.index(name))) if name in self.counts else None

    def name_of(self, topic_id: TopicId) -> str | None:
        name = NAMES[topic_id.int - 1]
        return name if name in self.counts else None

    def is_over(self, life: Life) -> bool:
        return False

    def partition_count(self, topic_id: TopicId) -> int:
        return self.counts.get(NAMES[topic_id.int - 1], 0)


class NoChance:
    def below(self, bound: int) -> int:
        raise AssertionError("share groups draw nothing")

    def token(self, size: int) -> bytes:
        raise AssertionError("members name themselves")


class Member:
    def __init__(self, name: str, topics: tuple[str, ...]) -> None:
        self.name = name
        self.topics = topics
        self.epoch = 0
        self.assigned: frozenset[PartitionKey] = frozenset()
        self.heard_ms = 0


class World(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.topics = Topics()
        self.now = 0
        self.log: list[tuple[bytes, bytes | None]] = []
        self.members: dict[str, Member] = {}
        self.named = 0
        self.shard = self.load()

    def load(self) -> GroupShard:
        shard = GroupShard(GroupConfig(), NoChance())
        for key, value in self.log:
            shard.replay(key, value)
        assert not shard.wake(self.topics, Millis(self.now), Millis(self.now)).records
        return shard

    def take(self, step: Step) -> object:
        self.log += step.records
        return step.replies[0].result if step.replies else None

    def beat(self, member: Member, epoch: int, topics: tuple[str, ...] | None, lost: bool = False) -> None:
        request = ShareHeartbeat("g", member.name, epoch, topic_names=topics, session_timeout_ms=SESSION_MS)
        result = self.take(self.shard.share_heartbeat(request, 1, self.topics, Millis(self.now), Millis(self.now)))
        if isinstance(result, UnknownMember | FencedMemberEpoch):
            assert self.now - member.heard_ms >= SESSION_MS
            member.epoch, member.assigned = 0, frozenset()
            return
        assert isinstance(result, ShareAlive)
        member.heard_ms = self.now
        if not lost:
            assert result.member_epoch >= member.epoch
            member.epoch = result.member_epoch
            if result.assigned is not None:
                member.assigned = frozenset(result.assigned)

    @precondition(lambda self: len(self.members) < 5)
    @rule(topics=some_topics, lost=st.booleans())
    def join(self, topics: tuple[str, ...], lost: bool) -> None:
        self.named += 1
        member = self.members[f"m{self.named}"] = Member(f"m{self.named}", topics)
        self.beat(member, 0, topics, lost)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), lost=st.booleans())
    def stay(self, data: st.DataObject, lost: bool) -> None:
        member = self.members[data.draw(st.sampled_from(sorted(self.members)))]
        self.beat(member, member.epoch, member.topics if member.epoch == 0 else None, lost)

    @precondition(lambda self: self.members)
    @rule(data=st.data(), topics=some_topics)
    def wish(self, data: st.DataObject, topics: tuple[str, ...]) -> None:
        member = self.members[data.draw(st.sampled_from(sorted(self.members)))]
        member.topics = topics
        self.beat(member, member.epoch, topics)

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        member = self.members.pop(data.draw(st.sampled_from(sorted(self.members))))
        request = ShareHeartbeat("g", member.name, -1)
        self.take(self.shard.share_heartbeat(request, 1, self.topics, Millis(self.now), Millis(self.now)))

    @rule(name=st.sampled_from(NAMES), count=st.integers(0, 4))
    def change_topic(self, name: str, count: int) -> None:
        self.topics.version += 1
        if count:
            self.topics.counts[name] = max(count, self.topics.counts.get(name, 0))
        elif name in self.topics.counts:
            topic_id = self.topics.id_of(name)
            assert topic_id is not None
            del self.topics.counts[name]
            self.take(self.shard.topic_deleted(topic_id, self.topics, Millis(self.now), Millis(self.now)))

    @rule(ms=st.integers(1, 30_000))
    def wait(self, ms: int) -> None:
        self.now += ms
        self.take(self.shard.tick(Millis(self.now), self.topics, Millis(self.now)))

    @rule()
    def crash(self) -> None:
        before = self.described()
        self.shard = self.load()
        assert self.described() == before

    @invariant()
    def everything_is_read_once_all_have_been_heard(self) -> None:
        for _ in range(2):  # the last to speak may change what the first has heard
            for member in self.members.values():
                self.beat(member, member.epoch, member.topics if member.epoch == 0 else None)
        for member in self.members.values():
            if member.epoch == 0:
                self.beat(member, 0, member.topics)
        for member in self.members.values():
            self.beat(member, member.epoch, None)
        wanted = {
            PartitionKey(topic_id, number)
            for member in self.members.values()
            for name in member.topics
            if (topic_id := self.topics.id_of(name)) is not None
            for number in range(self.topics.partition_count(topic_id))
        }
        assert frozenset[PartitionKey]().union(*(each.assigned for each in self.members.values())) == wanted
        for member in self.members.values():
            assert bool(member.assigned) == any(name in self.topics.counts for name in member.topics)
        described = self.described()
        if self.members:
            assert described is not None
            assert {each.member_id for each in described.members} == self.members.keys()
            assert {each.topic_id for each in wanted} <= set(described.topics)

    def described(self) -> DescribedShareGroup | None:
        result = self.take(self.shard.describe_share("g", 1, self.topics, Millis(self.now), Millis(self.now)))
        return result if isinstance(result, DescribedShareGroup) else None


World.TestCase.settings = settings(max_examples=EXAMPLES, stateful_step_count=30)
TestShareGroups = World.TestCase
