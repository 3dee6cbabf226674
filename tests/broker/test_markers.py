"""Partitions hear how transactions ended: together where they can, again until they know, and never for nothing."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any
from uuid import UUID

import pytest

from runnel.broker import markers
from runnel.broker.markers import Markers, MarkerSender, Telling, Written
from runnel.broker.peers import Peers
from runnel.cluster.image import NO_LEADER, Broker, Endpoint, Image, Partition, Topic
from runnel.model.errors import (
    InvalidProducerEpoch,
    NotEnoughReplicas,
    NotLeader,
    RunnelError,
    TransactionCoordinatorFenced,
    UnknownTopic,
)
from runnel.model.ids import BrokerId, Epoch, PartitionKey, ProducerId, TopicId
from runnel.testing.clock import SeededRng
from runnel.transactions.values import Cause, Identity, Verdict

ME = BrokerId(1)
T, U = TopicId(UUID(int=1)), TopicId(UUID(int=2))
T0, T1, U0 = PartitionKey(T, 0), PartitionKey(T, 1), PartitionKey(U, 0)
COORDINATOR = Epoch(7)


def placed(leader: BrokerId) -> Partition:
    return Partition(leader, Epoch(0), Epoch(0), (ME,), (ME,))


def image_of(leader: BrokerId = ME, *, without_u: bool = False) -> Image:
    topics = {T: Topic(T, "t", (placed(leader), placed(leader)))}
    if not without_u:
        topics[U] = Topic(U, "u", (placed(leader),))
    brokers = {ME: Broker(ME, {"kafka": Endpoint("127.0.0.1", 1)})}
    return Image("c", topics=topics, names={topic.name: key for key, topic in topics.items()}, brokers=brokers)


class Leader:
    """What the partitions led here say, and what they were told. `held` requests wait until they are let go."""

    def __init__(self) -> None:
        self.told: list[Markers] = []
        self.refuse: dict[tuple[str, int], list[RunnelError]] = {}
        self.hold: set[tuple[str, int]] = set()
        self.let_go = asyncio.Event()

    async def write(self, some: Markers) -> Written:
        self.told.append(some)
        places = [(ending, place) for ending, partitions in some for place in partitions]
        if self.hold & {place for _, place in places}:
            await self.let_go.wait()
        return {(ending.producer_id, *place): self._answer(place) for ending, place in places}

    def _answer(self, place: tuple[str, int]) -> RunnelError | None:
        refusals = self.refuse.get(place)
        return refusals.pop(0) if refusals else None

    def times(self, place: tuple[str, int]) -> int:
        return sum(place in partitions for some in self.told for _, partitions in some)


class Rig:
    def __init__(self) -> None:
        self.image = image_of()
        self.leader = Leader()
        self.sender = MarkerSender(ME, Peers(ME), self.leader.write, lambda: self.image, SeededRng(1))
        self.done: list[str] = []
        self.unwanted: set[str] = set()

    def tell(self, name: str, *keys: PartitionKey, producer: int = 5) -> None:
        verdict = Verdict(name, Identity(ProducerId(producer), 3), True, 2, Cause.CLIENT, frozenset(keys), 10)
        self.sender.tell(
            Telling(verdict, COORDINATOR, lambda: name not in self.unwanted, lambda: self.done.append(name))
        )

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            await asyncio.sleep(0.001)


def run(scenario: Callable[[Rig], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        rig = Rig()
        try:
            await asyncio.wait_for(scenario(rig), 30)
        finally:
            rig.sender.close()

    asyncio.run(main())


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "PAUSE_MS", 1)


def test_all_partitions_hear_it_and_then_the_coordinator_does() -> None:
    async def scenario(rig: Rig) -> None:
        rig.tell("a", T0, T1, U0)
        await rig.until(lambda: rig.done == ["a"])
        [[(ending, partitions)]] = rig.leader.told
        assert (ending.producer_id, ending.epoch, ending.commit) == (5, 3, True)
        assert (ending.coordinator_epoch, ending.version) == (COORDINATOR, 2)
        assert sorted(partitions) == [("t", 0), ("t", 1), ("u", 0)]

    run(scenario)


def test_what_waits_for_one_broker_goes_there_together() -> None:
    async def scenario(rig: Rig) -> None:
        rig.leader.hold = {("t", 0)}
        rig.tell("a", T0)
        await rig.until(lambda: len(rig.leader.told) == 1)
        for number, name in enumerate("bcd"):
            rig.tell(name, T1, producer=10 + number)
        rig.leader.let_go.set()
        await rig.until(lambda: sorted(rig.done) == ["a", "b", "c", "d"])
        assert [len(some) for some in rig.leader.told] == [1, 3]

    run(scenario)


@pytest.mark.parametrize(
    "refusal", [NotLeader("x"), NotEnoughReplicas("x"), UnknownTopic("x"), TransactionCoordinatorFenced("x")]
)
def test_a_partition_that_refuses_is_asked_again_alone(refusal: RunnelError) -> None:
    async def scenario(rig: Rig) -> None:
        rig.leader.refuse = {("t", 0): [refusal] * 8}
        rig.tell("a", T0, T1)
        await rig.until(lambda: rig.done == ["a"])
        assert rig.leader.times(("t", 0)) == 9
        assert rig.leader.times(("t", 1)) == 1

    run(scenario)


def test_a_partition_that_answers_late_holds_up_no_other_once_it_has_failed() -> None:
    async def scenario(rig: Rig) -> None:
        rig.leader.refuse = {("t", 0): [NotEnoughReplicas("x")]}
        rig.tell("stuck", T0)
        await rig.until(lambda: rig.leader.times(("t", 0)) == 1)
        rig.leader.hold = {("t", 0)}
        await rig.until(lambda: rig.leader.times(("t", 0)) == 2)
        rig.tell("next", T0, producer=6)
        rig.tell("b", T1, producer=7)
        await rig.until(lambda: rig.done == ["b"])
        rig.leader.let_go.set()
        await rig.until(lambda: rig.done == ["b", "stuck", "next"])
        assert not rig.sender._troubled

    run(scenario)


def test_a_partition_whose_topic_is_gone_needs_no_marker() -> None:
    async def scenario(rig: Rig) -> None:
        rig.image = image_of(without_u=True)
        rig.tell("a", T0, U0)
        rig.tell("gone", U0)
        rig.tell("empty")
        assert rig.done == ["gone", "empty"]
        await rig.until(lambda: "a" in rig.done)
        assert rig.leader.times(("u", 0)) == 0

    run(scenario)


def test_a_topic_that_goes_while_it_is_asked_needs_no_marker_any_more() -> None:
    async def scenario(rig: Rig) -> None:
        rig.leader.refuse = {("u", 0): [UnknownTopic("x")] * 1_000_000}
        rig.tell("a", U0)
        await rig.until(lambda: rig.leader.times(("u", 0)) > 2)
        rig.image = image_of(without_u=True)
        rig.sender.follow()
        await rig.until(lambda: rig.done == ["a"])

    run(scenario)


def test_a_partition_that_knows_a_later_epoch_has_nothing_left_to_end() -> None:
    async def scenario(rig: Rig) -> None:
        rig.leader.refuse = {("t", 0): [InvalidProducerEpoch("x")]}
        rig.tell("a", T0)
        await rig.until(lambda: rig.done == ["a"])
        assert rig.leader.times(("t", 0)) == 1

    run(scenario)


def test_a_partition_without_a_leader_is_told_as_soon_as_the_image_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "PAUSE_MS", 10**7)
    monkeypatch.setattr(markers, "PAUSE_MS_MAX", 10**7)

    async def scenario(rig: Rig) -> None:
        rig.image = image_of(NO_LEADER)
        rig.tell("a", T0)
        rig.sender.follow()
        assert rig.leader.told == []
        rig.image = image_of()
        rig.sender.follow()
        await rig.until(lambda: rig.done == ["a"])

    run(scenario)


def test_whoever_does_not_want_to_know_any_more_is_left_alone() -> None:
    async def scenario(rig: Rig) -> None:
        rig.leader.refuse = {("t", 0): [NotLeader("x")] * 1_000_000}
        rig.tell("a", T0)
        await rig.until(lambda: rig.leader.times(("t", 0)) > 1)
        rig.unwanted.add("a")
        await rig.until(lambda: not rig.sender._pauses and not rig.sender._senders)
        assert rig.done == []

    run(scenario)


def test_pauses_grow_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markers, "PAUSE_MS", 20)

    async def scenario(rig: Rig) -> None:
        asked: list[float] = []

        def arm(delay_s: float, some: Sequence[object]) -> None:
            asked.append(delay_s)

        monkeypatch.setattr(rig.sender, "_arm", arm)
        rig.tell("a", T0)
        [telling] = [marker.telling for marker in rig.sender._lanes[markers.Lane(ME, False)]]
        for tries in range(1, 15):
            rig.sender._pause([markers.Marker(telling, T0, tries)])
        assert all(0.02 <= pause < 2 * markers.PAUSE_MS_MAX / 1000 for pause in asked)
        assert asked[-1] >= markers.PAUSE_MS_MAX / 1000 > asked[0]

    run(scenario)
