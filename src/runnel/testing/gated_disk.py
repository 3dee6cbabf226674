"""A real disk whose syncs a test can hold up."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from runnel.shell.disk import RealDisk

T = TypeVar("T")


class GatedDisk(RealDisk):
    """Work off the loop waits at a gate, once a test has shut it."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0  # works at the gate

    async def offload(self, work: Callable[[], T]) -> T:
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        return await super().offload(work)
