"""A courier goes on, whatever its posts and its queue do."""

import asyncio
from collections.abc import Callable
from typing import Any, Self, cast

import pytest

from runnel.broker import courier as couriers
from runnel.broker import standing
from runnel.broker.courier import Courier
from runnel.model.calls import Delivered, Settlement
from runnel.model.queue_config import QueueConfig
from runnel.net.posting import Answer
from runnel.shell.clock import SystemClock


class Grants:
    """A queue with one message, and what is out of it."""

    credit = 1

    def __init__(self) -> None:
        self.ready = [Delivered("receipt", "t", 0, 0, 1, None, b"v", [], 1)]
        self.out: set[str] = set()
        self.changed = asyncio.Event()
        self.accepted = asyncio.Event()
        self.fails: list[Exception] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is given back here."""

    async def receive(self, limit: int, timeout_s: float) -> list[Delivered]:
        if self.fails:
            raise self.fails.pop()
        while not self.ready:
            self.changed.clear()
            await self.changed.wait()
        message = self.ready.pop()
        self.out.add(message.receipt)
        return [message]

    async def settle(self, settlements: list[Settlement]) -> list[None]:
        self.out.clear()
        self.accepted.set()
        return [None]

    def forget(self, receipt: str) -> None:
        self.out.discard(receipt)
        self.changed.set()


class Poster:
    """Answers with what it is told to, which may be an error."""

    def __init__(self, *answers: Answer | Exception) -> None:
        self.answers = list(answers)

    async def post(self, *_: object) -> Answer:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


FINE = Answer(200, {})


def run(poster: Poster, scenario: Callable[[Courier, Grants], Any]) -> None:
    async def main() -> None:
        grants = Grants()
        courier = Courier("q", QueueConfig(), lambda _: cast(Any, grants), cast(Any, poster), SystemClock())
        async with asyncio.timeout(30):
            await scenario(courier, grants)
            await courier.stop()

    asyncio.run(main())


def test_what_a_post_that_failed_unforeseen_had_out_is_forgotten(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(courier: Courier, grants: Grants) -> None:
        again = grants.ready[0]
        while grants.ready or grants.out:
            await asyncio.sleep(0)
        assert not grants.accepted.is_set()
        grants.ready.append(again)
        grants.changed.set()
        await grants.accepted.wait()

    run(Poster(KeyError("nobody foresaw it"), FINE), scenario)
    assert "nobody foresaw it" in caplog.text


def test_a_courier_that_failed_unforeseen_begins_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(standing, "PAUSE_S", 0)
    monkeypatch.setattr(couriers, "PAUSE_S", 0)

    async def scenario(courier: Courier, grants: Grants) -> None:
        grants.fails.append(KeyError("nobody foresaw it"))
        await grants.accepted.wait()

    run(Poster(FINE), scenario)
    assert "the webhook of queue 'q' failed, and begins again" in caplog.text
