"""A loop in a thread: nobody waits for ever, and what is interrupted has ended."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Iterator

import pytest

from runnel.shell.background import LoopClosed, LoopThread

LIMIT_S = 30  # only ends what hangs


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    loop = LoopThread()
    yield loop
    loop.close()


async def never() -> None:
    await asyncio.Event().wait()


def test_what_comes_of_it_comes_here(loop: LoopThread) -> None:
    async def answer(fault: Exception | None) -> int:
        if fault is not None:
            raise fault
        return 42

    assert loop.run(answer(None)) == 42
    with pytest.raises(ZeroDivisionError):
        loop.run(answer(ZeroDivisionError()))


def test_who_waits_when_the_loop_is_closed_is_told(loop: LoopThread) -> None:
    told: list[BaseException] = []
    begun = threading.Event()

    async def waiting() -> None:
        begun.set()
        await never()

    def wait() -> None:
        try:
            loop.run(waiting())
        except LoopClosed as error:
            told.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    assert begun.wait(LIMIT_S)
    loop.close()
    thread.join(LIMIT_S)
    assert [str(error) for error in told] == ["this client was closed: make a new one"]


def test_who_comes_after_the_end_is_told(loop: LoopThread) -> None:
    loop.close()
    with pytest.raises(LoopClosed, match="make a new one"):
        loop.run(never())


def test_what_is_read_half_is_closed_with_the_loop(loop: LoopThread) -> None:
    closed = threading.Event()

    async def numbers() -> AsyncGenerator[int, None]:
        try:
            for n in range(10):
                yield n
        finally:
            closed.set()

    reading = loop.each(numbers())
    assert next(reading) == 0
    loop.close()
    assert closed.is_set()
    with pytest.raises(LoopClosed):
        next(reading)


def test_an_interrupted_reader_hears_of_the_interrupt_when_all_is_closed(
    loop: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, closed = threading.Event(), threading.Event()

    async def nothing() -> AsyncGenerator[int, None]:
        try:
            begun.set()
            await never()
            yield 0
        finally:
            await asyncio.sleep(0.01)  # closing takes its time
            closed.set()

    def interrupted(self: object, timeout: float | None = None) -> None:
        assert begun.wait(LIMIT_S)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr("concurrent.futures.Future.result", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(loop.each(nothing()))
    assert closed.is_set()
