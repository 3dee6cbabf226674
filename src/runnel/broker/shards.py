"""The shards of one coordinator's topic that this broker leads, and who leads the others.

What a coordinator keeps belongs to one partition of its topic by its name, and is kept by that partition's leader.
"""

import logging
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from crc32c import crc32c

from runnel.broker.partitions import Partitions
from runnel.broker.shard import Shard
from runnel.broker.unserved import Unserved
from runnel.cluster.image import Broker, Image
from runnel.cluster.image import Partition as PartitionImage
from runnel.model.errors import CoordinatorNotAvailable, LeaderNotAvailable, NotCoordinator, NotLeader, RunnelError
from runnel.model.ids import Epoch, PartitionKey
from runnel.replica.partition import Partition

logger = logging.getLogger("runnel.coordinator")
V = TypeVar("V")


class Shards(Generic[V]):
    """One shard for each partition that is led here."""

    def __init__(self, topic: str, partitions: Partitions, new_shard: Callable[[Partition, int], Shard[V]]) -> None:
        self.topic = topic
        self._partitions = partitions
        self._new_shard = new_shard
        self._shards: dict[int, Shard[V]] = {}
        self._image: Image

    def follow(self, image: Image) -> None:
        self._image = image
        self.open()

    def open(self) -> None:
        """Keep the shards whose partitions are led here, each in the epoch in which it is; no others."""
        topic = self._image.topic(self.topic)
        for number in range(len(topic.partitions) if topic else 0):
            partition = self._led(number)
            shard = self._shards.get(number)
            if shard is not None and not shard.belongs_to(partition):
                del self._shards[number]
                shard.close()
            if partition is not None and number not in self._shards:
                self._shards[number] = self._new_shard(partition, number)
                self._shards[number].open()

    def close(self) -> None:
        for shard in self._shards.values():
            shard.close()

    def __iter__(self) -> Iterator[Shard[V]]:
        return iter(list(self._shards.values()))

    def unserved(self) -> Iterator[Unserved]:
        """The shards that are led here, or should be, and that do not serve."""
        topic = self._image.topic(self.topic)
        for number, error in self._partitions.failures(topic) if topic else ():
            yield Unserved(self.topic, number, error)
        for number, shard in self._shards.items():
            if not shard.loaded and not shard.lost:
                yield Unserved(self.topic, number, shard.trouble)

    def _led(self, number: int) -> Partition | None:
        try:
            return self._partitions.find(self.topic, number)
        except (NotLeader, LeaderNotAvailable):
            return None
        except RunnelError as error:
            logger.warning("what %s-%d keeps can't be served: %s", self.topic, number, error)
            return None

    # --- who keeps what

    def number_of(self, name: str) -> int:
        """The partition that keeps this; there must be the topic."""
        topic = self._image.topic(self.topic)
        if topic is None:
            raise CoordinatorNotAvailable(f"the topic {self.topic} is not there yet: try again")
        return shard_number(name, len(topic.partitions))

    def key_of(self, name: str) -> PartitionKey:
        """The same, whatever the topic may be called."""
        return PartitionKey(self._image.topic_named(self.topic).id, self.number_of(name))

    def leader_of(self, name: str) -> Broker:
        """The broker that keeps this; there must be the topic."""
        broker = self._image.brokers.get(self._partition_of(name).leader)
        if broker is None:
            raise CoordinatorNotAvailable(f"the coordinator of {name!r} is not alive: try again")
        return broker

    def epoch_of(self, name: str) -> Epoch:
        """The epoch of the broker that keeps this; there must be the topic."""
        return self._partition_of(name).leader_epoch

    def _partition_of(self, name: str) -> PartitionImage:
        number = self.number_of(name)
        return self._image.topic_named(self.topic).partitions[number]

    def of(self, name: str) -> Shard[V]:
        """The shard that keeps this, if that is here."""
        topic = self._image.topic(self.topic)
        shard = self._shards.get(shard_number(name, len(topic.partitions))) if topic else None
        if shard is None:
            raise NotCoordinator(f"{name!r} is not kept by this broker: find its coordinator")
        return shard

    def numbered(self, number: int) -> Shard[V]:
        """The shard of a partition, if that is led here."""
        shard = self._shards.get(number)
        if shard is None:
            raise NotLeader(f"{self.topic}-{number} is not led by this broker: ask its leader")
        return shard

    async def ask(self, name: str, verb: str, request: Any) -> Any:
        return await self.of(name).ask(verb, request)


def shard_number(name: str, shards: int) -> int:
    """Stable for ever: the place of a coordinator's records depends on it."""
    return int(crc32c(name.encode())) % shards
