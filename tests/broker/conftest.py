"""Partitions for the verbs to work on."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

import pytest

from runnel.cluster.image import Partition as PartitionImage
from runnel.model.ids import BrokerId, Epoch, PartitionKey, TopicId
from runnel.model.topic_config import FlushMode, TopicConfig
from runnel.replica.partition import Partition
from runnel.shell.clock import SystemClock
from runnel.testing.gated_disk import GatedDisk

OpenPartition: TypeAlias = Callable[..., Coroutine[Any, Any, Partition]]
Scenario: TypeAlias = Callable[[OpenPartition, GatedDisk], Coroutine[Any, Any, None]]


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Scenario], None]:
    """Run a scenario with a disk and a function that opens partitions on it: open(number, **topic settings)."""

    def runner(scenario: Scenario) -> None:
        asyncio.run(_run(tmp_path, scenario))

    return runner


ME = BrokerId(1)


async def _run(folder: Path, scenario: Scenario) -> None:
    disk = GatedDisk(str(folder))
    opened: list[Partition] = []

    async def open_partition(number: int = 0, **settings: Any) -> Partition:
        partition = await Partition.open(
            "t", PartitionKey(TopicId(UUID(int=1)), number), f"p{number}",
            TopicConfig(**{"flush_mode": FlushMode.OS, **settings}),
            me=ME, disk=disk, clock=SystemClock(), on_fatal=_fail,
        )  # fmt: skip
        await partition.apply(PartitionImage(ME, Epoch(2), Epoch(0), (ME,), (ME,)))
        opened.append(partition)
        return partition

    try:
        await asyncio.wait_for(scenario(open_partition, disk), 60)
        disk.gate.set()
        for partition in opened:
            await partition.close()
    finally:
        disk.gate.set()
        disk.close()


def _fail(error: BaseException) -> None:
    raise AssertionError(error)
