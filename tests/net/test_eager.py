"""A coroutine started at once behaves as one started by a task."""

import asyncio

import pytest

from runnel.net import eager


def test_what_does_not_wait_needs_no_task() -> None:
    async def main() -> None:
        async def work() -> int:
            return 7

        assert eager.start(work()) == (7, None)

    asyncio.run(main())


def test_what_waits_goes_on_in_a_task() -> None:
    async def main() -> None:
        steps: list[str] = []

        async def work() -> str:
            steps.append("first step")
            await asyncio.sleep(0)
            steps.append("second step")
            await asyncio.sleep(0.001)
            return "done"

        result, task = eager.start(work())
        assert result is None
        assert task is not None
        assert steps == ["first step"]
        assert await task == "done"
        assert steps == ["first step", "second step"]

    asyncio.run(main())


def test_errors_and_cancellation_reach_the_coroutine() -> None:
    async def main() -> None:
        async def fails() -> None:
            raise KeyError("at once")

        with pytest.raises(KeyError):
            eager.start(fails())

        cleaned: list[bool] = []

        async def waits() -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                cleaned.append(True)

        _, task = eager.start(waits())
        assert task is not None
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert cleaned == [True]

    asyncio.run(main())


def test_an_awaited_error_can_be_caught_inside() -> None:
    async def main() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def work() -> str:
            try:
                await future
            except KeyError:
                return "caught"
            return "not raised"

        _, task = eager.start(work())
        future.set_exception(KeyError())
        assert task is not None
        assert await task == "caught"

    asyncio.run(main())


def test_many_may_wait_for_the_same_future() -> None:
    async def main() -> None:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def work() -> int:
            return await future

        tasks = [eager.start(work())[1] for _ in range(3)]
        future.set_result(7)
        assert [await task for task in tasks if task is not None] == [7, 7, 7]

    asyncio.run(main())


def test_side_by_side_gives_all_in_order_and_those_that_wait_wait_together() -> None:
    async def main() -> None:
        begun: list[int] = []

        async def work(number: int) -> int:
            begun.append(number)
            if number % 2:
                await asyncio.sleep(0)
                assert begun == [0, 1, 2, 3]
            return number

        assert await eager.gather_eagerly(work(number) for number in range(4)) == [0, 1, 2, 3]

    asyncio.run(main())


@pytest.mark.parametrize("at_once", [True, False])
def test_nothing_outlives_what_goes_on_side_by_side(at_once: bool) -> None:
    async def main() -> None:
        ended = asyncio.Event()

        async def wait() -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                ended.set()

        async def fail() -> None:
            if not at_once:
                await asyncio.sleep(0)
            raise KeyError

        with pytest.raises(KeyError):
            await eager.gather_eagerly(begin() for begin in ((wait, fail) if at_once else (fail, wait)))
        await asyncio.wait_for(ended.wait(), 60)

    asyncio.run(main())
