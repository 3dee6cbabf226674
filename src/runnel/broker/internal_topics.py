"""The topics that brokers keep their own state in, or that messages leave queues to, made when they are first needed.

Rule 1: the controller makes them; every other broker asks it, and waits until it sees them.
Rule 2: what leaves queues whose names differ in '.' and '_' alone, as a.b and a_b, goes to two topics all the same.
"""

from collections.abc import Sequence

from runnel.broker.calls import Calls
from runnel.broker.config import BrokerConfig
from runnel.broker.forwarding import Forwarding
from runnel.broker.internal import (
    QUEUES,
    REQUEST_PARTITIONS,
    REQUESTS,
    SCHEDULE,
    SINK_PARTITIONS,
    SINKS,
    internal_topic,
    refuse_internal,
)
from runnel.broker.seen import Seen
from runnel.broker.topics import report_failures
from runnel.cluster.metadata import Metadata
from runnel.cluster.topic_rules import NewTopic
from runnel.model.calls import Nothing
from runnel.model.errors import InvalidTopicName, RunnelError, TopicAlreadyExists
from runnel.model.internal_calls import MAKE_FOR_QUEUE, MAKE_INTERNAL, MakeForQueue, MakeInternal


class InternalTopics:
    """Makes what is not there."""

    def __init__(
        self, config: BrokerConfig, metadata: Metadata, forwarding: Forwarding, calls: Calls, seen: Seen
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._forwarding = forwarding
        self._seen = seen
        calls.serve(MAKE_INTERNAL, self._make_here)
        calls.serve(MAKE_FOR_QUEUE, self._make_for_queue)

    async def make_for_coordinators(self, name: str, partitions: int, key: str, key_type: int) -> None:
        """Have a coordinators' topic made, if it is not there."""
        if name in self._seen.image.names:
            return
        if self._forwarding.is_ours:
            await self._create(name, partitions)
        else:
            await self._forwarding.find_coordinator(key, key_type)  # the controller makes it
        await self._seen.until(lambda image: name in image.names)

    async def make(self, name: str) -> None:
        """Have one of the topics made that are no coordinators' by Kafka's lights, if it is not there."""
        if name in self._seen.image.names:
            return
        if self._forwarding.is_ours:
            await self._make_here(MakeInternal(name))
        else:
            await self._forwarding.call(MAKE_INTERNAL, MakeInternal(name))
        await self._seen.until(lambda image: name in image.names)

    async def make_for_queues(self, topics: Sequence[NewTopic]) -> None:
        """Have topics made for what leaves queues, if they are not there; raises if one can't be."""
        for topic in topics:
            request = MakeForQueue(topic.name, topic.partitions)
            if self._forwarding.is_ours:
                await self._make_for_queue(request)
            else:
                await self._forwarding.call(MAKE_FOR_QUEUE, request)
        await self._seen.until(lambda image: all(topic.name in image.names for topic in topics))

    async def _make_for_queue(self, request: MakeForQueue) -> Nothing:
        refuse_internal(request.topic)
        topic = NewTopic(request.topic, request.partitions, beside=True)
        [made] = await self._metadata.create_topics([topic])
        if isinstance(made, RunnelError) and not isinstance(made, TopicAlreadyExists):
            raise made
        return Nothing()

    async def _make_here(self, request: MakeInternal) -> Nothing:
        partitions = {
            QUEUES: self._config.queue_partitions,
            SCHEDULE: self._config.schedule_partitions,
            REQUESTS: REQUEST_PARTITIONS,
            SINKS: SINK_PARTITIONS,
        }
        if request.topic not in partitions:
            raise InvalidTopicName(f"topic {request.topic!r} is none that brokers make for themselves")
        await self._create(request.topic, partitions[request.topic])
        return Nothing()

    async def _create(self, name: str, partitions: int) -> None:
        topic = internal_topic(name, self._metadata.image, partitions)
        report_failures([topic], await self._metadata.create_topics([topic]))
