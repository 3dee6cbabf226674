"""Random lives of a group: members of all protocols come, go, die, lag behind, lose answers; the broker crashes.

After every step:
- no partition is held by two members, and what a live client reads is what the group says it holds;
- the committed offsets are those that were acknowledged, and no zombie commits;
- offsets in transactions show when their transaction is committed, are unstable until then, and never show otherwise;
- a replay of the log gives the same shard;
- whatever can time out has a deadline;
- every ticket is answered once.
In the end, when the living go on, all partitions have exactly one reader.
"""

import random
import uuid
from collections.abc import Callable, Collection
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from tests.helpers.examples import EXAMPLES

from runnel.groups import GroupConfig, GroupShard, Step
from runnel.groups.classic import ClassicGroup
from runnel.groups.consumer import ConsumerGroup
from runnel.groups.subscription import (
    Subscription,
    TopicPartitions,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from runnel.groups.timers import Alarm, Timer
from runnel.groups.values import (
    CommitInTransaction,
    CommitOffsets,
    ConsumerAlive,
    ConsumerHeartbeat,
    Done,
    EndTransaction,
    FetchOffsets,
    GroupState,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Leaver,
    OfferedProtocol,
    OffsetsCommitted,
    OffsetsFetched,
    OffsetToCommit,
    Sync,
    Synced,
)
from runnel.model.errors import FencedInstance, MemberIdRequired, RebalanceInProgress, RunnelError, UnknownMember
from runnel.model.ids import Life, Millis, Offset, PartitionKey, TopicId

CONFIG = GroupConfig(initial_rebalance_delay_ms=50)
SESSION_MS = 10_000
REBALANCE_MS = 20_000
NAMES = ("t", "u")
IDS = {name: TopicId(uuid.UUID(int=number)) for number, name in enumerate(NAMES, 1)}


class Topics:
    def __init__(self) -> None:
        self.version = 0
        self.counts = {"t": 3, "u": 1}

    def names(self) -> Collection[str]:
        return NAMES

    def id_of(self, name: str) -> TopicId | None:
        return IDS.get(name)

    def name_of(self, topic_id: TopicId) -> str | None:
        return next((name for name, each in IDS.items() if each == topic_id), None)

    def is_over(self, life: Life) -> bool:
        return False

    def partition_count(self, topic_id: TopicId) -> int:
        return self.counts[self.name_of(topic_id) or ""]

    def all(self) -> set[PartitionKey]:
        return {PartitionKey(IDS[name], number) for name in NAMES for number in range(self.counts[name])}


class Counting:
    def __init__(self) -> None:
        self.count = 0

    def below(self, bound: int) -> int:
        return 0

    def token(self, size: int) -> bytes:
        self.count += 1
        return self.count.to_bytes(size, "big")


def keys(topics: TopicPartitions) -> set[PartitionKey]:
    return {PartitionKey(IDS[name], number) for name, numbers in topics for number in numbers}


def by_name(partitions: Collection[PartitionKey]) -> TopicPartitions:
    return tuple(
        (name, tuple(sorted(each.number for each in partitions if each.topic_id == IDS[name]))) for name in NAMES
    )


class Client:
    """What all clients have."""

    def __init__(self, world: "World", name: str, instance: str | None) -> None:
        self.world = world
        self.name = name
        self.instance = instance
        self.member_id = ""
        self.generation = -1
        self.owned: set[PartitionKey] = set()
        self.ticket: int | None = None
        self.stopped = False

    def step(self, prompt: bool) -> None:
        raise NotImplementedError

    def hear(self, result: object) -> None:
        raise NotImplementedError

    def disconnected(self) -> None:
        self.ticket = None

    def leave(self) -> None:
        raise NotImplementedError


class Classic(Client):
    """Like a consumer of the classic protocol; cooperative ones go on reading while they join."""

    def __init__(self, world: "World", name: str, instance: str | None, cooperative: bool) -> None:
        super().__init__(world, name, instance)
        self.cooperative = cooperative
        self.phase = "join"
        self.joined: Joined | None = None
        self.version = 0  # the topics it assigned last

    def step(self, prompt: bool) -> None:
        if self.ticket is not None and not prompt:
            return  # it waits; a prompt one has lost its patience and asks again
        leads = self.joined is not None and self.joined.leader == self.member_id
        if self.phase == "stable" and leads and self.version != self.world.topics.version:
            self.phase = "join"  # a leader watches the topics
        match self.phase:
            case "join":
                self.join()
            case "sync":
                assert self.joined is not None
                assigns = leads and not self.joined.skip_assignment
                assignments = self.assign(self.joined) if assigns else ()
                request = Sync("g", self.generation, self.member_id, self.instance, assignments=assignments)
                self.world.ask(self, "sync", request)
            case "stable":
                request_ = Heartbeat("g", self.generation, self.member_id, self.instance)
                self.world.ask(self, "heartbeat", request_)

    def join(self) -> None:
        if not self.cooperative:
            self.owned = set()
        metadata = write_subscription(Subscription(NAMES, by_name(self.owned), self.generation))
        protocols = (OfferedProtocol("sticky", metadata), OfferedProtocol("range", metadata))
        self.world.ask(self, "join", Join(
            "g", self.member_id, self.instance, self.name, "host", SESSION_MS, REBALANCE_MS, "consumer", protocols,
            requires_known_id=True, can_skip_assignment=True,
        ))  # fmt: skip

    def assign(self, joined: Joined) -> tuple[tuple[str, bytes], ...]:
        """Deal out, but never what another still has; double claims count for nobody (KAFKA-12984)."""
        claims = {each.member_id: keys(read_subscription(each.metadata).owned) for each in joined.members}
        self.version = self.world.topics.version
        members = sorted(claims)
        parts: dict[str, set[PartitionKey]] = {each: set() for each in members}
        for place, partition in enumerate(sorted(self.world.topics.all())):
            owners = [each for each in members if partition in claims[each]]
            receiver = members[place % len(members)]
            if not owners or owners == [receiver]:
                parts[receiver].add(partition)
        return tuple((each, write_assignment(by_name(part))) for each, part in parts.items())

    def hear(self, result: object) -> None:
        self.ticket = None
        match result:
            case MemberIdRequired(member_id=member_id):
                self.member_id = member_id
            case Joined():
                self.member_id, self.generation, self.joined = result.member_id, result.generation, result
                self.phase = "sync"
                if result.skip_assignment:
                    self.version = -1  # it leads again, and can't know which topics it assigned before (KIP-814)
            case Synced():
                assigned = keys(read_assignment(result.assignment))
                gave_up = self.owned - assigned
                self.owned = assigned
                self.phase = "join" if self.cooperative and gave_up else "stable"
            case Done():
                pass
            case RebalanceInProgress():
                self.phase = "join"
            case FencedInstance():
                self.stopped, self.owned = True, set()
            case RunnelError():
                self.phase, self.owned, self.generation = "join", set(), -1
                if isinstance(result, UnknownMember):
                    self.member_id = ""
            case _:
                raise AssertionError(result)

    def disconnected(self) -> None:
        super().disconnected()
        if self.phase == "sync":
            self.phase = "join"

    def leave(self) -> None:
        self.world.tell("leave", Leave("g", (Leaver(self.member_id, self.instance),)))


class Modern(Client):
    """Like a consumer of KIP-848."""

    def __init__(self, world: "World", name: str, instance: str | None) -> None:
        super().__init__(world, name, instance)
        self.member_id = name
        self.generation = 0
        self.goal: set[PartitionKey] = set()
        self.says_all = True

    def step(self, prompt: bool) -> None:
        if prompt:
            self.owned = set(self.goal)
        joins = self.generation == 0
        owned = tuple(sorted(self.owned)) if prompt or self.says_all else None
        self.world.ask(self, "consumer_heartbeat", ConsumerHeartbeat(
            "g", self.member_id, self.generation, self.name, "host", self.instance,
            rebalance_timeout_ms=REBALANCE_MS if joins or self.says_all else None,
            topic_names=NAMES if joins or self.says_all else None, owned=() if joins else owned,
        ))  # fmt: skip

    def hear(self, result: object) -> None:
        self.ticket = None
        match result:
            case ConsumerAlive():
                self.generation, self.says_all = result.member_epoch, False
                if result.assigned is not None:
                    self.goal = set(result.assigned)
            case FencedInstance():
                self.stopped, self.owned = True, set()
            case RunnelError():
                self.generation, self.owned, self.goal = 0, set(), set()
            case _:
                raise AssertionError(result)

    def disconnected(self) -> None:
        super().disconnected()
        self.says_all = True

    def leave(self) -> None:
        epoch = -1 if self.instance is None else -2
        self.world.tell("consumer_heartbeat", ConsumerHeartbeat("g", self.member_id, epoch, instance_id=self.instance))


class Producer:
    """A transactional producer: what it holds, each with its place among all that was ever held."""

    def __init__(self, producer_id: int, bumps: bool) -> None:
        self.producer_id = producer_id
        self.bumps = bumps  # its epoch goes up at each end (KIP-890)
        self.epoch = 0
        self.holds: dict[PartitionKey, tuple[int, int]] = {}  # place and offset
        self.last_end: EndTransaction | None = None

    def end(self, commit: bool) -> EndTransaction:
        self.epoch += self.bumps
        self.last_end = EndTransaction(
            producer_id=self.producer_id, producer_epoch=self.epoch, commit=commit, coordinator_epoch=0,
            bumped=self.bumps,
        )  # fmt: skip
        return self.last_end

    def forget(self, key: PartitionKey, before: int) -> None:
        if key in self.holds and self.holds[key][0] < before:
            del self.holds[key]


class World(RuleBasedStateMachine):
    modern = True  # both kinds of members

    def __init__(self) -> None:
        super().__init__()
        self.cooperative = True
        self.topics = Topics()
        self.rng = Counting()
        self.now = 0
        self.log: list[tuple[bytes, bytes | None]] = []
        self.shard = self.load()
        self.clients: list[Client] = []
        self.dead: list[Client] = []
        self.tickets: dict[int, Client | None] = {}
        self.asked = 0
        self.lossy = False
        self.committed: dict[PartitionKey, int] = {}
        self.producers = [Producer(0, bumps=True), Producer(1, bumps=True), Producer(2, bumps=False)]
        self.held = 0

    @initialize(cooperative=st.booleans())
    def begin(self, cooperative: bool) -> None:
        """Classic members of one group are of one kind, as their assignors demand."""
        self.cooperative = cooperative

    # --- the broker around the shard
    def load(self) -> GroupShard:
        shard = GroupShard(CONFIG, self.rng)
        for key, value in self.log:
            shard.replay(key, value)
        step = shard.wake(self.topics, Millis(self.now), Millis(self.now))
        assert not step.records
        return shard

    def ask(self, client: Client | None, verb: str, request: object) -> None:
        self.asked += 1
        if client is not None:
            client.ticket = self.asked
        self.tickets[self.asked] = client
        now = Millis(self.now)
        self.take(getattr(self.shard, verb)(request, self.asked, self.topics, now, now))

    def tell(self, verb: str, request: object) -> None:
        self.ask(None, verb, request)

    def take(self, step: Step) -> None:
        self.log += step.records
        for reply in step.replies:
            assert isinstance(reply.ticket, int)
            client = self.tickets.pop(reply.ticket)  # KeyError: answered twice
            if client is None or client.stopped or client.ticket != reply.ticket:
                continue
            if self.lossy:
                client.disconnected()
            else:
                client.hear(reply.result)

    # --- what happens
    @rule(modern=st.booleans(), static=st.booleans())
    def come(self, modern: bool, static: bool) -> None:
        if len(self.clients) >= 6:
            return
        name = f"c{len(self.clients) + len(self.dead)}"
        free = {"one", "two"} - {client.instance for client in self.clients}
        instance = min(free) if static and free else None
        if modern and self.modern:
            self.clients.append(Modern(self, name, instance))
        else:
            self.clients.append(Classic(self, name, instance, self.cooperative))

    @rule(number=st.integers(0, 5), prompt=st.booleans(), lossy=st.sampled_from([False, False, False, True]))
    def act(self, number: int, prompt: bool, lossy: bool) -> None:
        if self.clients:
            self.lossy = lossy
            self.clients[number % len(self.clients)].step(prompt)
            self.lossy = False

    @rule(rounds=st.integers(1, 4))
    def go_on(self, rounds: int) -> None:
        for _ in range(rounds):
            for client in self.clients:
                client.step(prompt=client.ticket is None)
            self.pass_time(500)

    @rule(number=st.integers(0, 5))
    def die(self, number: int) -> None:
        if self.clients:
            client = self.clients.pop(number % len(self.clients))
            client.stopped = True
            self.dead.append(client)

    @rule(number=st.integers(0, 5))
    def leave(self, number: int) -> None:
        if self.clients:
            client = self.clients.pop(number % len(self.clients))
            client.stopped, client.owned = True, set()
            self.dead.append(client)
            client.leave()

    @rule(number=st.integers(0, 10), partition=st.integers(0, 3))
    def commit(self, number: int, partition: int) -> None:
        clients = self.clients + self.dead
        if not clients:
            return
        client, key = clients[number % len(clients)], sorted(self.topics.all())[partition]
        offset = self.committed.get(key, 0) + 1
        request = CommitOffsets(
            "g", client.member_id, client.generation, (OffsetToCommit(key, Offset(offset)),), client.instance
        )
        speaks = self.may_commit(client, key)
        (reply,) = self.put("commit_offsets", request).replies
        accepted = isinstance(reply.result, OffsetsCommitted) and reply.result.errors == (None,)
        assert speaks or not accepted, "a zombie committed"
        if accepted:
            self.settle(key, offset, place=self.held + 1)

    def settle(self, key: PartitionKey, offset: int, place: int) -> None:
        """An offset counts from now on; what was held before it never will."""
        self.committed[key] = offset
        for producer in self.producers:
            producer.forget(key, place)

    # --- transactions
    @rule(
        number=st.integers(0, 10), partition=st.integers(0, 3), producer=st.integers(0, 2), outside=st.booleans()
    )  # fmt: skip
    def hold(self, number: int, partition: int, producer: int, outside: bool) -> None:
        clients = self.clients + self.dead
        if not clients:
            return
        client, key = clients[number % len(clients)], sorted(self.topics.all())[partition]
        holder, offset = self.producers[producer], 1_000 + self.held
        member_id, generation, instance = ("", -1, None) if outside else (
            client.member_id, client.generation, client.instance
        )  # fmt: skip
        request = CommitInTransaction(
            "g", member_id, generation, (OffsetToCommit(key, Offset(offset)),), instance,
            producer_id=holder.producer_id, producer_epoch=holder.epoch, coordinator_epoch=0,
        )  # fmt: skip
        outside = request.from_outside
        speaks = outside or self.may_commit(client, key, held=True)
        (reply,) = self.put("commit_in_transaction", request).replies
        accepted = isinstance(reply.result, OffsetsCommitted) and reply.result.errors == (None,)
        assert speaks or not accepted, "a zombie's offsets were held"
        assert accepted or not outside, "a producer that names no member was refused"
        if accepted:
            self.held += 1
            holder.holds[key] = (self.held, offset)

    @rule(producer=st.integers(0, 2), commit=st.booleans())
    def end(self, producer: int, commit: bool) -> None:
        holder = self.producers[producer]
        (reply,) = self.put("end_transaction", holder.end(commit)).replies
        assert reply.result == Done()
        held, holder.holds = holder.holds, {}
        if commit:
            for key, (place, offset) in held.items():
                self.settle(key, offset, place)

    @rule(producer=st.integers(0, 1))
    def end_again(self, producer: int) -> None:
        """The last end comes once more, late: into the next transaction, perhaps."""
        if (last := self.producers[producer].last_end) is not None:
            step = self.put("end_transaction", last)
            assert not step.records
            assert step.replies[0].result == Done()

    def put(self, verb: str, request: object) -> Step:
        now = Millis(self.now)
        step: Step = getattr(self.shard, verb)(request, -1, self.topics, now, now)
        self.log += step.records
        return step

    def may_commit(self, client: Client, key: PartitionKey | None = None, held: bool = False) -> bool:
        """Whether the group knows this member in its generation or epoch, or in an earlier one with this partition.

        What is held for a transaction may be so while the group rebalances.
        """
        group = self.shard._groups.get("g")
        if isinstance(group, ConsumerGroup):
            member = group.members.get(client.member_id)
            known = member is not None and member.current.epoch == client.generation
            if member is not None and key in member.current.assigned and not member.is_classic:
                known = known or member.current.since(key) <= client.generation <= member.current.epoch
            return known or (not group.members and client.generation < 0)
        if isinstance(group, ClassicGroup):
            completing = group.state is GroupState.COMPLETING_REBALANCE and not held
            known = client.member_id in group.roster.members and group.generation == client.generation
            return (known and not completing) or (group.empty and client.generation < 0)
        return client.generation < 0

    @rule(span=st.sampled_from([100, 3_000, 9_000, 30_000]))
    def pass_time(self, span: int) -> None:
        end = self.now + span
        while (deadline := self.shard.next_deadline_ms()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            self.take(self.shard.tick(Millis(self.now), self.topics, Millis(self.now)))
        self.now = end

    @rule()
    def grow(self) -> None:
        if self.topics.counts["u"] < 4:
            self.topics.version += 1
            self.topics.counts["u"] += 1

    @rule()
    def crash(self) -> None:
        self.tickets.clear()
        for client in self.clients:
            client.disconnected()
        self.shard = self.load()

    # --- what always holds
    @invariant()
    def nobody_holds_what_another_holds(self) -> None:
        group = self.shard._groups.get("g")
        if not isinstance(group, ConsumerGroup):
            return
        held = [each for member in group.members.values() for each in member.current.held]
        assert len(held) == len(set(held))
        assert {each: member.member_id for member in group.members.values() for each in member.current.held} == (
            group._holders
        )
        for client in self.clients:
            member = group.members.get(client.member_id)
            if member is not None and member.current.epoch in (client.generation, member.current.previous_epoch):
                assert client.owned <= member.current.held or client.generation != member.current.epoch

    @invariant()
    def no_two_read_the_same(self) -> None:
        """Of those that speak for their generation or epoch."""
        readers = [client for client in self.clients if self.may_commit(client)]
        owned = [each for client in readers for each in client.owned]
        assert len(owned) == len(set(owned))

    @invariant()
    def what_was_acknowledged_is_there(self) -> None:
        (reply,) = self.put("fetch_offsets", FetchOffsets("g")).replies
        assert isinstance(reply.result, OffsetsFetched)
        assert {each.partition: each.offset for each in reply.result.offsets} == self.committed

    @invariant()
    def what_may_still_change_is_unstable(self) -> None:
        (reply,) = self.put("fetch_offsets", FetchOffsets("g", require_stable=True)).replies
        assert isinstance(reply.result, OffsetsFetched)
        unstable = {each.partition for each in reply.result.offsets if each.error is not None}
        assert unstable == {key for producer in self.producers for key in producer.holds}

    @invariant()
    def a_replay_gives_the_same(self) -> None:
        rng, self.rng = self.rng, Counting()
        again = self.load()
        self.rng = rng
        assert again._store.groups == self.shard._store.groups
        assert again._store._holders == self.shard._store._holders
        assert all(self.shard._store._holders.values()), "a producer that holds nothing is remembered"
        group, other = self.shard._groups.get("g"), again._groups.get("g")
        if isinstance(group, ConsumerGroup):
            assert isinstance(other, ConsumerGroup)
            assert (other.epoch, other.assignment_epoch, other.state) == (
                group.epoch, group.assignment_epoch, group.state
            )  # fmt: skip
            assert other.members.keys() == group.members.keys()
            assert other._holders == group._holders
            for member_id, member in group.members.items():
                same = other.members[member_id]
                assert (same.record, same.target, same.current) == (member.record, member.target, member.current)
        elif isinstance(group, ClassicGroup) and group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            assert isinstance(other, ClassicGroup)
            assert (other.state, other.generation, other.roster.leader) == (
                group.state, group.generation, group.roster.leader
            )  # fmt: skip
            assert other.roster.members.keys() == group.roster.members.keys()

    @invariant()
    def whatever_can_time_out_has_a_deadline(self) -> None:
        timers = self.shard._timers
        assert self.shard.next_deadline_ms() is not None
        group = self.shard._groups.get("g")
        if isinstance(group, ConsumerGroup):
            for member_id in group.members:
                assert timers.deadline(Timer(Alarm.SESSION, "g", member_id)) is not None
        elif isinstance(group, ClassicGroup):
            for member in group.roster.members.values():
                waits = member.joining is not None or member.syncing is not None
                session = timers.deadline(Timer(Alarm.SESSION, "g", member.member_id))
                rebalance = [timers.deadline(Timer(alarm, "g")) for alarm in (Alarm.JOIN, Alarm.SYNC)]
                assert session is not None or (waits and any(each is not None for each in rebalance))

    def teardown(self) -> None:
        """The dead are missed, the living converge: every partition has exactly one reader."""
        for _ in range(130):
            for client in self.clients:
                client.step(prompt=client.ticket is None)
            self.pass_time(1_000)
            self.no_two_read_the_same()
        living = [client for client in self.clients if not client.stopped]
        if living:
            assert sorted(each for client in living for each in client.owned) == sorted(self.topics.all())
            group = self.shard._groups["g"]
            assert group.state is GroupState.STABLE
            # More members than partitions: the rest stand by.
            assert sum(1 for client in living if client.owned) <= len(self.topics.all())
        self.a_replay_gives_the_same()
        self.any_record_may_be_set_aside()

    def any_record_may_be_set_aside(self) -> None:
        """The others are served; and what is taken out because of it, is taken out for good."""
        kept: dict[bytes, bytes] = {}
        for key, value in self.log:
            kept.pop(key, None)
            if value is not None:
                kept[key] = value
        for lost in kept:
            others: dict[bytes, bytes | None] = {key: value for key, value in kept.items() if key != lost}
            for _ in range(2):
                shard = GroupShard(CONFIG, Counting())
                for key, value in others.items():
                    shard.replay(key, value)
                step = shard.wake(self.topics, Millis(self.now), Millis(self.now))
                others.update(step.records)
            assert not step.records


class ClassicWorld(World):
    modern = False


TestMixed = World.TestCase
TestMixed.settings = settings(max_examples=EXAMPLES, stateful_step_count=30)
TestClassic = ClassicWorld.TestCase
TestClassic.settings = settings(max_examples=EXAMPLES, stateful_step_count=30)

WEIGHTS = {
    "come": 6, "act": 40, "go_on": 14, "die": 2, "leave": 2, "commit": 12, "pass_time": 6, "grow": 1, "crash": 3,
    "hold": 12, "end": 5, "end_again": 1,
}  # fmt: skip


@pytest.mark.parametrize("kind", [World, ClassicWorld])
@pytest.mark.parametrize("seed", range(10))
def test_a_long_life(seed: int, kind: type[World]) -> None:
    """Longer than Hypothesis likes, and mostly healthy, as lives are."""
    chance = random.Random(seed)
    world = kind()
    world.begin(cooperative=chance.random() < 0.5)
    draws: dict[str, Callable[[], dict[str, Any]]] = {
        "come": lambda: {"modern": chance.random() < 0.5, "static": chance.random() < 0.3},
        "act": lambda: {"number": draw(6), "prompt": chance.random() < 0.6, "lossy": chance.random() < 0.15},
        "go_on": lambda: {"rounds": draw(4) + 1},
        "die": lambda: {"number": draw(6)},
        "leave": lambda: {"number": draw(6)},
        "commit": lambda: {"number": draw(11), "partition": draw(4)},
        "hold": lambda: {
            "number": draw(11),
            "partition": draw(4),
            "producer": draw(3),
            "outside": chance.random() < 0.3,
        },
        "end": lambda: {"producer": draw(3), "commit": chance.random() < 0.6},
        "end_again": lambda: {"producer": draw(2)},
        "pass_time": lambda: {"span": chance.choice([100, 3_000, 9_000, 30_000])},
    }
    draw = chance.randrange
    for event in chance.choices(list(WEIGHTS), list(WEIGHTS.values()), k=100):
        getattr(world, event)(**draws.get(event, dict)())
        world.nobody_holds_what_another_holds()
        world.no_two_read_the_same()
        world.what_was_acknowledged_is_there()
        world.what_may_still_change_is_unstable()
        world.a_replay_gives_the_same()
        world.whatever_can_time_out_has_a_deadline()
    world.teardown()
