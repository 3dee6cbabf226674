"""Receivers with a filter of their own: nothing that passes lies too far away, and nobody else is held up."""

import asyncio
from pathlib import Path

import pytest
from tests.broker.serving import eventually, serve

from runnel.broker.broker import Broker
from runnel.broker.fetch import Waits
from runnel.model.calls import (
    QUEUE_ALTER,
    QUEUE_CREATE,
    AlterQueue,
    CreateQueue,
    Delivered,
    NamedQueue,
    Outcome,
    Outgoing,
    Receive,
    Rewind,
    Settle,
    Settlement,
)
from runnel.model.errors import WindowFull

RED = "key = 'red'"
LONG_MS = 30_000


async def make(broker: Broker, **settings: str) -> None:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    await broker.calls.ask(broker.id, QUEUE_CREATE, CreateQueue("q", named, 1))


async def send(broker: Broker, *keys: str, size: int = 1) -> None:
    for first in range(0, len(keys), 500):
        part = [Outgoing(b"x" * size, key=key.encode()) for key in keys[first : first + 500]]
        await broker.sending.send("q", part)


async def receive(broker: Broker, count: int = 10, filter: str = "", wait_ms: int = 0) -> list[Delivered]:
    return (await broker.queues.receive(Receive("q", count, 1 << 25, wait_ms, filter=filter), Waits())).messages


def offsets(messages: list[Delivered]) -> list[int]:
    return [message.offset for message in messages]


async def settle(broker: Broker, outcome: Outcome, messages: list[Delivered]) -> None:
    said = [Settlement(each.receipt, outcome, 0 if outcome == "release" else None) for each in messages]
    assert not any((await broker.queues.settle(Settle("q", said))).failures)


async def next_new(broker: Broker) -> int:
    [state] = [each for each in (await broker.queues.describe(NamedQueue("q"))).partitions if each.topic == "q"]
    return state.next_new


def test_what_passes_is_found_however_far_it_is(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker)
        await send(broker, *["blue"] * 4_000, "red", size=1_000)  # many more stretches than are held at once
        found = await receive(broker, filter=RED, wait_ms=LONG_MS)
        assert offsets(found) == [4_000]
        assert offsets(await receive(broker, 3)) == [0, 1, 2], "the rest is there for others, in order"
        await settle(broker, "accept", found)
        assert await receive(broker, filter=RED) == []

    serve(tmp_path, scenario)


def test_who_looks_and_finds_nothing_leaves_no_trace_and_is_woken(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker)
        await send(broker, *["blue"] * 50)
        assert await receive(broker, filter=RED) == []
        assert await next_new(broker) == 0
        waiting = asyncio.ensure_future(receive(broker, filter=RED, wait_ms=LONG_MS))
        await eventually(lambda: "q" in broker.deliveries.bells)
        await send(broker, "blue", "red")
        found = await waiting
        assert offsets(found) == [51]
        waiting = asyncio.ensure_future(receive(broker, filter=RED, wait_ms=LONG_MS))
        await eventually(lambda: "q" in broker.deliveries.bells)
        await settle(broker, "release", found)
        assert offsets(await waiting) == [51], "what comes back is looked at again"

    serve(tmp_path, scenario)


def test_what_one_filter_passed_over_another_finds(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker)
        await send(broker, *(["blue"] * 9 + ["green"]) * 30, "red")
        assert offsets(await receive(broker, filter=RED)) == [300]
        assert await next_new(broker) == 301
        assert offsets(await receive(broker, 2, filter="key = 'green'")) == [9, 19]
        assert offsets(await receive(broker, 2, filter="key = 'green'")) == [29, 39]
        assert await receive(broker, filter=RED) == []
        assert offsets(await receive(broker, 3)) == [0, 1, 2]

    serve(tmp_path, scenario)


def test_who_chooses_from_too_far_behind_is_told_so_and_others_go_on(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, window_max="2")
        await send(broker, *["blue"] * 150, "red")
        for wait_ms in (0, 100):
            with pytest.raises(WindowFull, match="offset 150"):
                await receive(broker, filter=RED, wait_ms=wait_ms)
        for _ in range(25):
            some = await receive(broker, 2)
            assert len(some) == 2
            await settle(broker, "accept", some)
        assert offsets(await receive(broker, filter=RED)) == [150]

    serve(tmp_path, scenario)


def test_with_key_order_the_window_is_what_can_be_looked_at(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, order="key", window_max="20")
        await send(broker, *(f"k{n}" for n in range(10)), "red", "red", *(f"k{n}" for n in range(30)), "red")
        found = await receive(broker, filter=RED)
        assert offsets(found) == [10], "the next of its key has to wait"
        await settle(broker, "accept", found)
        found = await receive(broker, filter=RED)
        assert offsets(found) == [11]
        await settle(broker, "accept", found)
        for why in ("offset 42", "order of keys"):  # it looks as far as it can, then all of that is passed over
            with pytest.raises(WindowFull, match=why):
                await receive(broker, filter=RED)
        some = await receive(broker, 30)
        assert offsets(some) == [*range(10)]
        await settle(broker, "accept", some)
        got: list[int] = []
        while some := await receive(broker, 30):
            await settle(broker, "accept", some)
            got += offsets(some)
        assert got[-1] == 42

    serve(tmp_path, scenario)


def test_what_was_looked_at_is_looked_at_again_after_a_rewind_and_with_other_settings(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker)
        await send(broker, *["blue"] * 10, "red", *["blue"] * 10)
        await settle(broker, "accept", await receive(broker, filter=RED))
        assert await receive(broker, filter=RED) == []
        await broker.queues.rewind(Rewind("q", "start"))
        await settle(broker, "accept", await receive(broker, 1, filter=RED))
        assert await receive(broker, filter=RED) == []
        await broker.queues.rewind(Rewind("q", "start"))
        await broker.calls.ask(broker.id, QUEUE_ALTER, AlterQueue("q", {"filter": "key <> 'red'"}))
        assert await receive(broker, filter=RED) == []
        await broker.calls.ask(broker.id, QUEUE_ALTER, AlterQueue("q", {"filter": None}))
        assert offsets(await receive(broker, filter=RED)) == [10]

    serve(tmp_path, scenario)


def test_what_the_queue_itself_does_not_want_is_left_alone_behind_what_others_may_want(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await make(broker, filter="key <> 'black'")
        await send(broker, "black", "blue", "black", "black")
        assert await receive(broker, filter=RED) == []
        assert await next_new(broker) == 1, "the first is done with"
        assert offsets(await receive(broker)) == [1]

    serve(tmp_path, scenario)
