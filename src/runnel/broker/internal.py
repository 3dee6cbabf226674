"""The topics that coordinators keep their state in, how they are made, and how coordinators see all others.

Nobody but the broker itself writes to them, changes them or deletes them.
"""

from collections.abc import Collection
from typing import Final

from runnel.cluster.image import Image
from runnel.cluster.topic_rules import NewTopic, candidates
from runnel.model.errors import InvalidTopicName, ViewSourceGone
from runnel.model.ids import Life, TopicId
from runnel.model.limits import MIB
from runnel.model.topic_config import DAY_MS

GROUPS: Final = "__consumer_offsets"
TRANSACTIONS: Final = "__transaction_state"
QUEUES: Final = "__queue_state"
SCHEDULE: Final = "__schedule"
REQUESTS: Final = "__requests"
SINKS: Final = "__sinks"
INTERNAL: Final = frozenset((GROUPS, TRANSACTIONS, QUEUES, SCHEDULE, REQUESTS, SINKS))

CONFIG: Final = {
    "cleanup.policy": "compact",
    "segment.bytes": str(64 * MIB),  # small, so that compaction begins early and a start reads little
    "max.message.bytes": str(64 * MIB),  # one decision about a group of thousands is one record
    "delete.retention.ms": str(DAY_MS),  # a broker's default must not let deletions be forgotten by a replica
}
SPECIAL: Final[dict[str, dict[str, str]]] = {
    # What queues know is written over and over: the less of it lies there, the sooner a new keeper has read it.
    QUEUES: {"segment.bytes": str(16 * MIB)},
    # A replica that was away for longer than that may miss what is gone: a message would be sent again.
    SCHEDULE: {"delete.retention.ms": str(7 * DAY_MS)},
    # Idempotency keys are remembered for a day.
    REQUESTS: {
        "cleanup.policy": "delete",
        "retention.ms": str(DAY_MS),
        "retention.bytes": "-1",
        "segment.ms": str(DAY_MS // 24),
    },
}
REQUEST_PARTITIONS: Final = 8
SINK_PARTITIONS: Final = 8  # a sink asks little: a few records for each task of a batch
REPLICAS_SAFE: Final = 3  # with so many, one may be missing and two still must have what was committed


def internal_error(name: str) -> InvalidTopicName:
    """The answer to a client that wants to write to an internal topic, to change it, or to make one of its name."""
    return InvalidTopicName(f"topic {name!r} is internal: only the broker itself writes to it and changes it")


def refusal(name: str) -> InvalidTopicName | None:
    """Why clients can't do so, if they can't."""
    return internal_error(name) if name in INTERNAL else None


def refuse_internal(name: str) -> None:
    """Raise unless clients can do so."""
    if name in INTERNAL:
        raise internal_error(name)


def refuse_reading(name: str) -> None:
    """Raise unless clients can read a topic message by message: coordinators' records are nobody's messages."""
    if name in INTERNAL:
        raise InvalidTopicName(f"topic {name!r} is internal: only Kafka's protocol gives its records")


def settings_of(name: str) -> dict[str, str]:
    """The settings that the broker gives an internal topic, beside those that follow from the number of brokers."""
    return {**CONFIG, **SPECIAL.get(name, {})}


def internal_topic(name: str, image: Image, partitions: int) -> NewTopic:
    """A topic for a coordinator's state, for a cluster with as many brokers as this one, also those that are away."""
    replicas = min(REPLICAS_SAFE, max(1, len(candidates(image))))
    safety = {"min.insync.replicas": str(REPLICAS_SAFE - 1)} if replicas == REPLICAS_SAFE else {}
    return NewTopic(name, partitions, replicas, config={**settings_of(name), **safety})


class ImageTopics:
    """The topics of an image, as coordinators like to see them."""

    def __init__(self, image: Image) -> None:
        self._image = image

    @property
    def version(self) -> int:
        return self._image.version

    def names(self) -> Collection[str]:
        """Without internal topics: a pattern that matches everything does not mean them."""
        return self._image.names.keys() - INTERNAL

    def id_of(self, name: str) -> TopicId | None:
        return self._image.names.get(name)

    def name_of(self, topic_id: TopicId) -> str | None:
        topic = self._image.topics.get(topic_id)
        return None if topic is None else topic.name

    def is_view(self, name: str) -> bool:
        topic = self._image.topic(name)
        return topic is not None and topic.is_view

    def is_over(self, life: Life) -> bool:
        broker = self._image.brokers.get(life.broker)
        return broker is None or broker.epoch > life.epoch

    def partition_count(self, topic_id: TopicId) -> int:
        topic = self._image.topics.get(topic_id)
        if topic is None:
            return 0
        try:
            return len(self._image.shown(topic).partitions)
        except ViewSourceGone:
            return 0
