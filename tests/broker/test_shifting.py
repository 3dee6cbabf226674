"""To rewind a queue is to deliver all from there on again, and nothing else: no copy for another attempt, either."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.broker.serving import serve
from tests.broker.test_deliveries import LONG_MS, make, take

from runnel.broker.broker import Broker
from runnel.broker.fetch import Waits
from runnel.broker.once import OnceMessage
from runnel.broker.outlet import Outlet
from runnel.cluster.topic_rules import NewTopic
from runnel.model.calls import (
    QUEUE_CREATE,
    QUEUE_DELETE,
    CreateQueue,
    DeleteQueue,
    NamedQueue,
    Outcome,
    Outgoing,
    Receive,
    Received,
    Rewind,
    Send,
    Settle,
    Settlement,
    Shifted,
)
from runnel.model.errors import LeaderNotAvailable
from runnel.model.ids import PartitionKey
from runnel.queues.values import Target

HOUR_MS = 3_600_000


async def receive(broker: Broker, count: int = 1) -> Received:
    return await broker.queues.receive(Receive("q", count, wait_ms=LONG_MS), Waits())


async def settle(broker: Broker, got: Received, outcome: Outcome, delay_ms: int | None = None) -> None:
    said = [Settlement(message.receipt, outcome, delay_ms) for message in got.messages]
    assert not any((await broker.queues.settle(Settle("q", said))).failures)


async def copied_and_accepted(broker: Broker) -> None:
    """The first of two messages was copied to the retry topic, and accepted there; then the other one was, too."""
    await make(broker, "q", 2, window_wait_max_ms="0")
    await settle(broker, await receive(broker), "release", 1)
    for _ in range(2):
        await settle(broker, await receive(broker), "accept")
    assert await take(broker, "q", 5) == []


async def is_scheduled(broker: Broker, count: int) -> None:
    """Wait until so many copies wait in the schedule."""
    while (await broker.queues.describe(NamedQueue("q"))).scheduled != count:
        await asyncio.sleep(0.01)


def afters(shifted: Shifted) -> dict[str, int]:
    assert not any(moved.failure for moved in shifted.partitions)
    return {f"{moved.topic}/{moved.partition}": moved.after for moved in shifted.partitions}


def test_a_copy_that_was_accepted_does_not_come_again(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await copied_and_accepted(broker)
        assert afters(await broker.queues.rewind(Rewind("q", "start"))) == {"q/0": 0}
        assert await take(broker, "q", 5) == [(b"0", 1), (b"1", 1)]
        assert await take(broker, "q", 5) == []

    serve(tmp_path, scenario)


def test_a_queue_that_is_made_again_gets_no_copy_of_the_one_before(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await copied_and_accepted(broker)
        await broker.calls.ask(broker.id, QUEUE_DELETE, DeleteQueue("q"))
        settings = {"start": "latest", "window.wait.max.ms": "0"}
        await broker.calls.ask(broker.id, QUEUE_CREATE, CreateQueue("q", settings))
        assert await take(broker, "q", 5) == []
        await broker.queues.send(Send("q", [Outgoing(b"new")]))
        await settle(broker, await receive(broker), "release", 1)
        assert await take(broker, "q", wait_ms=LONG_MS) == [(b"new", 2)]  # its own it gets

    serve(tmp_path, scenario)


def test_a_copy_that_lies_in_the_retry_topic_is_given_up(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", 1, window_wait_max_ms="0")
        await settle(broker, await receive(broker), "release", 1)
        leased = await receive(broker)
        planned = await broker.queues.rewind(Rewind("q", "start", dry_run=True))
        rewound = await broker.queues.rewind(Rewind("q", "start"))
        assert afters(planned) == afters(rewound) == {"q/0": 0, "q.retry/0": 1}
        said = [Settlement(message.receipt, "accept") for message in leased.messages]
        [refused] = (await broker.queues.settle(Settle("q", said))).failures
        assert refused is not None
        assert refused.name == "LeaseLost"
        assert await take(broker, "q", 5) == [(b"0", 1)]

    serve(tmp_path, scenario)


def test_a_copy_that_waits_in_the_schedule_is_taken_out(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", 1, window_wait_max_ms="0")
        await settle(broker, await receive(broker), "release", HOUR_MS)
        await is_scheduled(broker, 1)
        assert (await broker.queues.rewind(Rewind("q", "start", dry_run=True))).scheduled == 1
        assert (await broker.queues.rewind(Rewind("q", "start"))).scheduled == 1
        assert (await broker.queues.describe(NamedQueue("q"))).scheduled == 0
        assert await take(broker, "q", 5) == [(b"0", 1)]

    serve(tmp_path, scenario)


def test_what_lies_before_the_place_is_not_delivered_though_it_waits_for_another_attempt(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", 2, window_wait_max_ms="0")
        await settle(broker, await receive(broker), "release", 1)
        await settle(broker, await receive(broker), "release", HOUR_MS)  # the copy, once more
        await is_scheduled(broker, 1)
        assert (await broker.queues.rewind(Rewind("q", "offset", 1))).scheduled == 1
        assert await take(broker, "q", 5) == [(b"1", 1)]
        await broker.queues.rewind(Rewind("q", "start"))  # nothing is lost: it is still in the topic
        assert await take(broker, "q", 5) == [(b"0", 1), (b"1", 1)]

    serve(tmp_path, scenario)


def test_a_copy_that_is_on_its_way_counts_for_nothing_when_it_arrives(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", 1, window_wait_max_ms="0")
        held = await receive(broker)
        [leaver] = [outlet._leaver for outlet in broker.deliveries if outlet.partition.topic == "q"]
        park, asked, go = leaver._exits.park, asyncio.Event(), asyncio.Event()

        async def slow(target: Target, due_ms: int, messages: Sequence[OnceMessage]) -> None:
            asked.set()
            await go.wait()
            await park(target, due_ms, messages)

        leaver._exits = leaver._exits._replace(park=slow)
        await settle(broker, held, "release", 1)
        await asked.wait()
        await broker.queues.rewind(Rewind("q", "start"))
        go.set()
        while not broker.partitions.find("q.retry", 0).last_stable_offset:
            await asyncio.sleep(0.01)
        assert await take(broker, "q", 5) == [(b"0", 1)]

    serve(tmp_path, scenario)


def test_one_partition_that_is_rewound_leaves_the_copies_of_others(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.create([NewTopic("q", 2), NewTopic("q.retry", 1)])
        settings = {"window.wait.max.ms": "0"}
        await broker.calls.ask(broker.id, QUEUE_CREATE, CreateQueue("q", settings))
        for partition, value in enumerate((b"a", b"b")):
            await broker.sending.send("q", [Outgoing(value, partition=partition)])
        await settle(broker, await receive(broker, 2), "release", 1)
        while broker.partitions.find("q.retry", 0).last_stable_offset < 2:
            await asyncio.sleep(0.01)
        await broker.queues.rewind(Rewind("q", "start", partition=0))
        assert sorted(await take(broker, "q", 5)) == [(b"a", 1), (b"b", 2)]
        assert await take(broker, "q", 5) == []

    serve(tmp_path, scenario)


def test_what_is_void_stays_so_with_another_leader(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", 1, window_wait_max_ms="0")
        await settle(broker, await receive(broker), "release", 1)
        while "q.retry" not in broker.image.names or not broker.partitions.find("q.retry", 0).last_stable_offset:
            await asyncio.sleep(0.01)
        await broker.queues.rewind(Rewind("q", "start", partition=0))
        for outlet in list(broker.deliveries):
            broker.deliveries.close_outlet(outlet)
        assert await take(broker, "q", 5) == [(b"0", 1)]
        assert await take(broker, "q", 5) == []

    serve(tmp_path, scenario)


def test_a_rewind_that_is_interrupted_loses_nothing_and_can_be_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", 1, window_wait_max_ms="0")
        await settle(broker, await receive(broker), "release", 1)
        await receive(broker)
        find, copies = broker.deliveries.find, broker.topics.partition_key("q.retry", 0)

        def unreachable(queue: str, key: PartitionKey) -> Outlet:
            if key == copies:
                raise LeaderNotAvailable("nobody leads the copies now")
            return find(queue, key)

        with monkeypatch.context() as cut_off:
            cut_off.setattr(broker.deliveries, "find", unreachable)
            moved = (await broker.queues.rewind(Rewind("q", "start"))).partitions
        assert [each.failure is None for each in moved] == [True, False]
        [again] = (await receive(broker)).messages
        assert (again.topic, again.attempt) == ("q", 1)  # it was rewound, before its copy was to be void
        assert afters(await broker.queues.rewind(Rewind("q", "start"))) == {"q/0": 0, "q.retry/0": 1}
        assert await take(broker, "q", 5) == [(b"0", 1)]

    serve(tmp_path, scenario)
