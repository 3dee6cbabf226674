"""Who says what only the newest may say has asked the store first."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from runnel.broker import confirming
from runnel.broker.confirming import Confirming
from runnel.broker.seen import Seen
from runnel.cluster.image import Image
from runnel.cluster.store import StoreUnavailable
from runnel.model.errors import NotCoordinator


class Store:
    """Tells its version when it is let."""

    def __init__(self) -> None:
        self.version = 0
        self.error: Exception | None = None
        self.asked = 0
        self.open = asyncio.Event()
        self.open.set()

    async def newest_version(self) -> int:
        self.asked += 1
        version = self.version
        await self.open.wait()
        if self.error is not None:
            raise self.error
        return version


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 60))


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_it_waits_until_this_broker_has_done_what_the_store_says() -> None:
    async def scenario() -> None:
        store, seen = Store(), Seen(Image("c", version=3))
        confirming = Confirming(store.newest_version, seen)
        store.version = 3
        await confirming.confirm()
        store.version = 5
        waiting = asyncio.ensure_future(confirming.confirm())
        await turns()
        seen.reach(Image("c", version=4))
        await turns()
        assert not waiting.done()
        seen.reach(Image("c", version=5))
        await waiting

    run(scenario())


def test_whoever_asks_while_the_store_is_asked_gets_the_answer_of_the_next_question() -> None:
    async def scenario() -> None:
        store, seen = Store(), Seen(Image("c", version=3))
        confirming = Confirming(store.newest_version, seen)
        store.open.clear()
        first = asyncio.ensure_future(confirming.confirm())
        await turns()
        store.version = 4  # decided before the others ask
        others = [asyncio.ensure_future(confirming.confirm()) for _ in range(50)]
        await turns()
        store.open.set()
        await first
        await turns()
        assert not any(other.done() for other in others), "the first answer is too old for them"
        seen.reach(Image("c", version=4))
        await asyncio.gather(*others)
        assert store.asked == 2

    run(scenario())


def test_where_the_store_cannot_be_asked_nothing_is_confirmed() -> None:
    async def scenario() -> None:
        store = Store()
        confirming = Confirming(store.newest_version, Seen(Image("c", version=3)))
        store.error = StoreUnavailable("cut off")
        with pytest.raises(NotCoordinator, match="cut off"):
            await confirming.confirm()
        store.error = None
        await confirming.confirm()

    run(scenario())


def test_a_store_that_does_not_answer_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        store = Store()
        asking = Confirming(store.newest_version, Seen(Image("c", version=3)))
        store.open.clear()
        monkeypatch.setattr(confirming, "TIMEOUT_S", 0.01)
        with pytest.raises(NotCoordinator):
            await asking.confirm()
        monkeypatch.setattr(confirming, "TIMEOUT_S", 30.0)
        store.open.set()
        await asking.confirm()

    run(scenario())


def test_one_who_goes_away_takes_the_answer_from_nobody() -> None:
    async def scenario() -> None:
        store = Store()
        confirming = Confirming(store.newest_version, Seen(Image("c", version=3)))
        store.open.clear()
        gone, stays = (asyncio.ensure_future(confirming.confirm()) for _ in range(2))
        await turns()
        gone.cancel()
        await turns()
        store.open.set()
        await stays

    run(scenario())
