"""Long work in short parts."""

import asyncio
from itertools import pairwise

from runnel.broker.turns import TURN, by_turns, side_by_side


def test_others_have_the_loop_in_between() -> None:
    async def main() -> None:
        seen: list[int] = []
        looked: list[int] = []

        async def other() -> None:
            while len(seen) < 10 * TURN:
                looked.append(len(seen))
                await asyncio.sleep(0)

        watching = asyncio.ensure_future(other())
        async for item in by_turns(range(10 * TURN)):
            seen += [item]
        await watching
        assert seen == list(range(10 * TURN))
        assert len(looked) >= 9
        assert all(after - before <= TURN for before, after in pairwise(looked))

    asyncio.run(main())


def test_so_many_are_done_at_once_and_no_more() -> None:
    async def main() -> None:
        under_way, most = 0, 0

        async def work(item: int) -> int:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(0)
            under_way -= 1
            return item * item

        assert sorted(await side_by_side(range(20), work, 8)) == [number * number for number in range(20)]
        assert most == 8

    asyncio.run(main())
