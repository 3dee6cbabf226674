"""The loop is held, and somebody says so."""

import asyncio
import time

import pytest

from runnel.broker.watchdog import NAP_MS, QUIET_MS, STALL_MS, Watchdog
from runnel.shell.clock import SystemClock
from runnel.testing.clock import ManualClock


def fail(error: BaseException) -> None:
    raise AssertionError(error)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "runnel.watchdog"]


def test_a_loop_that_was_held_is_told(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        dog = Watchdog(SystemClock(), fail)
        dog.start()
        await asyncio.sleep(0)
        time.sleep((NAP_MS + STALL_MS + 100) / 1000)  # noqa: ASYNC251  (that is the point)
        while not dog.stalls:
            await asyncio.sleep(0.01)
        await dog.stop()

    asyncio.run(main())
    [line] = lines(caplog)
    assert "the loop was held for" in line


class Nap:
    """Naps of a watchdog that a test ends, each as late as the test says."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.dog = Watchdog(self.clock, fail)

    def end(self, late_ms: int = 0) -> None:
        self.clock.advance(NAP_MS + late_ms)
        self.dog._awoke(late_ms)


def test_a_nap_that_ends_in_time_is_no_stall(caplog: pytest.LogCaptureFixture) -> None:
    nap = Nap()
    for _ in range(2 * QUIET_MS // NAP_MS):
        nap.end(STALL_MS)
    assert lines(caplog) == []
    assert nap.dog.stalls == 0


def test_however_often_it_is_held_few_lines_tell_of_all(caplog: pytest.LogCaptureFixture) -> None:
    nap = Nap()
    nap.end(300)
    assert len(lines(caplog)) == 1
    for late_ms in (500, 700, 600):
        nap.end(late_ms)
    assert len(lines(caplog)) == 1
    while len(lines(caplog)) == 1:
        nap.end()
    assert "3 times, at the longest for 700 ms" in lines(caplog)[1]
    for _ in range(2 * QUIET_MS // NAP_MS):
        nap.end()
    assert len(lines(caplog)) == 2
    assert nap.dog.stalls == 4
