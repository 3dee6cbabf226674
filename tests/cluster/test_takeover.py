"""Several brokers on one store: who is let in, who takes over, and who is refused. In memory, with sessions to end."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from msgspec.structs import replace
from tests.cluster.rows import ids, shown

from runnel.cluster import duties, nodes
from runnel.cluster.config_rules import ConfigChange, TopicResource
from runnel.cluster.image import NO_LEADER, Broker, BrokerState, Change, Endpoint, Image, Partition, Topic
from runnel.cluster.isr_changes import IsrChange
from runnel.cluster.membership import Identity
from runnel.cluster.metadata import Metadata
from runnel.cluster.reassignment import Move
from runnel.cluster.topic_rules import NewTopic
from runnel.model.errors import (
    BrokerIdInUse,
    FencedEpoch,
    IneligibleReplica,
    InvalidRequest,
    NotController,
    StaleBrokerEpoch,
    StalePartitionEpoch,
)
from runnel.model.ids import BrokerId, Epoch, PartitionKey
from runnel.testing.clock import SeededRng
from runnel.testing.store import Ensemble, SimStore

LIMIT_S = 30.0
ONE, TWO, THREE = ids("123")
TWO_NEEDED = {"min.insync.replicas": "2"}


class Member:
    """One life of a broker."""

    def __init__(self, metadata: Metadata, store: SimStore, broker: Broker, identity: Identity) -> None:
        self.metadata = metadata
        self.store = store
        self.broker = broker
        self.identity = identity

    @property
    def image(self) -> Image:
        return self.metadata.image

    def shown(self, topic: str = "t", number: int = 0) -> str:
        return shown(self.partition(topic, number))

    def partition(self, topic: str = "t", number: int = 0) -> Partition:
        return self.image.topic_named(topic).partitions[number]

    async def says(self, isr: str, *, epoch: int | None = None) -> Partition | Exception:
        """As leader of t-0, ask the controller, which is this broker too, for an ISR."""
        at = self.partition()
        members = tuple((broker, self.image.brokers[broker].epoch) for broker in ids(isr))
        key = PartitionKey(self.image.topic_named("t").id, 0)
        change = IsrChange(key, at.leader_epoch, at.epoch if epoch is None else Epoch(epoch), members)
        (told,) = await self.metadata.alter_partitions(self.broker.id, self.broker.epoch, [change])
        return told


class Cluster:
    """Brokers of one ensemble, by number."""

    def __init__(self) -> None:
        self.ensemble = Ensemble()
        self.folders: dict[int, Identity] = {}
        self.members: list[Member] = []

    async def register(self, number: int, *, directory: str | None = None) -> Member:
        """A broker that starts; its folder knows how its last life ended."""
        store = await self.ensemble.open()
        metadata = await Metadata.open(store, rng=SeededRng(len(self.members)))
        broker = Broker(BrokerId(number), {"kafka": Endpoint("h", 9000 + number)})
        identity = self.folders.get(number, Identity("c", broker.id, f"d{number}"))
        if directory is not None:
            identity = replace(identity, directory=directory)
        self.folders[number] = replace(identity, clean_epoch=None)
        member = Member(metadata, store, await metadata.register(broker, identity), identity)
        self.members.append(member)
        return member

    async def join(self, number: int, *, directory: str | None = None) -> Member:
        member = await self.register(number, directory=directory)
        await member.metadata.ready()
        return member

    async def stop(self, member: Member) -> None:
        """In an orderly way."""
        await member.metadata.leave(LIMIT_S)
        self.folders[member.broker.id] = replace(self.folders[member.broker.id], clean_epoch=member.broker.epoch)
        await self.crash(member)

    async def crash(self, member: Member) -> None:
        self.ensemble.expire(member.store.session)
        self.members.remove(member)
        await asyncio.gather(member.metadata._duties.follower, return_exceptions=True)


@asynccontextmanager
async def a_cluster() -> AsyncIterator[Cluster]:
    cluster = Cluster()
    try:
        yield cluster
    finally:
        for member in cluster.members:
            await member.metadata.close()


def play(scene: Callable[[Cluster], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(LIMIT_S), a_cluster() as cluster:
            await scene(cluster)

    asyncio.run(run())


async def until(member: Member, holds: Callable[[Image], bool]) -> Image:
    found: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def look(change: Change) -> None:
        if holds(change.after) and not found.done():
            found.set_result(None)

    end = member.metadata.subscribe(look)
    if not holds(member.image):
        await found
    end()
    return member.image


def row_is(text: str) -> Callable[[Image], bool]:
    return lambda image: "t" in image.names and shown(image.topic_named("t").partitions[0]) == text


async def with_topic(cluster: Cluster, replicas: str = "123", **config: str) -> tuple[Member, Member, Member]:
    one, two, three = await cluster.join(1), await cluster.join(2), await cluster.join(3)
    spec = NewTopic("t", assignment={0: ids(replicas)}, config={**TWO_NEEDED, **config})
    await one.metadata.create_topics([spec])
    for member in (two, three):
        await until(member, lambda image: "t" in image.names)
    return one, two, three


def test_a_broker_has_no_role_until_it_is_ready_and_let_in() -> None:
    async def scene(cluster: Cluster) -> None:
        one = await cluster.join(1)
        two = await cluster.register(2)
        await until(one, lambda image: TWO in image.brokers)
        assert one.image.brokers[TWO].state is BrokerState.STARTING
        await one.metadata.create_topics([NewTopic("u", 4)])
        assert {part.replicas for part in one.image.topic_named("u").partitions} == {(1,)}
        await two.metadata.ready()
        assert two.image.brokers[TWO].state is BrokerState.SERVING
        await one.metadata.create_topics([NewTopic("v", 4)])
        assert {part.leader for part in one.image.topic_named("v").partitions} == {1, 2}

    play(scene)


def test_another_leads_when_a_leader_dies_and_the_next_controller_sees_to_it() -> None:
    async def scene(cluster: Cluster) -> None:
        one, two, three = await with_topic(cluster)
        epoch = two.partition().leader_epoch
        await cluster.crash(one)  # leader and controller in one
        await until(three, row_is("2|23|"))
        assert three.image.controller.broker in (2, 3)
        assert three.partition().leader_epoch == epoch + 1
        await cluster.crash(two)
        await until(three, row_is("3|3|2"))

    play(scene)


def test_who_does_not_serve_yet_leaves_the_controllers_place_to_those_who_do() -> None:
    """It takes no requests while it opens its logs, and that can be long."""

    async def scene(cluster: Cluster) -> None:
        one, two = await cluster.join(1), await cluster.join(2)
        starting = await cluster.register(3)
        async with two.metadata._ledger.turn:  # too busy to be the first
            await cluster.crash(one)
            await until(starting, lambda image: ONE not in image.brokers)
            assert starting.image.controller.broker != THREE
        await until(starting, lambda image: image.controller.broker == TWO)
        await cluster.crash(two)  # now nobody serves
        await until(starting, lambda image: image.controller.broker == THREE)

    play(scene)


def test_what_the_last_controller_left_undone_is_done() -> None:
    """It died after a broker, before it had seen that."""

    async def scene(cluster: Cluster) -> None:
        one, two, three = await with_topic(cluster, "231")
        async with one.metadata._ledger.turn:  # busy, for ever
            await cluster.crash(two)
            await until(three, lambda image: TWO not in image.brokers)
            assert three.shown() == "2|123|"
            cluster.ensemble.expire(one.store.session)
            await until(three, lambda image: image.topic_named("t").partitions[0].isr == (3,))
            assert three.partition().leader == 3
        cluster.members.remove(one)

    play(scene)


def test_a_broker_that_restarts_faster_than_its_session_loses_what_it_led() -> None:
    async def scene(cluster: Cluster) -> None:
        _, two, three = await with_topic(cluster, "213")
        again = await cluster.register(2)
        await until(three, row_is("1|13|"))
        with pytest.raises(BrokerIdInUse):
            await two.metadata.session_lost()
        await again.metadata.ready()
        assert again.shown() == "1|13|"  # it has to catch up first
        cluster.members.remove(two)
        await two.metadata.close()
        assert again.image.brokers[TWO].epoch == 1

    play(scene)


def test_an_orderly_stop_hands_over_first() -> None:
    async def scene(cluster: Cluster) -> None:
        one, two, three = await with_topic(cluster)
        await one.metadata.leave(LIMIT_S)
        assert one.image.brokers[ONE].state is BrokerState.STOPPING
        assert one.shown() == "2|23|"
        await cluster.stop(one)
        await cluster.stop(two)
        await until(three, row_is("3|3|2"))
        again = await cluster.join(2)
        assert again.image.brokers[TWO].clean
        assert again.shown() == "3|3|2"  # it may lead, for it has all that was committed
        await cluster.crash(three)
        await until(again, row_is("2|2|3"))

    play(scene)


def test_a_crash_is_seen_to_while_another_broker_hands_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(duties, "HANDED_OVER_MAX", 1)
    seen: list[tuple[int, BrokerId]] = []  # how much 2 is part of, and who leads what the crashed 3 led

    async def scene(cluster: Cluster) -> None:
        one, two, three = [await cluster.join(number) for number in (1, 2, 3)]
        handed = [NewTopic(f"t{number}", assignment={0: ids("21")}) for number in range(20)]
        await one.metadata.create_topics([*handed, NewTopic("last", assignment={0: ids("31")})])
        await until(three, lambda image: len(image.topics) == 21)

        def look(change: Change) -> None:
            rows = [topic.partitions[0] for topic in change.after.topics.values()]
            seen.append((sum(TWO in row.isr for row in rows), change.after.topic_named("last").partitions[0].leader))
            if len(seen) == 5:
                cluster.ensemble.expire(three.store.session)

        one.metadata.subscribe(look)
        await two.metadata.leave(LIMIT_S)
        cluster.members.remove(three)
        await asyncio.gather(three.metadata._duties.follower, return_exceptions=True)

    play(scene)
    assert {parts for parts, _ in seen} == set(range(21)), "it was not handed over in portions"
    assert any(parts > 5 and leader == ONE for parts, leader in seen), "what was missed had to wait"


def test_who_is_alone_stops_at_once() -> None:
    async def scene(cluster: Cluster) -> None:
        one = await cluster.join(1)
        await one.metadata.create_topics([NewTopic("t")])
        await one.metadata.leave(LIMIT_S)
        assert one.shown() == "1|1|"

    play(scene)


def test_nobody_waits_for_ever_for_a_controller_that_hangs() -> None:
    async def scene(cluster: Cluster) -> None:
        one, two, _ = await with_topic(cluster, "213")
        async with one.metadata._ledger.turn:
            await two.metadata.leave(0.05)
            assert two.shown() == "2|123|"

    play(scene)


@pytest.mark.parametrize(("mode", "expected"), [("commit", "1|1|2"), ("os", "1|1|")])
def test_a_crash_is_known_and_costs_the_place_of_who_did_not_sync(mode: str, expected: str) -> None:
    async def scene(cluster: Cluster) -> None:
        one, two, three = await with_topic(cluster, **{"flush.mode": mode})
        await cluster.crash(three)
        await until(one, row_is("1|12|"))
        await cluster.crash(two)
        await until(one, row_is("1|1|2"))
        again = await cluster.join(2)
        assert not again.image.brokers[TWO].clean
        await until(one, lambda image: image.brokers[TWO].serving)
        assert one.shown() == expected

    play(scene)


def test_a_new_disk_is_known_until_the_controller_has_drawn_the_consequences() -> None:
    """Also if the broker dies again before it is let in: its folder is not new then, but still empty."""

    async def scene(cluster: Cluster) -> None:
        one, two, three = await with_topic(cluster, "2")
        await cluster.crash(two)
        await until(one, row_is("-|2|"))
        for _ in range(2):
            halfway = await cluster.register(2, directory="another")
            assert halfway.broker.new_disk
            await cluster.crash(halfway)
            await until(three, lambda image: TWO not in image.brokers)
        again = await cluster.join(2, directory="another")
        assert again.shown() == "-||"  # what it had is gone: nobody pretends otherwise
        await cluster.crash(again)
        last = await cluster.join(2, directory="another")
        assert not last.image.brokers[TWO].new_disk
        (told,) = await one.metadata.elect_leaders([("t", 0)], unclean=True)
        assert isinstance(told, Partition)
        assert (one.shown(), one.metadata.unclean_elections) == ("2|2|", 1)

    play(scene)


def test_damage_is_told_at_the_start_and_later() -> None:
    async def scene(cluster: Cluster) -> None:
        one, two, _ = await with_topic(cluster, "213")
        key = PartitionKey(one.image.topic_named("t").id, 0)
        await two.metadata.report_damaged([key])
        assert two.shown() == "1|13|"
        assert two.image.brokers[TWO].serving
        await cluster.crash(two)
        back = await cluster.register(2)
        await back.metadata.ready([key])
        assert back.shown() == "1|13|"
        assert back.image.brokers[TWO].damaged == ()

    play(scene)


def test_leaders_change_their_isr_through_the_controller() -> None:
    async def scene(cluster: Cluster) -> None:
        one, two, three = await with_topic(cluster)
        before = one.partition()
        with pytest.raises(NotController):
            await two.says("12")
        assert isinstance(await one.says("12"), Partition)
        assert isinstance(await one.says("123", epoch=before.epoch), StalePartitionEpoch)
        assert isinstance(await one.says("1"), Partition)
        for member in (two, three):
            await until(member, row_is("1|1|2"))  # 3 left when two were enough
        await cluster.crash(three)
        await until(one, lambda image: THREE not in image.brokers)
        again = await cluster.join(3)
        key = PartitionKey(one.image.topic_named("t").id, 0)
        at = one.partition()
        seen = IsrChange(key, at.leader_epoch, at.epoch, ((ONE, Epoch(0)), (THREE, three.broker.epoch)))
        (told,) = await one.metadata.alter_partitions(ONE, one.broker.epoch, [seen])
        assert isinstance(told, IneligibleReplica)
        assert isinstance(await one.says("13"), Partition)
        assert again.broker.epoch == three.broker.epoch + 1
        with pytest.raises(StaleBrokerEpoch):
            await one.metadata.alter_partitions(TWO, Epoch(7), [seen])
        (told,) = await one.metadata.alter_partitions(TWO, two.broker.epoch, [seen])
        assert isinstance(told, FencedEpoch)

    play(scene)


def test_a_controller_that_slept_changes_no_isr() -> None:
    async def scene(cluster: Cluster) -> None:
        one, two, three = await with_topic(cluster)
        one.metadata._duties.follower.cancel()
        cluster.ensemble.expire(one.store.session)
        await until(three, row_is("2|23|"))
        slept = await cluster.ensemble.open()  # its writes still get through, as those of a session that nobody ended
        one.metadata._ledger.store = slept
        with pytest.raises(NotController):
            await one.says("1")
        assert three.shown() == "2|23|"
        assert two.shown() == "2|23|"
        cluster.members.remove(one)
        await slept.close()

    play(scene)


def test_replicas_are_moved_and_the_preferred_leader_leads_again() -> None:
    async def scene(cluster: Cluster) -> None:
        one, two, three = await with_topic(cluster, "12")
        (told,) = await one.metadata.reassign([Move("t", 0, ids("32"))])
        assert isinstance(told, Partition)
        assert one.shown() == "1|12||3|1"
        with pytest.raises(NotController):
            await two.metadata.reassign([Move("t", 0, None)])
        assert isinstance(await one.says("123"), Partition)
        await until(three, row_is("3|23|"))
        await cluster.stop(three)
        await until(one, row_is("2|2|3"))
        back = await cluster.join(3)
        await one.metadata.rebalance_leaders()
        assert one.shown() == "2|2|3"  # it is not in sync yet
        at, key = one.partition(), PartitionKey(one.image.topic_named("t").id, 0)
        caught_up = IsrChange(key, at.leader_epoch, at.epoch, ((TWO, Epoch(0)), (THREE, back.broker.epoch)))
        await one.metadata.alter_partitions(TWO, two.broker.epoch, [caught_up])
        await two.metadata.rebalance_leaders()  # not the controller: nothing happens
        assert one.shown() == "2|23|"
        await one.metadata.rebalance_leaders()
        assert one.shown() == "3|23|"
        assert one.metadata.unclean_elections == 0

    play(scene)


def test_a_topic_may_be_led_by_whoever_is_there() -> None:
    async def scene(cluster: Cluster) -> None:
        one, two, three = await with_topic(cluster, "23")
        await cluster.stop(two)
        await cluster.stop(three)
        await until(one, row_is("-|3|2"))
        back = await cluster.join(3, directory="new")
        await until(one, row_is("-||2"))
        change = [ConfigChange("unclean.leader.election.enable", "true")]
        assert await one.metadata.alter_configs([(TopicResource("t"), change)], incremental=True) == [None]
        await until(back, row_is("3|3|"))
        assert one.metadata.unclean_elections == 1
        assert one.partition().leader != NO_LEADER

    play(scene)


def test_a_folder_is_noted_with_the_admission() -> None:
    async def scene(cluster: Cluster) -> None:
        one = await cluster.register(1)
        assert await one.store.get(nodes.directory_path(ONE)) is None
        await one.metadata.ready()
        node = await one.store.get(nodes.directory_path(ONE))
        assert node is not None
        assert node.value == b'{"directory":"d1"}'

    play(scene)


def test_a_topic_is_made_while_a_broker_is_away_and_is_whole_when_it_is_back() -> None:
    async def scene(cluster: Cluster) -> None:
        one, two, three = await cluster.join(1), await cluster.join(2), await cluster.join(3)
        await cluster.stop(three)
        await until(one, lambda image: THREE not in image.brokers)
        (topic,) = await one.metadata.create_topics([NewTopic("t", 1, 3, config=TWO_NEEDED)])
        assert isinstance(topic, Topic)
        assert set(topic.partitions[0].replicas) == {1, 2, 3}
        assert (set(topic.partitions[0].isr), topic.partitions[0].elr) == ({1, 2}, ())
        back = await cluster.join(3)
        at = await until(back, lambda image: "t" in image.names)
        leader = {1: one, 2: two}[at.topic_named("t").partitions[0].leader]
        assert THREE not in back.partition().isr  # it was away in good order: it has nothing of this topic all the same
        members = tuple((each, leader.image.brokers[each].epoch) for each in ids("123"))
        change = IsrChange(
            PartitionKey(topic.id, 0), leader.partition().leader_epoch, leader.partition().epoch, members
        )
        await one.metadata.alter_partitions(leader.broker.id, leader.broker.epoch, [change])
        assert set(one.partition().isr) == {1, 2, 3}

    play(scene)


def test_every_broker_and_the_next_controller_know_who_is_away_until_it_is_unregistered() -> None:
    async def scene(cluster: Cluster) -> None:
        one, two, three = await cluster.join(1), await cluster.join(2), await cluster.join(3)
        await cluster.stop(three)
        await cluster.crash(one)
        await until(two, lambda image: image.controller.broker == TWO and THREE not in image.brokers)
        assert two.image.registered == {1, 2, 3}
        late = await cluster.join(4)  # it has read all anew
        assert late.image.admitted == two.image.admitted
        await two.metadata.unregister(THREE)
        await until(late, lambda image: THREE not in image.registered)
        assert two.image.registered == {1, 2, 4}
        back = await cluster.join(3, directory="new")  # another machine takes the number
        assert back.image.registered == {1, 2, 3, 4}
        assert back.broker.epoch == three.broker.epoch + 1

    play(scene)


def test_an_empty_disk_is_not_trusted_for_having_been_unregistered() -> None:
    async def scene(cluster: Cluster) -> None:
        one, _, three = await with_topic(cluster, "3")
        await cluster.stop(three)
        await until(one, row_is("-|3|"))
        with suppress(InvalidRequest):
            await one.metadata.unregister(THREE)
        await cluster.join(3, directory="new")
        await until(one, row_is("-||"))

    play(scene)
