"""Which answers a coordinator gives while it reads its log."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from runnel.broker.groups import Groups
from runnel.broker.internal import GROUPS, ImageTopics
from runnel.broker.partitions import Partitions
from runnel.broker.shard import Shard
from runnel.cluster.image import Broker, Image, Partition, Topic
from runnel.groups.values import FetchOffsets, GroupConfig, Heartbeat
from runnel.model.errors import CoordinatorLoading, NotCoordinator
from runnel.model.ids import BrokerId, Epoch, Life, PartitionKey, TopicId
from runnel.model.topic_config import TopicConfig
from runnel.shell.clock import SystemClock
from runnel.testing.clock import SeededRng
from runnel.testing.gated_disk import GatedDisk

ME, OTHER = BrokerId(1), BrokerId(2)
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
        groups = Groups(partitions, GroupConfig(), SystemClock(), SeededRng(1), confirm=confirmed)
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

        async def replaced(key: PartitionKey, epoch: Epoch) -> None:
            assert (key, epoch) == (PartitionKey(ID, 0), PLACED.leader_epoch)
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


def test_who_does_not_coordinate_a_group_says_so_without_asking_the_store(tmp_path: Path) -> None:
    async def main() -> None:
        disk = GatedDisk(str(tmp_path))
        partitions = Partitions(ME, TopicConfig(), disk=disk, files_max=10, clock=SystemClock(), on_fatal=_fail)

        async def never(key: PartitionKey, epoch: Epoch) -> None:
            raise AssertionError("the store was asked")

        groups = Groups(partitions, GroupConfig(), SystemClock(), SeededRng(1), confirm=never)
        other = Partition(OTHER, Epoch(0), Epoch(0), (OTHER,), (OTHER,))
        image = replace(IMAGE, topics={ID: Topic(ID, GROUPS, (other,))})
        try:
            await partitions.start(image)
            groups.start(image)
            with pytest.raises(NotCoordinator, match="not kept by this broker"):
                await groups.fetch_offsets(FetchOffsets("g", ()))
        finally:
            disk.close()

    asyncio.run(main())


def test_a_life_is_over_when_its_broker_is_gone_or_lives_anew() -> None:
    topics = ImageTopics(replace(IMAGE, brokers={ME: Broker(ME, {}, epoch=Epoch(5))}))
    over = [topics.is_over(Life(ME, Epoch(epoch))) for epoch in (4, 5, 6)]
    assert over == [True, False, False]  # 6: this image is older than that life
    assert topics.is_over(Life(OTHER, Epoch(5)))


async def confirmed(key: PartitionKey, epoch: Epoch) -> None:
    """The store would say so."""


def _fail(error: BaseException) -> None:
    raise AssertionError(error)
