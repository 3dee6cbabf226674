"""Work that goes on as long as the broker."""

import asyncio

import pytest

from runnel.broker import standing
from runnel.broker.standing import failure_of, persist, stand


def test_its_failure_is_the_brokers_and_its_end_is_not() -> None:
    async def main() -> None:
        told: list[BaseException] = []
        trouble = KeyError("nobody thought of this")

        async def fail() -> None:
            raise trouble

        failed, cancelled = stand(fail(), told.append), stand(asyncio.sleep(3600), told.append)
        await asyncio.wait([failed])
        cancelled.cancel()
        await asyncio.wait([cancelled])
        assert told == [trouble]

    asyncio.run(main())


def test_what_persists_begins_again_until_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(standing, "PAUSE_S", 0)
        failures: list[Exception] = [KeyError("first"), OSError("second")]
        made_good: list[Exception] = []

        async def work() -> None:
            if len(made_good) < len(failures):
                raise failures[len(made_good)]

        await persist(work, "the work", made_good.append)
        assert made_good == failures

    asyncio.run(main())


def test_whoever_is_cancelled_leaves_when_the_work_has_ended() -> None:
    async def main() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            begun.set()
            try:
                await asyncio.sleep(3600)
            finally:
                await asyncio.sleep(0)
                ended.set()

        waiting = asyncio.ensure_future(failure_of(work()))
        await begun.wait()
        waiting.cancel()
        await asyncio.wait([waiting])
        assert waiting.cancelled()
        assert ended.is_set()
        assert await failure_of(asyncio.sleep(0)) is None

    asyncio.run(main())
