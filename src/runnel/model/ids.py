"""Names for the numbers that must not be mixed up."""

from typing import NamedTuple, NewType
from uuid import UUID

Offset = NewType("Offset", int)
Epoch = NewType("Epoch", int)
Millis = NewType("Millis", int)
BrokerId = NewType("BrokerId", int)
ProducerId = NewType("ProducerId", int)
TopicId = NewType("TopicId", UUID)

NO_EPOCH = Epoch(-1)
NO_OFFSET = Offset(-1)
NO_PRODUCER = ProducerId(-1)
NO_TOPIC_ID = TopicId(UUID(int=0))


class Life(NamedTuple):
    """A broker in one of its lives."""

    broker: BrokerId
    epoch: Epoch


class PartitionKey(NamedTuple):
    """One partition for ever: a topic that is deleted and created again has another id."""

    topic_id: TopicId
    number: int

    def __str__(self) -> str:
        return f"{self.topic_id}-{self.number}"
