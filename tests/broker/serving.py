"""A whole broker in the test's own process, for tests that look at its parts while it works."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from runnel.broker.broker import Broker
from runnel.broker.config import Address, BrokerConfig
from runnel.cluster.embedded import Embedded
from runnel.cluster.store import Store
from runnel.server import Machine, Server
from runnel.shell.clock import SystemClock
from runnel.shell.disk import RealDisk
from runnel.shell.rng import SystemRng

LIMIT_S = 60.0


def serve(folder: Path, scenario: Callable[[Broker], Awaitable[None]]) -> None:
    """Run a scenario on a broker that is alone, without an HTTP door."""
    asyncio.run(_serve(folder, scenario))


async def _serve(folder: Path, scenario: Callable[[Broker], Awaitable[None]]) -> None:
    disk = RealDisk(str(folder))

    async def open_store() -> Store:
        return await Embedded.open(disk, str(folder))

    def fatal(error: BaseException) -> None:
        raise AssertionError(error)

    config = BrokerConfig(data=str(folder), kafka=Address("127.0.0.1", 0), http=None)
    server = Server(config, Machine(disk, SystemClock(), SystemRng(), open_store), fatal)
    try:
        await server.start()
        await asyncio.wait_for(scenario(server.broker), LIMIT_S)
        await server.stop()
    finally:
        await server.abandon()
        disk.close()


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait for it."""
    end = asyncio.get_running_loop().time() + LIMIT_S
    while not holds():
        assert asyncio.get_running_loop().time() < end
        await asyncio.sleep(0.005)
