"""Budgets that connections share: room is given in the order in which it was asked for, and given back."""

import asyncio

from runnel.net.bounds import Bounds


def test_room_is_given_in_the_order_in_which_it_was_asked_for() -> None:
    async def scenario() -> None:
        bounds, inside = Bounds(recompressed=100), []
        budget = bounds.recompressed
        leave = {name: asyncio.Event() for name in "abce"}

        async def use(name: str, wanted: int) -> None:
            async with bounds.room(budget, wanted, "recompressed-bytes-max"):
                inside.append(name)
                await leave[name].wait()
            inside.remove(name)

        wanted = {"a": 60, "b": 100, "c": 10, "e": 10}
        tasks = {name: asyncio.ensure_future(use(name, size)) for name, size in wanted.items()}
        for _ in range(5):
            await asyncio.sleep(0)
        assert inside == ["a"]  # b waits for all there is; c and e wait behind it
        tasks["b"].cancel()
        await asyncio.wait([tasks["b"]])
        for _ in range(5):
            await asyncio.sleep(0)
        assert inside == ["a", "c", "e"]
        tasks["a"].cancel()
        await asyncio.wait([tasks["a"]])
        async with bounds.room(budget, 80, "recompressed-bytes-max"):
            pass
        for event in leave.values():
            event.set()
        await asyncio.wait(tasks.values())
        assert budget.used == 0
        assert bounds.met == {"recompressed-bytes-max": 3}  # b, c and e had to wait

    asyncio.run(asyncio.wait_for(scenario(), 60))
