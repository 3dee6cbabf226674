"""The worker of a log: whatever a step or a job raises, nobody waits for ever."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from runnel.log.worker import Step, Worker
from runnel.model.errors import Fatal, StorageFailed


class Rig:
    """A worker, the steps that are due before its jobs, and what it told."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.fatal: list[Fatal] = []
        self.refused: list[OSError] = []
        self.worker = Worker(self._due, self.refused.append, self.fatal.append)

    def _due(self) -> Step | None:
        return self.steps.pop(0) if self.steps else self.worker.next_job


def raising(error: BaseException) -> Callable[[], Awaitable[Any]]:
    async def work() -> None:
        raise error

    return work


async def fine() -> str:
    return "fine"


def run(scenario: Callable[[Rig], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(30):
            await scenario(Rig())

    asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "told"),
    [(KeyError("x"), KeyError), (OSError(5, "no", "f"), StorageFailed), (StorageFailed("no"), StorageFailed)],
)
def test_a_job_that_fails_costs_itself_alone(error: Exception, told: type[Exception]) -> None:
    async def scenario(rig: Rig) -> None:
        failing = asyncio.ensure_future(rig.worker.run(raising(error)))
        good = asyncio.ensure_future(rig.worker.run(fine))
        with pytest.raises(told):
            await failing
        assert await good == "fine"
        assert (rig.fatal, rig.refused, rig.worker.fatal) == ([], [], None)

    run(scenario)


def test_a_job_that_was_cancelled_is_waited_for_by_nobody() -> None:
    async def scenario(rig: Rig) -> None:
        with pytest.raises(asyncio.CancelledError):
            await rig.worker.run(raising(asyncio.CancelledError()))
        assert await rig.worker.run(fine) == "fine"

    run(scenario)


@pytest.mark.parametrize("error", [KeyError("x"), Fatal("sync")])
def test_an_error_that_nobody_foresaw_in_a_step_is_fatal(error: Exception) -> None:
    async def scenario(rig: Rig) -> None:
        rig.steps.append(raising(error))
        with pytest.raises(Fatal) as raised:
            await rig.worker.run(fine)
        assert rig.fatal == [raised.value]
        assert error in (raised.value, raised.value.__cause__)
        with pytest.raises(Fatal):
            await rig.worker.run(fine)
        assert not rig.worker.busy

    run(scenario)


def test_a_job_that_is_fatal_ends_all() -> None:
    async def scenario(rig: Rig) -> None:
        jobs = [asyncio.ensure_future(rig.worker.run(work)) for work in (raising(Fatal("sync")), fine)]
        await asyncio.wait(jobs)
        assert [type(job.exception()) for job in jobs] == [Fatal, Fatal]
        assert len(rig.fatal) == 1

    run(scenario)


def test_after_the_last_job_none_is_taken_but_those_that_wait_are_done() -> None:
    async def scenario(rig: Rig) -> None:
        done: list[str] = []

        async def job(name: str) -> None:
            await asyncio.sleep(0)
            done.append(name)

        def over() -> StorageFailed:
            return StorageFailed("closed")

        waiting = asyncio.ensure_future(rig.worker.run(lambda: job("before")))
        await asyncio.sleep(0)
        last = asyncio.ensure_future(rig.worker.finish(lambda: job("last"), over))
        await asyncio.sleep(0)
        with pytest.raises(StorageFailed, match="closed"):
            await rig.worker.run(lambda: job("after"))
        await asyncio.gather(waiting, last)
        with pytest.raises(StorageFailed, match="closed"):
            await rig.worker.run(lambda: job("after"))
        await rig.worker.finish(lambda: job("last again"), over)
        assert done == ["before", "last", "last again"]

    run(scenario)
