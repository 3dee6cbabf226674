"""Groups: which broker keeps a group, and the verbs of those kept here.

The state of groups lives in an internal compacted topic. A group belongs to one of its partitions by its name, and is
kept by the leader of that partition.
"""

import logging
from collections.abc import Collection, Iterable
from contextlib import suppress
from typing import Any

from crc32c import crc32c

from runnel.broker.partitions import Partitions
from runnel.broker.shard import Shard
from runnel.cluster.image import Broker, Change, Image
from runnel.cluster.topic_rules import NewTopic
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
from runnel.model.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    LeaderNotAvailable,
    NotCoordinator,
    NotLeader,
    RunnelError,
)
from runnel.model.ids import TopicId
from runnel.model.limits import MIB
from runnel.model.seams import Clock, Rng
from runnel.replica.partition import Partition

TOPIC = "__consumer_offsets"
TOPIC_CONFIG = {
    "cleanup.policy": "compact",
    "segment.bytes": str(64 * MIB),  # small, so that compaction begins early and a start reads little
    "max.message.bytes": str(64 * MIB),  # one decision about a group of thousands is one record
}

REPLICAS_SAFE = 3  # with so many, one may be missing and two still must have what was committed

logger = logging.getLogger("runnel.groups")


def groups_topic(image: Image, partitions: int) -> NewTopic:
    """The topic of groups, for a cluster with as many brokers as this one."""
    replicas = min(REPLICAS_SAFE, max(1, sum(broker.serving for broker in image.brokers.values())))
    safety = {"min.insync.replicas": str(REPLICAS_SAFE - 1)} if replicas == REPLICAS_SAFE else {}
    return NewTopic(TOPIC, partitions, replicas, config={**TOPIC_CONFIG, **safety})


class ImageTopics:
    """The topics of an image, as groups like to see them."""

    def __init__(self, image: Image) -> None:
        self._image = image

    @property
    def version(self) -> int:
        return self._image.version

    def names(self) -> Collection[str]:
        """Without internal topics: a pattern that matches everything does not mean them."""
        return self._image.names.keys() - {TOPIC}

    def id_of(self, name: str) -> TopicId | None:
        return self._image.names.get(name)

    def name_of(self, topic_id: TopicId) -> str | None:
        topic = self._image.topics.get(topic_id)
        return None if topic is None else topic.name

    def partition_count(self, topic_id: TopicId) -> int:
        topic = self._image.topics.get(topic_id)
        return 0 if topic is None else len(topic.partitions)


class Groups:
    """The coordinator: the shards of the groups' topic that this broker leads."""

    def __init__(self, partitions: Partitions, config: GroupConfig, clock: Clock, rng: Rng) -> None:
        self._partitions = partitions
        self._config = config
        self._clock = clock
        self._rng = rng
        self._shards: dict[int, Shard[TopicView]] = {}
        self._image: Image
        self._topics: ImageTopics

    def start(self, image: Image) -> None:
        self._see(image)
        self.open_shards()

    def follow(self, change: Change) -> None:
        """The image changed: lead new shards, forget the offsets of deleted topics."""
        self._see(change.after)
        self.open_shards()
        for topic_id, topic in change.delta.topics.items():
            if topic is None:
                for shard in self._shards.values():
                    shard.tell("topic_deleted", topic_id)

    def close(self) -> None:
        for shard in self._shards.values():
            shard.close()

    def _see(self, image: Image) -> None:
        self._image = image
        self._topics = ImageTopics(image)

    def open_shards(self) -> None:
        """Keep the shards whose partitions are led here, each in the epoch in which it is; no others."""
        topic = self._image.topic(TOPIC)
        for number in range(len(topic.partitions) if topic else 0):
            partition = self._led(number)
            shard = self._shards.get(number)
            if shard is not None and not shard.belongs_to(partition):
                del self._shards[number]
                shard.close()
            if partition is not None and number not in self._shards:
                self._shards[number] = Shard(
                    partition, lambda: GroupShard(self._config, self._rng), lambda: self._topics, self._clock
                )
                self._shards[number].open()

    def _led(self, number: int) -> Partition | None:
        try:
            return self._partitions.find(TOPIC, number)
        except (NotLeader, LeaderNotAvailable):
            return None
        except RunnelError as error:
            logger.warning("groups of %s-%d can't be served: %s", TOPIC, number, error)
            return None

    # --- who keeps what

    def coordinator_of(self, group_id: str) -> Broker:
        """The broker that keeps a group; there must be a topic for groups."""
        topic = self._image.topic(TOPIC)
        if topic is None:
            raise CoordinatorNotAvailable(f"the topic {TOPIC} is not there yet: try again")
        partition = topic.partitions[shard_number(group_id, len(topic.partitions))]
        broker = self._image.brokers.get(partition.leader)
        if broker is None:
            raise CoordinatorNotAvailable(f"the coordinator of group {group_id!r} is not alive: try again")
        return broker

    def _shard(self, group_id: str) -> Shard[TopicView]:
        topic = self._image.topic(TOPIC)
        shard = self._shards.get(shard_number(group_id, len(topic.partitions))) if topic else None
        if shard is None:
            raise NotCoordinator(f"group {group_id!r} is not kept by this broker: find its coordinator")
        return shard

    async def _ask(self, group_id: str, verb: str, request: Any) -> Any:
        return await self._shard(group_id).ask(verb, request)

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
        parts = [await shard.ask("list", request) for shard in self._shards.values()]
        return [group for part in parts for group in part]


def shard_number(group_id: str, shards: int) -> int:
    """Stable for ever: the place of a group's records depends on it."""
    return int(crc32c(group_id.encode())) % shards
