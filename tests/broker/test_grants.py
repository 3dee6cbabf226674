"""Messages that are out with one consumer: no more than granted, and looked after no more often than needed."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, cast

from runnel.broker.calls import Calls
from runnel.broker.fetch import Waits
from runnel.broker.grants import LOOK_S_MAX, LOOK_S_MIN, Grants, look_after_s
from runnel.model.calls import QUEUE_EXTEND, QUEUE_RECEIVE, Delivered, Extend, Failure, Receive, Received, Settled
from runnel.model.ids import BrokerId

LIMIT_S = 30.0
ME = BrokerId(1)


class Queue:
    """A queue with messages without end, as the calls to it."""

    def __init__(self) -> None:
        self.given = 0
        self.looks = 0
        self.lost: set[str] = set()  # receipts that are not leased any more

    async def ask(self, broker: BrokerId, verb: Any, asked: Any, **_: Any) -> Any:
        await asyncio.sleep(0)
        if verb is QUEUE_RECEIVE:
            return Received([self._message() for _ in range(cast(Receive, asked).messages_max)])
        if verb is QUEUE_EXTEND:
            self.looks += 1
            lost = Failure("LeaseLost", "it was settled")
            return Settled([lost if receipt in self.lost else None for receipt in cast(Extend, asked).receipts])
        return Settled([None for _ in asked.settlements])

    def _message(self) -> Delivered:
        self.given += 1
        return Delivered(f"r{self.given}", "t", 0, self.given, 0, None, b"", [], 1, 0)


def run(scenario: Callable[[Queue, Waits, Grants], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        queue, waits = Queue(), Waits()
        async with asyncio.timeout(LIMIT_S), Grants(cast(Calls, queue), ME, "q", 600_000, 2, waits) as grants:
            assert len(await grants.receive(10, LIMIT_S)) == 2
            await scenario(queue, waits, grants)

    asyncio.run(main())


def test_who_has_all_that_was_granted_waits_for_room_and_not_shorter() -> None:
    async def scenario(queue: Queue, waits: Waits, grants: Grants) -> None:
        receiving = asyncio.ensure_future(grants.receive(10, 2 * LIMIT_S))
        while queue.looks < 2:
            await asyncio.sleep(0.01)
        assert not receiving.done()
        queue.lost = {"r1"}  # somebody settled it elsewhere
        assert [one.receipt for one in await receiving] == ["r3"]

    run(scenario)


def test_a_greater_grant_is_room_at_once() -> None:
    async def scenario(queue: Queue, waits: Waits, grants: Grants) -> None:
        receiving = asyncio.ensure_future(grants.receive(10, 2 * LIMIT_S))
        await asyncio.sleep(0)
        grants.grant(5)
        assert len(await receiving) == 3

    run(scenario)


def test_a_wait_for_room_ends_with_the_consumer() -> None:
    async def scenario(queue: Queue, waits: Waits, grants: Grants) -> None:
        receiving = asyncio.ensure_future(grants.receive(10, 2 * LIMIT_S))
        await asyncio.sleep(0)
        waits.end()
        assert await receiving == []

    run(scenario)


def test_looks_become_rare() -> None:
    assert [look_after_s(full_s) for full_s in (0, 1, 10, 1_000)] == [LOOK_S_MIN, LOOK_S_MIN, 1.0, LOOK_S_MAX]
