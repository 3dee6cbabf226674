"""Talking to a broker from a plain test function."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from runnel.client.cluster import Cluster, ClusterSettings
from runnel.shell.clock import SystemClock
from runnel.shell.rng import SystemRng

T = TypeVar("T")


class OnCluster(Protocol):
    def __call__(self, work: Callable[[Cluster], Awaitable[T]]) -> T: ...


def talk(address: str, work: Callable[[Cluster], Awaitable[T]], settings: ClusterSettings | None = None) -> T:
    """Do the work on a cluster, on an event loop of its own."""

    async def conversation() -> T:
        async with Cluster([address], clock=SystemClock(), rng=SystemRng(), settings=settings) as cluster:
            return await work(cluster)

    return asyncio.run(conversation())
