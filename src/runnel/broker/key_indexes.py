"""The indexes of keys of one topic: one for each of its partitions that this broker holds, whatever its role."""

import asyncio
from collections.abc import Iterator
from typing import Final

from runnel.broker.key_index import KeyIndex
from runnel.broker.messages import Messages
from runnel.broker.partitions import Partitions
from runnel.broker.unserved import Unserved
from runnel.cluster.image import Image, Topic
from runnel.log.files import Files
from runnel.model.errors import NotLeader
from runnel.model.ids import PartitionKey
from runnel.model.seams import Disk

FOLDER: Final = "keys"
FILES_MAX: Final = 256  # runs that are open


class KeyIndexes:
    """They follow the image."""

    def __init__(self, topic: str, partitions: Partitions, disk: Disk, messages: Messages) -> None:
        self._name = topic
        self._partitions = partitions
        self._disk = disk
        self._messages = messages
        self._files = Files(disk, files_max=FILES_MAX)
        self._indexes: dict[PartitionKey, KeyIndex] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self.topic: Topic | None = None
        self._numbered: list[KeyIndex | None] = []  # by partition of the topic

    def follow(self, image: Image) -> None:
        """Index what is here now, forget what is not."""
        topic_id = image.names.get(self._name)
        self.topic = topic = image.topics[topic_id] if topic_id is not None else None
        count = 0 if topic is None else len(topic.partitions)
        keys = [PartitionKey(topic.id, number) for number in range(count)] if topic is not None else []
        here = {key: partition for key in keys if (partition := self._partitions.opened(key)) is not None}
        for key in [key for key, index in self._indexes.items() if here.get(key) is not index.partition]:
            self._end(key, remove=key.topic_id not in image.topics)
        for key, partition in here.items():
            if key not in self._indexes:
                index = KeyIndex(partition, f"{FOLDER}/{key}", self._disk, self._files, self._messages)
                self._indexes[key] = index
                index.start()
        self._numbered = [self._indexes.get(key) for key in keys]

    def at(self, number: int) -> KeyIndex | None:
        """That of a partition of the topic as it is now, if it is here."""
        return self._numbered[number] if number < len(self._numbered) else None

    def get(self, key: PartitionKey) -> KeyIndex | None:
        return self._indexes.get(key)

    def led(self, key: PartitionKey) -> KeyIndex:
        """The index of a partition that is led here; the error says why there is none."""
        self._partitions.find_by_id(key.topic_id, key.number)
        index = self._indexes.get(key)
        if index is None:
            raise NotLeader(f"{self._name}-{key.number} is just being opened: try again")
        return index

    def unserved(self) -> Iterator[Unserved]:
        """The indexes of partitions that are led here, and that can't follow them."""
        for number, error in self._partitions.failures(self.topic) if self.topic else ():
            yield Unserved(self._name, number, error)
        for key, index in self._indexes.items():
            if index.trouble is not None and index.partition.is_leader:
                yield Unserved(self._name, key.number, index.trouble)

    def wake_all(self) -> None:
        for index in self._indexes.values():
            index.wake_all()

    async def stop(self) -> None:
        for index in self._indexes.values():
            await index.stop()
        if self._ending:
            await asyncio.wait(self._ending)

    def _end(self, key: PartitionKey, *, remove: bool) -> None:
        index = self._indexes.pop(key)
        self._messages.forget(index.partition)

        async def end() -> None:
            await index.stop()
            if remove:
                await index.remove()

        task = asyncio.get_running_loop().create_task(end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
