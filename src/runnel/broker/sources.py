"""Where the messages of queues come from: the partitions of a queue's topic, and of its retry topic.

Lanes are partitions: a message of a higher one goes first. Copies for another attempt go before new messages.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from runnel.cluster.group_rules import began_of, deleting_of, made_of
from runnel.cluster.image import GROUP, Image
from runnel.model.errors import LeaderNotAvailable, UnknownQueue, UnknownTopic
from runnel.model.ids import BrokerId, PartitionKey
from runnel.model.queue_config import DEFINED, QueueConfig, config_of


class Source(NamedTuple):
    """One partition that a queue delivers."""

    topic: str
    key: PartitionKey
    leader: BrokerId


class Queue(NamedTuple):
    """A queue as the image has it."""

    name: str
    config: QueueConfig
    sources: Sequence[Source]
    keys: frozenset[PartitionKey]

    @property
    def retry_topics(self) -> list[str]:
        """The topic to which messages go that wait for long, if it is there."""
        retry = self.config.retry_topic_of(self.name)
        return [retry] if any(source.topic == retry for source in self.sources) else []

    def chosen(self, partition: int | None, topic: str | None) -> list[Source]:
        """The partitions of this number and of this topic; all, where None is said."""
        found = [
            source
            for source in self.sources
            if (partition is None or source.key.number == partition) and (topic is None or source.topic == topic)
        ]
        if not found and (partition is not None or topic is not None):
            raise UnknownTopic(f"queue {self.name!r} has no partition {partition} of topic {topic!r}")
        return found


class Sources:
    """Looks queues up in the newest image, and remembers what it found until there is another one."""

    def __init__(self, image: Callable[[], Image]) -> None:
        self._image = image
        self._seen: Image | None = None
        self._queues: dict[str, Queue] = {}
        self._graves_of: Image | None = None
        self._graves: dict[str, list[str]] = {}

    def config(self, queue: str) -> QueueConfig:
        """The settings of a queue, or of a share group that has none of its own."""
        return config_of(frozenset(self.overrides(queue).items()))

    def defined(self, queue: str) -> bool:
        """Whether it was created as a queue."""
        return DEFINED in self.overrides(queue)

    def made(self, queue: str) -> int:
        """The number of a queue, which no other of its name ever had; 0 if it was not created as one."""
        return made_of(self._image().group_notes(queue))

    def being_deleted(self, queue: str) -> bool:
        """Whether there was a queue of that name, and not all that it kept is gone."""
        return deleting_of(self._image().group_notes(queue)) is not None

    def added_later(self, queue: str, topic: str, key: PartitionKey) -> bool:
        """Whether a queue had its topic before that had this partition: all that is in it was sent since."""
        began = began_of(self._image().group_notes(queue))
        if began is None or topic != self.config(queue).topic_of(queue):
            return False
        return key.topic_id != began.topic_id or key.number >= began.partitions

    def overrides(self, queue: str) -> dict[str, str]:
        overrides = self._image().configs.get(GROUP + queue)
        return {} if overrides is None else dict(overrides.values)

    def dying_into(self, topic: str) -> set[str]:
        """The queues whose dead letters go to a topic."""
        return set(self.graves().get(topic, ()))

    def graves(self) -> Mapping[str, Sequence[str]]:
        """The topics of dead letters, and the queues that put theirs there."""
        image = self._image()
        if image is not self._graves_of:
            names = (key.removeprefix(GROUP) for key in image.configs if key.startswith(GROUP))
            self._graves_of, self._graves = image, {}
            for name in names:
                if self.defined(name) and (topic := self.config(name).dead_topic_of(name)):
                    self._graves.setdefault(topic, []).append(name)
        return self._graves

    def is_shared_grave(self, topic: str) -> bool:
        """Whether several queues put their dead letters into a topic."""
        return len(self.graves().get(topic, ())) > 1

    def queue(self, name: str) -> Queue:
        """A queue with its sources; UnknownQueue if it was never created."""
        image = self._image()
        if image is not self._seen:
            self._seen, self._queues = image, {}
        if name not in self._queues:
            if not self.defined(name):
                raise UnknownQueue(f"queue {name!r} does not exist: create it first")
            config = self.config(name)
            found = _sources(image, name, config)
            self._queues[name] = Queue(name, config, found, frozenset(source.key for source in found))
        return self._queues[name]

    def must_know(self, name: str) -> Queue:
        """The same for who was asked by another broker, which knows it: this one will, too."""
        try:
            return self.queue(name)
        except UnknownQueue:
            raise LeaderNotAvailable(f"queue {name!r} is not known by this broker yet: try again") from None


def _sources(image: Image, queue: str, config: QueueConfig) -> list[Source]:
    """The copies first; of each topic the highest lane first."""
    found: list[Source] = []
    for name in (config.retry_topic_of(queue), config.topic_of(queue)):
        topic = image.topic(name) if name else None
        for number, partition in enumerate(topic.partitions if topic is not None else ()):
            assert topic is not None
            found.append(Source(name, PartitionKey(topic.id, number), partition.leader))
    if config.lanes > 1:
        found.sort(key=lambda source: -source.key.number)
    return found
