"""Sending to topics: where each message goes, in which way, and what becomes of the others."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, cast
from uuid import UUID

import pytest

from runnel.broker.produce import Produced
from runnel.broker.sending import Sending
from runnel.client.partitioner import partition_of_key
from runnel.cluster.image import Delta, Image, Partition, Topic
from runnel.model.calls import Outgoing, Placed
from runnel.model.errors import InvalidAcks, InvalidTopicName, NotLeader, RequestTimedOut, RunnelError, UnknownTopic
from runnel.model.ids import BrokerId, Epoch, Offset, PartitionKey, ProducerId, TopicId
from runnel.model.once import Placed as Once
from runnel.record.batch import read_header
from runnel.record.records import decode
from runnel.shell.clock import SystemClock
from runnel.shell.rng import SystemRng

PARTITIONS = 5


class Cluster:
    """As much of a broker as sending needs; everything is written down."""

    def __init__(self) -> None:
        led = Partition(BrokerId(1), Epoch(0), Epoch(0), (BrokerId(1),), (BrokerId(1),))
        self.topic = Topic(TopicId(UUID(int=7)), "t", (led,) * PARTITIONS)
        self.image = Image("c").apply(Delta(topics={self.topic.id: self.topic}))
        self.appended: list[tuple[int, int, list[bytes | None]]] = []  # partition, acks, values
        self.named: list[tuple[int, list[str]]] = []
        self.parked: list[tuple[int, list[str]]] = []
        self.made: list[str] = []
        self.broken: set[int] = set()
        self.slow: set[int] = set()
        self.go_on = asyncio.Event()
        self._ends = [0] * PARTITIONS
        self._producers = 0
        self.sending = Sending(
            lambda: self.image,
            append=self.append, new_producer=self.new_producer, make_topics=self.make,
            once=cast(Any, self), schedule=cast(Any, self), clock=SystemClock(), rng=SystemRng(),
        )  # fmt: skip

    async def append(self, key: PartitionKey, batch: memoryview, acks: int, timeout_ms: int) -> Produced:
        if key.number in self.broken:
            raise NotLeader("nobody leads it")
        if key.number in self.slow:
            try:
                await asyncio.wait_for(self.go_on.wait(), timeout_ms / 1000)
            except TimeoutError:
                raise RequestTimedOut("no answer") from None
        self.appended.append((key.number, acks, [record.value for record in decode(batch)]))
        base = self._ends[key.number]
        self._ends[key.number] += read_header(batch).count
        return Produced(Offset(base), -1, Offset(0))

    async def new_producer(self) -> ProducerId:
        self._producers += 1
        return ProducerId(self._producers)

    async def make(self, names: Sequence[str]) -> None:
        self.made += names

    async def append_each(self, topic: TopicId, partition: int, messages: Sequence[Any], **_: Any) -> list[Once]:
        self.named.append((partition, [message.id for message in messages]))
        return [Once(100 + n, 1, n > 0) for n in range(len(messages))]

    async def park(self, topic: TopicId, partition: int, messages: Sequence[Any], **_: Any) -> list[int]:
        self.parked.append((partition, [message.id for message in messages]))
        return [message.due_ms for message in messages]


def run(scenario: Callable[[Cluster], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await scenario(Cluster())

    asyncio.run(main())


def places(results: "list[Placed | RunnelError]") -> list[Any]:
    return [type(each) if isinstance(each, RunnelError) else (each.partition, each.offset) for each in results]


def test_a_key_has_one_partition_and_those_without_stay_together() -> None:
    async def scenario(cluster: Cluster) -> None:
        keys = [b"k%d" % n for n in range(20)]
        results = await cluster.sending.send("t", [Outgoing(b"x", key) for key in keys])
        assert [place[0] for place in places(results)] == [partition_of_key(key, PARTITIONS) for key in keys]
        [(first, _), *rest] = places(await cluster.sending.send("t", [Outgoing(b"x") for _ in range(4)]))
        assert {partition for partition, _ in rest} == {first}
        assert places(await cluster.sending.send("t", [Outgoing(b"x", b"k", partition=3)]))[0][0] == 3

    run(scenario)


def test_messages_of_one_request_go_in_one_batch_for_each_partition() -> None:
    async def scenario(cluster: Cluster) -> None:
        messages = [Outgoing(b"%d" % n, partition=n % 2) for n in range(6)]
        assert places(await cluster.sending.send("t", messages)) == [(n % 2, n // 2) for n in range(6)]
        assert sorted(cluster.appended) == [(0, -1, [b"0", b"2", b"4"]), (1, -1, [b"1", b"3", b"5"])]

    run(scenario)


@pytest.mark.parametrize("acks", [0, 1])
def test_a_weaker_acknowledgement_is_asked_of_the_leader(acks: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.sending.send("t", [Outgoing(b"a", partition=0), Outgoing(b"b", partition=0)], acks=acks)
        assert cluster.appended == [(0, acks, [b"a", b"b"])]
        large = [Outgoing(b"x" * 200_000, partition=0) for _ in range(4)]
        assert places(await cluster.sending.send("t", large, acks=acks)) == [(0, 2 + n) for n in range(4)]
        assert len(cluster.appended) > 2, "a batch is no larger than others"

    run(scenario)


def test_names_and_times_have_ways_of_their_own() -> None:
    async def scenario(cluster: Cluster) -> None:
        messages = [
            Outgoing(b"plain", partition=0),
            Outgoing(b"named", partition=0, message_id="a"),
            Outgoing(b"later", partition=0, deliver_at_ms=5),
            Outgoing(b"both", partition=0, deliver_at_ms=5, message_id="b"),
            Outgoing(b"named", partition=0, message_id="a"),
        ]
        plain, named, later, both, again = await cluster.sending.send("t", messages)
        assert places([plain, named, again]) == [(0, 0), (0, 100), (0, 101)]
        assert isinstance(again, Placed)
        assert again.duplicate
        assert isinstance(later, Placed)
        assert isinstance(both, Placed)
        assert (both.offset, both.scheduled_id) == (-1, "b")
        assert cluster.parked == [(0, [later.scheduled_id, "b"])]
        assert cluster.named == [(0, ["a", "a"])]

    run(scenario)


def test_a_name_has_one_partition_as_a_key_has() -> None:
    async def scenario(cluster: Cluster) -> None:
        for _ in range(20):
            for name in ("a", "b", "c", "d"):
                await cluster.sending.send("t", [Outgoing(b"x", message_id=name)])
                await cluster.sending.send("t", [Outgoing(b"x", message_id=name, deliver_at_ms=5)])
        partitions = {(partition, name) for partition, names in cluster.named + cluster.parked for name in names}
        assert len(partitions) == 4
        assert len({partition for partition, _ in partitions}) > 1
        keyed = await cluster.sending.send("t", [Outgoing(b"x", b"k", message_id="a")])
        assert places(keyed)[0][0] == partition_of_key(b"k", PARTITIONS)

    run(scenario)


def test_one_messages_error_costs_the_others_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.broken.add(1)
        messages = [Outgoing(b"x", partition=number) for number in (0, 1, 9, 2)]
        for acks in (-1, 1):
            results = places(await cluster.sending.send("t", messages, acks=acks))
            assert [isinstance(each, tuple) for each in results] == [True, False, False, True]

    run(scenario)


@pytest.mark.parametrize("acks", [-1, 1])
def test_nobody_waits_longer_than_it_said(acks: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.slow.add(1)
        messages = [Outgoing(b"x", partition=number) for number in (0, 1)]
        results = places(await cluster.sending.send("t", messages, acks=acks, timeout_ms=50))
        assert results == [(0, 0), RequestTimedOut]
        cluster.go_on.set()

    run(scenario)


def test_what_can_not_be_sent_to_is_told() -> None:
    async def scenario(cluster: Cluster) -> None:
        with pytest.raises(InvalidTopicName):
            await cluster.sending.send("__schedule", [Outgoing(b"x")])
        with pytest.raises(UnknownTopic):
            await cluster.sending.send("other", [Outgoing(b"x")])
        assert cluster.made == ["other"], "it may be made, if the broker is set up to"
        with pytest.raises(InvalidAcks):
            await cluster.sending.send("t", [Outgoing(b"x")], acks=2)

    run(scenario)
