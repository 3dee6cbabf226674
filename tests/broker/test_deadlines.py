"""Waits end at their time, by one timer for all."""

import asyncio

from runnel.broker.deadlines import TICKS_PER_S, Deadlines


class Waiter:
    def __init__(self) -> None:
        self.ended_at: list[float] = []
        self.over = asyncio.Event()

    def end(self) -> None:
        self.ended_at.append(asyncio.get_running_loop().time())
        self.over.set()


def test_each_is_ended_at_its_time_and_not_before() -> None:
    async def scenario() -> None:
        deadlines, loop = Deadlines(), asyncio.get_running_loop()
        now = loop.time()
        waits = [(now + after_s, Waiter()) for after_s in (0.30, 0.05, 0.0, 0.05, 0.011, 0.12)]
        for deadline, waiter in waits:
            deadlines.begin(waiter, deadline)
        for _, waiter in waits:
            await waiter.over.wait()
        for deadline, waiter in waits:
            assert len(waiter.ended_at) == 1
            assert waiter.ended_at[0] >= deadline
        order = sorted(waits, key=lambda one: one[1].ended_at)
        ticks = [-(-deadline * TICKS_PER_S // 1) for deadline, _ in order]
        assert ticks == sorted(ticks)
        assert not deadlines._at
        assert not deadlines._ticks
        assert deadlines._timer is None

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_who_left_is_not_ended() -> None:
    async def scenario() -> None:
        deadlines, loop = Deadlines(), asyncio.get_running_loop()
        left, stays = Waiter(), Waiter()
        tick = deadlines.begin(left, loop.time() + 0.02)
        deadlines.begin(stays, loop.time() + 0.1)
        deadlines.done(left, tick)
        deadlines.done(left, tick)  # nothing happens
        await stays.over.wait()
        assert left.ended_at == []
        deadlines.done(stays, tick + 1_000)  # its tick is gone

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_many_need_one_timer() -> None:
    async def scenario() -> None:
        deadlines, loop = Deadlines(), asyncio.get_running_loop()
        armed = 0
        call_at = loop.call_at

        def counted(*arguments: object, **options: object) -> asyncio.TimerHandle:
            nonlocal armed
            armed += 1
            return call_at(*arguments, **options)  # type: ignore[arg-type]

        loop.call_at = counted  # type: ignore[method-assign]
        waiters = [Waiter() for _ in range(1_000)]
        deadline = loop.time() + 0.05
        for waiter in waiters:
            deadlines.begin(waiter, deadline)
        for waiter in waiters:
            await waiter.over.wait()
        assert armed <= 2

    asyncio.run(asyncio.wait_for(scenario(), 60))


def test_all_can_be_ended_at_once() -> None:
    async def scenario() -> None:
        deadlines, loop = Deadlines(), asyncio.get_running_loop()
        waiters = [Waiter() for _ in range(3)]
        for seconds, waiter in enumerate(waiters, 100):
            deadlines.begin(waiter, loop.time() + seconds)
        deadlines.end_all()
        assert all(waiter.ended_at for waiter in waiters)

    asyncio.run(asyncio.wait_for(scenario(), 60))
