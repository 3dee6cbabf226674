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
