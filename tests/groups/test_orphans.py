"""Members that a broker ran leave with its life: at once, however long their sessions would last."""

from typing import Any
from uuid import UUID

import pytest

from runnel.groups import GroupConfig, GroupShard, Step
from runnel.groups.subscription import Subscription, write_assignment, write_subscription
from runnel.groups.values import ConsumerHeartbeat, GroupState, Heartbeat, Join, OfferedProtocol, Sync
from runnel.model.errors import MemberIdRequired, RebalanceInProgress, UnknownMember
from runnel.model.ids import BrokerId, Epoch, Life, Millis, TopicId
from runnel.model.members import client_id_of, host_of
from runnel.model.step import Record

T = TopicId(UUID(int=1))
SESSION_MS = 300_000
NOTHING = write_assignment(())
LIFE, NEXT = Life(BrokerId(2), Epoch(7)), Life(BrokerId(2), Epoch(8))
OTHER = Life(BrokerId(1), Epoch(7))


class World:
    """A shard, its log, and a cluster in which broker lives end."""

    version = 1

    def __init__(self) -> None:
        self.over: set[Life] = set()
        self.log: list[Record] = []
        self.drawn = 0
        self.shard = GroupShard(GroupConfig(initial_rebalance_delay_ms=0), self)
        self.wake()

    def names(self) -> list[str]:
        return ["t"]

    def id_of(self, name: str) -> TopicId | None:
        return T if name == "t" else None

    def name_of(self, topic_id: TopicId) -> str | None:
        return "t"

    def is_over(self, life: Life) -> bool:
        return life in self.over

    def partition_count(self, topic_id: TopicId) -> int:
        return 2

    def below(self, bound: int) -> int:
        return 0

    def token(self, size: int) -> bytes:
        self.drawn += 1
        return self.drawn.to_bytes(size, "big")

    # --- the shard
    def wake(self) -> None:
        self.keep(self.shard.wake(self, Millis(0), Millis(0)))

    def keep(self, step: Step) -> dict[object, Any]:
        self.log += step.records
        return {reply.ticket: reply.result for reply in step.replies}

    def ask(self, verb: str, request: Any, ticket: str = "mine") -> dict[object, Any]:
        return self.keep(getattr(self.shard, verb)(request, ticket, self, Millis(0), Millis(0)))

    def end(self, life: Life) -> dict[object, Any]:
        self.over.add(life)
        return self.keep(self.shard.brokers_changed(None, self, Millis(0), Millis(0)))

    def failover(self) -> None:
        """Another broker coordinates: it knows what the log says."""
        self.shard = GroupShard(GroupConfig(), self)
        for key, value in self.log:
            self.shard.replay(key, value)
        self.wake()

    # --- members
    def join(self, client_id: str, member_id: str = "", ticket: str = "mine") -> dict[object, Any]:
        metadata = write_subscription(Subscription(("t",)))
        offers = (OfferedProtocol("range", metadata),)
        request = Join("g", member_id, None, client_id, "/h", SESSION_MS, 60_000, "consumer", offers, True)
        return self.ask("join", request, ticket)

    def known(self, client_id: str) -> str:
        """The id that a member gets before it joins."""
        required = self.join(client_id)["mine"]
        assert isinstance(required, MemberIdRequired)
        return required.member_id

    def describe(self) -> tuple[GroupState, list[str]]:
        described = self.ask("describe", "g")["mine"]
        return described.state, [each.client_id for each in described.members]


def two_members() -> tuple[World, str, str]:
    """A stable group of a member that broker 2 runs and a client of its own; the ids of both."""
    world = World()
    hosted, own = world.known(client_id_of(LIFE)), world.known("own")
    world.join(client_id_of(LIFE), hosted, "hosted")
    answers = world.join("own", own, "own")
    if "own" not in answers:
        answers |= world.join(client_id_of(LIFE), hosted, "hosted")
    joined = answers["own"]
    for member_id in (own, hosted):
        world.ask(
            "sync", Sync("g", joined.generation, member_id, assignments=((own, NOTHING), (hosted, NOTHING))), member_id
        )
    assert world.describe()[0] is GroupState.STABLE
    return world, hosted, own


def beat(world: World, member_id: str) -> Any:
    return world.ask("heartbeat", Heartbeat("g", 2, member_id))["mine"]


def test_a_client_id_names_the_life_of_the_broker_that_runs_it() -> None:
    assert host_of(client_id_of(LIFE)) == LIFE
    assert host_of(f"{client_id_of(LIFE)}-{'0a' * 16}") == LIFE
    for name in (
        "",
        "own",
        "runnel-door",
        "runnel-door-1",
        "runnel-door-1-2-3",
        "runnel-door--1-2",
        "x-runnel-door-1-2",
    ):
        assert host_of(name) is None


def test_a_member_leaves_with_the_life_of_its_broker() -> None:
    world, hosted, own = two_members()
    world.end(OTHER)
    assert world.describe()[0] is GroupState.STABLE
    world.end(LIFE)
    state, members = world.describe()
    assert (state, members) == (GroupState.PREPARING_REBALANCE, ["own"])
    assert isinstance(beat(world, own), RebalanceInProgress)
    assert isinstance(beat(world, hosted), UnknownMember)
    joined = world.join("own", own)["mine"]
    assert [each.member_id for each in joined.members] == [own], "nobody waits for the one that is gone"


def test_a_member_leaves_if_its_broker_ended_with_the_coordinator() -> None:
    world, _, _ = two_members()
    world.over.add(LIFE)
    world.failover()
    assert world.describe() == (GroupState.PREPARING_REBALANCE, ["own"])


def test_a_member_of_the_next_life_stays() -> None:
    world, _, own = two_members()
    world.end(LIFE)
    again = world.known(client_id_of(NEXT))
    world.join("own", own, "own")
    world.join(client_id_of(NEXT), again, "again")
    world.end(OTHER)
    assert client_id_of(NEXT) in world.describe()[1]


def test_an_id_that_was_given_out_and_never_used_keeps_nobody_waiting() -> None:
    world, _, own = two_members()
    world.known(client_id_of(LIFE))  # the broker dies before it joins with it
    answers = world.end(LIFE) | world.join("own", own, "own")
    assert answers["own"].generation == 3


def test_the_last_member_leaves_an_empty_group() -> None:
    world = World()
    hosted = world.known(client_id_of(LIFE))
    world.join(client_id_of(LIFE), hosted)
    world.end(LIFE)
    assert world.describe() == (GroupState.EMPTY, [])
    assert world.shard.next_deadline_ms() == GroupConfig().offsets_check_interval_ms


@pytest.mark.parametrize("failover", [False, True])
def test_a_member_leaves_a_group_that_was_upgraded(failover: bool) -> None:
    world, hosted, _ = two_members()
    joins = ConsumerHeartbeat("g", "new", 0, "new", "/h", rebalance_timeout_ms=60_000, topic_names=("t",), owned=())
    world.ask("consumer_heartbeat", joins)
    if failover:
        world.over.add(LIFE)
        world.failover()
    else:
        world.end(LIFE)
    described = world.ask("describe_consumer", "g")["mine"]
    assert hosted not in [each.member_id for each in described.members]
    assert len(described.members) == 2
