"""Outlets open with their first use, end with what they belong to, and cost nothing while nobody uses them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.broker.serving import eventually, serve
from tests.broker.test_fetch import append, end, write

from runnel.broker.broker import Broker
from runnel.broker.fetch import Waits
from runnel.broker.hauls import Want
from runnel.cluster.topic_rules import NewTopic
from runnel.model.calls import (
    QUEUE_ALTER,
    QUEUE_CREATE,
    QUEUE_DELETE,
    AlterQueue,
    CreateQueue,
    DeleteQueue,
    NamedQueue,
    Outgoing,
    Purge,
    Receive,
    Rewind,
    Send,
    Settle,
    Settlement,
)
from runnel.model.errors import RetriableError, UnknownQueue
from runnel.model.ids import PartitionKey

LONG_MS = 60_000


async def make(broker: Broker, queue: str, messages: int = 0, **settings: str) -> None:
    """A queue over one partition, with some messages."""
    wanted = {name.replace("_", "."): value for name, value in settings.items()}
    await broker.calls.ask(broker.id, QUEUE_CREATE, CreateQueue(queue, wanted, 1))
    if messages:
        sent = await broker.queues.send(Send(queue, [Outgoing(b"%d" % number) for number in range(messages)]))
        assert not any(sent.failures)


async def take(broker: Broker, queue: str, count: int = 1, **asked: Any) -> list[tuple[bytes | None, int]]:
    got = await broker.queues.receive(Receive(queue, count, **asked), Waits())
    return [(message.value, message.attempt) for message in got.messages]


def key_of(broker: Broker, topic: str) -> PartitionKey:
    return broker.topics.partition_key(topic, 0)


def test_thousands_of_idle_queues_cost_no_task_and_no_timer(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.create([NewTopic("t", 1)])
        await broker.sending.send("t", [Outgoing(b"x")])
        key = key_of(broker, "t")
        names = [f"group-{number}" for number in range(3_000)]
        for start in range(0, len(names), 500):
            outlets = [broker.deliveries.find(name, key) for name in names[start : start + 500]]
            await asyncio.gather(*(outlet.opened(30) for outlet in outlets))
        assert len(broker.deliveries) == len(names)
        await eventually(lambda: len(asyncio.all_tasks()) < 40)  # what they began with is kept
        assert all(outlet.shard._timer is None for outlet in broker.deliveries)
        for outlet in broker.deliveries:
            outlet.used_ms = outlet.used_ms - 3_600_000  # type: ignore[assignment]
        broker.deliveries.sweep()
        assert len(broker.deliveries) == 0

    serve(tmp_path, scenario)


def test_an_outlet_with_a_lease_or_somebody_who_waits_is_not_closed(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "leased", 1)
        await make(broker, "held", 1)
        await make(broker, "waited-for")
        assert await take(broker, "leased") == [(b"0", 1)]
        assert await take(broker, "held", lease_ms=0) == [(b"0", 1)]
        waits = Waits()
        waiting = asyncio.ensure_future(broker.queues.receive(Receive("waited-for", wait_ms=LONG_MS), waits))
        await eventually(lambda: "waited-for" in broker.deliveries.bells)
        for outlet in broker.deliveries:
            outlet.used_ms = outlet.used_ms - 3_600_000  # type: ignore[assignment]
        broker.deliveries.sweep()
        assert {outlet.queue for outlet in broker.deliveries} == {"leased", "held", "waited-for"}
        waits.end()
        assert (await waiting).messages == []
        broker.deliveries.sweep()
        assert {outlet.queue for outlet in broker.deliveries} == {"leased", "held"}

    serve(tmp_path, scenario)


def test_what_is_opened_again_knows_what_it_knew(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", 3)
        got = (await broker.queues.receive(Receive("q", 2), Waits())).messages
        await broker.queues.settle(Settle("q", [Settlement(got[0].receipt, "accept")]))
        for outlet in list(broker.deliveries):
            broker.deliveries.close_outlet(outlet)
        assert await take(broker, "q", 5) == [(b"2", 1)]
        settled = await broker.queues.settle(Settle("q", [Settlement(got[1].receipt, "release", 0)]))
        assert settled.failures == [None]
        assert await take(broker, "q", 5) == [(b"1", 2)]

    serve(tmp_path, scenario)


def test_a_deleted_queue_ends_and_one_of_its_name_begins_anew(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", 2)
        assert await take(broker, "q") == [(b"0", 1)]
        waiting = asyncio.ensure_future(broker.queues.receive(Receive("q", 2, wait_ms=LONG_MS), Waits()))
        assert [message.value for message in (await waiting).messages] == [b"1"]
        waiting = asyncio.ensure_future(broker.queues.receive(Receive("q", 2, wait_ms=LONG_MS), Waits()))
        await eventually(lambda: "q" in broker.deliveries.bells)
        await broker.calls.ask(broker.id, QUEUE_DELETE, DeleteQueue("q"))
        with pytest.raises(UnknownQueue):
            await waiting
        assert len(broker.deliveries) == 0
        await make(broker, "q")
        assert await take(broker, "q", 5) == [(b"0", 1), (b"1", 1)]

    serve(tmp_path, scenario)


def test_a_deleted_topic_takes_its_outlets_with_it(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", 1)
        assert await take(broker, "q") == [(b"0", 1)]
        await broker.topics.delete(["q"])
        await eventually(lambda: len(broker.deliveries) == 0)
        await broker.topics.create([NewTopic("q", 1)])
        await broker.queues.send(Send("q", [Outgoing(b"new")]))
        assert await take(broker, "q") == [(b"new", 1)]

    serve(tmp_path, scenario)


def test_settings_count_from_when_they_are_changed(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", 4, leases_max="1")
        assert len(await take(broker, "q", 4)) == 1
        waiting = asyncio.ensure_future(take(broker, "q", 4, wait_ms=LONG_MS))
        await eventually(lambda: "q" in broker.deliveries.bells)
        await alter(broker, "q", leases_max="3")
        assert len(await waiting) == 2

    serve(tmp_path, scenario)


async def alter(broker: Broker, queue: str, **settings: str) -> None:
    wanted: dict[str, str | None] = {name.replace("_", "."): value for name, value in settings.items()}
    await broker.calls.ask(broker.id, QUEUE_ALTER, AlterQueue(queue, wanted))


# --- connections


def test_leases_of_a_connection_last_as_long_as_it_does(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", 3)
        connection, other = Waits(), Waits()
        held = (await broker.queues.receive(Receive("q", 2, lease_ms=0), connection)).messages
        assert [message.leased_until_ms for message in held] == [-1, -1]
        mine = (await broker.queues.receive(Receive("q", 2, lease_ms=0), other)).messages
        await broker.queues.settle(Settle("q", [Settlement(held[0].receipt, "accept")]))
        waiting = asyncio.ensure_future(take(broker, "q", 5, wait_ms=LONG_MS))
        await eventually(lambda: "q" in broker.deliveries.bells)
        connection.end()
        assert await waiting == [(b"1", 2)]
        assert (await broker.queues.settle(Settle("q", [Settlement(mine[0].receipt, "accept")]))).failures == [None]

    serve(tmp_path, scenario)


def test_who_has_gone_leases_nothing(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", 1)
        gone = Waits()
        gone.end()
        assert (await broker.queues.receive(Receive("q"), gone)).messages == []
        assert await take(broker, "q") == [(b"0", 1)]

    serve(tmp_path, scenario)


def test_what_was_leased_for_one_who_went_meanwhile_is_given_back(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", 1)
        await broker.deliveries.find("q", key_of(broker, "q")).opened(30)
        going = Waits()
        receiving = asyncio.ensure_future(broker.queues.receive(Receive("q"), going))
        await asyncio.sleep(0)  # the lease is being kept
        going.end()
        assert (await receiving).messages == []
        assert [value for value, _ in await take(broker, "q")] == [b"0"]

    serve(tmp_path, scenario)


def test_a_receipt_is_good_at_its_own_queue_alone(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", 1)
        await make(broker, "other")
        [message] = (await broker.queues.receive(Receive("q"), Waits())).messages
        accept = [Settlement(message.receipt, "accept"), Settlement("nonsense", "accept")]
        refused = (await broker.queues.settle(Settle("other", accept))).failures
        assert [failure.name for failure in refused if failure] == ["LeaseLost", "InvalidRequest"]
        with pytest.raises(UnknownQueue):
            await broker.queues.settle(Settle("none", accept))
        assert {outlet.queue for outlet in broker.deliveries} == {"q"}
        assert (await broker.queues.settle(Settle("q", accept[:1]))).failures == [None]

    serve(tmp_path, scenario)


# --- one partition


def test_what_is_in_an_open_transaction_is_not_leased_and_what_was_aborted_never_is(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q")
        partition = broker.partitions.find("q", 0)
        await write(partition, 7)
        await append(partition, b"behind")
        await write(partition, 8)
        assert await take(broker, "q", 5) == []
        waiting = asyncio.ensure_future(take(broker, "q", 5, wait_ms=LONG_MS))
        await eventually(lambda: "q" in broker.deliveries.bells)
        await end(partition, 7, commit=False)
        assert await waiting == [(b"behind", 1)]
        await end(partition, 8, commit=True)
        assert await take(broker, "q", 5, wait_ms=LONG_MS) == [(b"8-0", 1)]
        assert await take(broker, "q", 5) == []

    serve(tmp_path, scenario)


def test_purge_and_rewind(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", 5)
        got = (await broker.queues.receive(Receive("q", 2), Waits())).messages
        [moved] = (await broker.queues.purge(Purge("q"))).partitions
        assert moved.failure is None
        assert await take(broker, "q", 5) == []
        [rewound] = (await broker.queues.rewind(Rewind("q", "offset", 3))).partitions
        assert rewound.after == 3
        assert await take(broker, "q", 5) == [(b"3", 1), (b"4", 1)]
        refused = (await broker.queues.settle(Settle("q", [Settlement(got[0].receipt, "accept")]))).failures
        assert [failure.name for failure in refused if failure] == ["LeaseLost"]  # of another generation

    serve(tmp_path, scenario)


def test_the_state_of_a_queue_is_told(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", 10, retry_backoff_ms="60000", window_wait_max_ms="100000")
        got = (await broker.queues.receive(Receive("q", 4), Waits())).messages
        await broker.queues.settle(
            Settle(
                "q",
                [
                    Settlement(got[0].receipt, "accept"),
                    Settlement(got[1].receipt, "release"),
                    Settlement(got[2].receipt, "reject"),
                ],
            )
        )
        told = await broker.queues.describe(NamedQueue("q"))
        [state] = [state for state in told.partitions if state.topic == "q"]
        assert (state.leased, state.waiting, state.ready, state.dead, state.accepted) == (1, 1, 6, 1, 1)
        assert (told.topic, told.defined) == ("q", True)
        settings = {setting.name: setting for setting in told.settings}
        assert (settings["retry.backoff.ms"].value, settings["retry.backoff.ms"].default) == ("60000", False)
        assert settings["lease.ms"].default

    serve(tmp_path, scenario)


def test_a_plain_queue_is_offered_whole_batches(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", 6)
        outlet = broker.deliveries.find("q", key_of(broker, "q"))
        assert outlet.rules.plain
        lot = await outlet.lease_batches(Want("member", 4, 1 << 20))
        assert sum(grant.last - grant.first + 1 for grant in lot.grants) == 4

    serve(tmp_path, scenario)


def test_a_queue_that_begins_at_the_end_gets_what_is_sent_once_it_is_created(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await broker.topics.create([NewTopic("t", 2)])
        for number in (0, 1):
            await broker.sending.send("t", [Outgoing(b"before", partition=number)])
        await make(broker, "q", topic="t", start="latest")
        for number in (0, 1):
            await broker.sending.send("t", [Outgoing(b"since", partition=number)])
        for outlet in list(broker.deliveries):
            broker.deliveries.close_outlet(outlet)  # it is kept, not remembered
        assert await take(broker, "q", 10) == [(b"since", 1)] * 2

    serve(tmp_path, scenario)


def test_the_same_holds_for_a_topic_that_it_is_given_later(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", start="latest")
        await broker.topics.create([NewTopic("t", 1)])
        await broker.sending.send("t", [Outgoing(b"before")])
        await broker.calls.ask(broker.id, QUEUE_ALTER, AlterQueue("q", {"topic": "t"}))
        await broker.sending.send("t", [Outgoing(b"since")])
        assert await take(broker, "q", 10) == [(b"since", 1)]

    serve(tmp_path, scenario)


def _is_copied(broker: Broker, topic: str) -> bool:
    try:
        return broker.partitions.find_by_id(*key_of(broker, topic)).last_stable_offset == 1
    except RetriableError:
        return False  # it is not there yet


def test_copies_are_delivered_from_the_first_on_wherever_the_queue_began(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, "q", start="latest", window_wait_max_ms="0")
        await broker.queues.send(Send("q", [Outgoing(b"x")]))
        [message] = (await broker.queues.receive(Receive("q", wait_ms=LONG_MS), Waits())).messages
        await broker.queues.settle(Settle("q", [Settlement(message.receipt, "release", 1)]))
        await eventually(lambda: _is_copied(broker, "q.retry"))
        assert await take(broker, "q", wait_ms=LONG_MS) == [(b"x", 2)]

    serve(tmp_path, scenario)
