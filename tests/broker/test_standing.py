"""Work that goes on as long as the broker."""

import asyncio

from runnel.broker.standing import stand


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
