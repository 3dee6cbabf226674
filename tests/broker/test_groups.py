"""Which answers a coordinator gives while it reads its log."""

import asyncio
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from runnel.broker.groups import Groups
from runnel.broker.internal import GROUPS
from runnel.broker.partitions import Partitions
from runnel.broker.shard import Shard
from runnel.cluster.image import Broker, Image, Partition, Topic
from runnel.groups.values import FetchOffsets, GroupConfig, Heartbeat
from runnel.model.errors import CoordinatorLoading, NotCoordinator
from runnel.model.ids import BrokerId, Epoch, TopicId
from runnel.model.topic_config import TopicConfig
from runnel.shell.clock import SystemClock
from runnel.testing.clock import SeededRng
from runnel.testing.gated_disk import GatedDisk

ME = BrokerId(1)
ID = TopicId(UUID(int=3))
PLACED = Partition(ME, Epoch(0), Epoch(0), (ME,), (ME,))
IMAGE = Image("c", brokers={ME: Broker(ME, {})}, topics={ID: Topic(ID, GROUPS, (PLACED,))}, names={GROUPS: ID})


def test_while_a_group_is_read_its_members_are_taken_to_be_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(shard: Shard[Any]) -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        disk = GatedDisk(str(tmp_path))
        partitions = Partitions(ME, TopicConfig(), disk=disk, files_max=10, clock=SystemClock(), on_fatal=_fail)
        groups = Groups(partitions, GroupConfig(), SystemClock(), SeededRng(1))
        try:
            await partitions.start(IMAGE)
            groups.start(IMAGE)
            await groups.heartbeat(Heartbeat("g", 1, "m"))
            with pytest.raises(CoordinatorLoading):
                await groups.fetch_offsets(FetchOffsets("g", ()))
            groups.close()
            await partitions.close()
        finally:
            disk.close()

    monkeypatch.setattr(Shard, "load", never)
    asyncio.run(main())


def test_offsets_are_told_by_who_has_made_sure_that_it_coordinates(tmp_path: Path) -> None:
    async def main() -> None:
        disk = GatedDisk(str(tmp_path))
        partitions = Partitions(ME, TopicConfig(), disk=disk, files_max=10, clock=SystemClock(), on_fatal=_fail)

        async def replaced() -> None:
            raise NotCoordinator("another leads, and has committed more")

        groups = Groups(partitions, GroupConfig(), SystemClock(), SeededRng(1), confirm=replaced)
        try:
            await partitions.start(IMAGE)
            groups.start(IMAGE)
            await groups.shards.numbered(0).opened()
            with pytest.raises(NotCoordinator, match="another leads"):
                await groups.fetch_offsets(FetchOffsets("g", ()))
            assert not (await groups.known_offsets(FetchOffsets("g", ()))).offsets
            groups.close()
            await partitions.close()
        finally:
            disk.close()

    asyncio.run(main())


def _fail(error: BaseException) -> None:
    raise AssertionError(error)
