"""Which queues have dead letters, asked of any broker."""

import asyncio
from itertools import product
from pathlib import Path

import pytest
from tests.test_replication import Brokers, cluster_of, run

from runnel.broker import graves
from runnel.model.calls import (
    DEAD_QUEUES,
    QUEUE_CREATE,
    QUEUE_RECEIVE,
    QUEUE_SEND,
    QUEUE_SETTLE,
    CreateQueue,
    DeadQueue,
    DeadQueues,
    ListDeadQueues,
    Outgoing,
    Receive,
    Send,
    Settle,
    Settlement,
)
from runnel.model.errors import InvalidRequest

from .test_queue_definitions import ask

LONG_MS = 20_000


async def bury(brokers: Brokers, queue: str, count: int) -> None:
    """Make a queue, and give up so many messages."""
    await ask(brokers, 1, QUEUE_CREATE, CreateQueue(queue, {}, 3, 1))
    messages = [Outgoing(b"x", partition=n % 3) for n in range(count)]
    await ask(brokers, 1, QUEUE_SEND, Send(queue, messages))
    buried = 0
    while buried < count:
        got = (await ask(brokers, 1, QUEUE_RECEIVE, Receive(queue, count, 1 << 20, LONG_MS))).messages
        await ask(brokers, 1, QUEUE_SETTLE, Settle(queue, [Settlement(each.receipt, "reject") for each in got]))
        buried += len(got)


async def pages(brokers: Brokers, number: int, queues_max: int) -> list[list[DeadQueue]]:
    """All pages, each of which begins where the one before says."""
    found: list[list[DeadQueue]] = []
    since: str | None = ""
    while since is not None:
        page: DeadQueues = await ask(brokers, number, DEAD_QUEUES, ListDeadQueues(queues_max, since))
        found.append(page.queues)
        since = page.next
    return found


async def until_pages(brokers: Brokers, queues_max: int, wanted: list[list[DeadQueue]]) -> None:
    """A letter is there a moment after its message was rejected."""
    async with asyncio.timeout(LONG_MS / 1_000):
        while await pages(brokers, 1, queues_max) != wanted:
            await asyncio.sleep(0.01)


def test_every_broker_counts_the_letters_that_all_lead_page_by_page(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path, count=3) as brokers:
            for count, name in enumerate(("a", "b", "c", "d", "e")):
                await bury(brokers, name, count * 2)
            there = [DeadQueue(name, f"{name}.dead", count) for name, count in zip("bcde", (2, 4, 6, 8), strict=True)]
            await until_pages(brokers, 100, [there])
            for number, size in product(brokers.up, (1, 2, 3, 4)):
                cut = [there[at : at + size] for at in range(0, 4, size)]
                assert await pages(brokers, number, size) == cut
            for number in (0, graves.LIST_MAX + 1):
                with pytest.raises(InvalidRequest, match="1 to 1000"):
                    await ask(brokers, 2, DEAD_QUEUES, ListDeadQueues(number))

    run(main())


def test_a_page_looks_at_so_many_queues_and_goes_on_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graves, "LOOKED_AT_MAX", 2)

    async def main() -> None:
        async with cluster_of(tmp_path, count=1) as brokers:
            for name in ("a", "b", "c", "d"):
                await bury(brokers, name, 0)
            await bury(brokers, "e", 1)
            assert await ask(brokers, 1, DEAD_QUEUES, ListDeadQueues()) == DeadQueues([], "c")
            assert await ask(brokers, 1, DEAD_QUEUES, ListDeadQueues(since="c")) == DeadQueues([], "e")
            await ask(brokers, 1, QUEUE_CREATE, CreateQueue("none", {"dead.letter.topic": ""}))
            await until_pages(brokers, 10, [[], [], [DeadQueue("e", "e.dead", 1)]])

    run(main())
