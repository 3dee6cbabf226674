"""Groups: which broker keeps a group, and the verbs of those kept here.

The state of groups lives in an internal compacted topic. A group belongs to one of its partitions by its name, and is
kept by the leader of that partition.
"""

from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from runnel.broker.internal import GROUPS, ImageTopics
from runnel.broker.partitions import Partitions
from runnel.broker.shard import Shard
from runnel.broker.shards import Shards
from runnel.cluster.image import Change, Image
from runnel.groups.shard import GroupShard
from runnel.groups.values import (
    CommitOffsets,
    ConsumerAlive,
    ConsumerHeartbeat,
    DeleteOffsets,
    DescribedConsumerGroup,
    DescribedGroup,
    FetchOffsets,
    GroupConfig,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Left,
    ListedGroup,
    ListGroups,
    OffsetsCommitted,
    OffsetsDeleted,
    OffsetsFetched,
    Sync,
    Synced,
    TopicView,
)
from runnel.model.errors import CoordinatorLoading
from runnel.model.seams import Clock, Rng
from runnel.replica.partition import Partition


class Groups:
    """The coordinator: the shards of the groups' topic that this broker leads."""

    def __init__(self, partitions: Partitions, config: GroupConfig, clock: Clock, rng: Rng) -> None:
        self.shards = Shards(GROUPS, partitions, self._shard)
        self._config = config
        self._clock = clock
        self._rng = rng
        self._topics: ImageTopics

    def start(self, image: Image) -> None:
        self._see(image)

    def follow(self, change: Change) -> None:
        """The image changed: lead new shards, forget the offsets of deleted topics."""
        self._see(change.after)
        for topic_id, topic in change.delta.topics.items():
            if topic is None:
                for shard in self.shards:
                    shard.tell("topic_deleted", topic_id)

    def close(self) -> None:
        self.shards.close()

    def _see(self, image: Image) -> None:
        self._topics = ImageTopics(image)
        self.shards.follow(image)

    def _shard(self, partition: Partition, number: int) -> Shard[TopicView]:
        return Shard(partition, lambda: GroupShard(self._config, self._rng), lambda: self._topics, self._clock)

    async def _ask(self, group_id: str, verb: str, request: Any) -> Any:
        return await self.shards.ask(group_id, verb, request)

    # --- verbs

    async def join(self, request: Join) -> Joined:
        result: Joined = await self._ask(request.group_id, "join", request)
        return result

    async def sync(self, request: Sync) -> Synced:
        result: Synced = await self._ask(request.group_id, "sync", request)
        return result

    async def heartbeat(self, request: Heartbeat) -> None:
        """Say that a member is alive. While its group is being read, that is taken for granted, as in Kafka.

        Sessions begin anew when it has been read, and some clients (aiokafka) end at any other answer.
        """
        with suppress(CoordinatorLoading):
            await self._ask(request.group_id, "heartbeat", request)

    async def leave(self, request: Leave) -> Left:
        result: Left = await self._ask(request.group_id, "leave", request)
        return result

    async def consumer_heartbeat(self, request: ConsumerHeartbeat) -> ConsumerAlive:
        result: ConsumerAlive = await self._ask(request.group_id, "consumer_heartbeat", request)
        return result

    async def commit_offsets(self, request: CommitOffsets) -> OffsetsCommitted:
        result: OffsetsCommitted = await self._ask(request.group_id, "commit_offsets", request)
        return result

    async def fetch_offsets(self, request: FetchOffsets) -> OffsetsFetched:
        result: OffsetsFetched = await self._ask(request.group_id, "fetch_offsets", request)
        return result

    async def delete_offsets(self, request: DeleteOffsets) -> OffsetsDeleted:
        result: OffsetsDeleted = await self._ask(request.group_id, "delete_offsets", request)
        return result

    async def delete(self, group_id: str) -> None:
        await self._ask(group_id, "delete_group", group_id)

    async def describe(self, group_id: str) -> DescribedGroup:
        result: DescribedGroup = await self._ask(group_id, "describe", group_id)
        return result

    async def describe_consumer(self, group_id: str) -> DescribedConsumerGroup:
        result: DescribedConsumerGroup = await self._ask(group_id, "describe_consumer", group_id)
        return result

    async def list(self, request: ListGroups) -> Iterable[ListedGroup]:
        parts = [await shard.ask("list", request) for shard in self.shards]
        return [group for part in parts for group in part]
