"""Idempotency keys: a key belongs to its request, unless every attempt at that failed and left nothing."""

import asyncio
from pathlib import Path

import pytest
from tests.broker.serving import serve

from runnel.broker.broker import Broker
from runnel.model.errors import KeyReused, PolicyViolation

KEY, ONE, OTHER = "key", b"1" * 32, b"2" * 32


async def done(broker: Broker, digest: bytes) -> bytes:
    async def act(_: object) -> bytes:
        return b"done"

    return await broker.requests.once(KEY, digest, (), act)


async def fail(broker: Broker, digest: bytes, *, left_nothing: bool, until: asyncio.Event | None = None) -> None:
    async def act(_: object) -> bytes:
        if until is not None:
            await until.wait()
        raise PolicyViolation("no room")

    with pytest.raises(PolicyViolation):
        await broker.requests.once(KEY, digest, (), act, lambda: left_nothing)


def test_a_request_that_failed_and_left_nothing_lets_its_key_go(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        for digest in (ONE, OTHER) * 20:
            await fail(broker, digest, left_nothing=True)
        assert await done(broker, OTHER) == b"done"
        with pytest.raises(KeyReused):
            await done(broker, ONE)

    serve(tmp_path, scenario)


def test_a_request_that_may_have_left_something_does_not(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        await fail(broker, ONE, left_nothing=False)
        with pytest.raises(KeyReused):
            await done(broker, OTHER)
        assert await done(broker, ONE) == b"done"

    serve(tmp_path, scenario)


def test_a_key_stays_while_another_attempt_at_its_request_is_under_way(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        until = asyncio.Event()
        await fail(broker, ONE, left_nothing=True)  # there is a claim that was let go
        slow = asyncio.ensure_future(fail(broker, ONE, left_nothing=True, until=until))
        ledger = next(iter(broker.requests._ledgers.values()))
        while not ledger._given:
            await asyncio.sleep(0)
        await fail(broker, ONE, left_nothing=True)
        with pytest.raises(KeyReused):
            await done(broker, OTHER)
        until.set()
        await slow
        assert await done(broker, OTHER) == b"done"

    serve(tmp_path, scenario)


def test_a_leader_that_did_not_write_a_claim_does_not_let_it_go(tmp_path: Path) -> None:
    """It can't know who else was given it."""

    async def scenario(broker: Broker) -> None:
        until = asyncio.Event()
        slow = asyncio.ensure_future(fail(broker, ONE, left_nothing=True, until=until))
        while not any(ledger._given for ledger in broker.requests._ledgers.values()):
            await asyncio.sleep(0)
        broker.requests._ledgers.clear()  # as when another leads
        await fail(broker, ONE, left_nothing=True)
        until.set()
        await slow
        with pytest.raises(KeyReused):
            await done(broker, OTHER)

    serve(tmp_path, scenario)
