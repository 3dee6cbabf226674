"""Members that a broker runs for others: few, found by their name, and gone when nobody asks."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

import pytest

from runnel.broker import members
from runnel.broker.calls import Calls
from runnel.broker.fetch import Waits
from runnel.broker.members import Members
from runnel.broker.peers import Peers
from runnel.client.cluster import Cluster
from runnel.model.errors import NoSuchMember, TooManyMembers
from runnel.model.ids import BrokerId
from runnel.model.members import CloseMember, CommitMember, OpenMember, PollMember
from runnel.shell.clock import SystemClock
from runnel.shell.rng import SystemRng

ME = BrokerId(1)
NOBODY = "127.0.0.1:1"  # where no broker is: these members never get to join


def run(scenario: Callable[[Members], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30), Cluster([NOBODY], clock=SystemClock()) as cluster:
            some = Members(ME, Calls(ME, Peers(ME)), lambda: cluster, SystemRng())
            await scenario(some)
            await some.stop()

    asyncio.run(main())


async def opened(some: Members, group: str = "g", **more: Any) -> str:
    return (await some.open(OpenMember(group, ["t"], **more))).id


def test_there_are_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "MEMBERS_MAX", 2)

    async def scenario(some: Members) -> None:
        first = await opened(some)
        await opened(some)
        with pytest.raises(TooManyMembers):
            await opened(some)
        await some.close_member(CloseMember(first, "g"))
        assert len(some) == 1
        await opened(some)

    run(scenario)


def test_a_member_that_nobody_asks_for_is_forgotten() -> None:
    async def scenario(some: Members) -> None:
        await opened(some, expires_ms=10)
        kept = await opened(some, expires_ms=60_000)
        while len(some) == 2:
            await asyncio.sleep(0.005)
        with pytest.raises(NoSuchMember, match="there is no member"):
            await some.commit(CommitMember("1-other", "g"))
        await some.close_member(CloseMember(kept, "g"))

    run(scenario)


def test_a_call_keeps_its_member() -> None:
    async def scenario(some: Members) -> None:
        name = await opened(some, expires_ms=500)
        with cast(Any, some)._find(name, "g"):
            await asyncio.sleep(1.5)  # much longer than it would be kept
            assert len(some) == 1
        while len(some):
            await asyncio.sleep(0.005)

    run(scenario)


@pytest.mark.parametrize("name", ["", "nonsense", "x-1", "1-unknown", "-", "²-1", "9" * 5_000 + "-1"])
def test_a_name_that_is_none_is_told_so(name: str) -> None:
    async def scenario(some: Members) -> None:
        with pytest.raises(NoSuchMember):
            await some.poll(PollMember(name, "g"))

    run(scenario)


def test_a_member_of_another_group_or_of_a_broker_that_is_gone_is_not_found() -> None:
    async def scenario(some: Members) -> None:
        name = await opened(some)
        for asked, group in ((name, "other"), ("7-0123", "g")):
            with pytest.raises(NoSuchMember):
                await some.close_member(CloseMember(asked, group))

    run(scenario)


def test_a_poll_ends_with_whoever_asked() -> None:
    async def scenario(some: Members) -> None:
        waits = Waits()
        polling = asyncio.ensure_future(some.poll(PollMember(await opened(some), "g", wait_ms=60_000), waits))
        while not cast(Any, waits)._waiting:
            await asyncio.sleep(0)
        assert not polling.done()
        waits.end()
        assert (await polling).messages == []

    run(scenario)


def test_a_poll_ends_when_its_member_leaves() -> None:
    async def scenario(some: Members) -> None:
        polling = asyncio.ensure_future(some.poll(PollMember(await opened(some), "g", wait_ms=60_000)))
        while not next(iter(cast(Any, some)._members.values())).consumer._joining:
            await asyncio.sleep(0)
        await some.stop()
        assert (await polling).messages == []

    run(scenario)


def test_after_the_stop_there_are_none() -> None:
    async def scenario(some: Members) -> None:
        await opened(some)
        await some.stop()
        assert len(some) == 0
        with pytest.raises(NoSuchMember, match="stops"):
            await opened(some)

    run(scenario)
