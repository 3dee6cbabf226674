"""A topic that is deleted and made again, over and over, while things go wrong.

Rule 1: it is deleted by its id: an order that comes late hits no later topic of the same name.
Rule 2: what was read in one topic must not be read in another.
Rule 3: what was acknowledged is waited for, before the topic goes.
Rule 4: brokers may be behind: what they say of a topic that is deleted, or has changed meanwhile, is not believed.
"""

from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from uuid import UUID

from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster
from runnel.client.consumer import Consumer
from runnel.client.metadata import TopicPartition
from runnel.client.positions import START, bounds
from runnel.client.producer import Producer
from runnel.client.sender import ACKS_ALL, ProducerSettings
from runnel.model.errors import RunnelError, TopicAlreadyExists, UnknownTopic
from runnel.testing.workload import Client
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api
from runnel.wire.kafka.error_codes import ErrorCode

DRAFTS = "drafts"
SETTINGS = ProducerSettings(acks=ACKS_ALL, request_timeout_ms=2_000, delivery_timeout_ms=4_000)
GONE = (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_ID)


class Drafts:
    """What is known of all the topics of that name, whoever made them."""

    def __init__(self, violated: Callable[[str], None]) -> None:
        self._violated = violated
        self._acknowledged: dict[UUID, set[str]] = defaultdict(set)
        self._homes: dict[str, UUID] = {}  # of what was read, the topic
        self._deleted: set[UUID] = set()

    async def run(self, client: Client) -> None:
        """Make a topic, use it, delete it, again and again; a topic that is there is gone on with."""
        while client.stage.sending:
            cluster = client.cluster()
            try:
                topic_id = await self._make(client, cluster)
                await self._send(client, cluster, topic_id)
                await self._read(client, cluster, topic_id)
                await self._delete(client, cluster, topic_id)
            except RunnelError as error:
                client.stage.loop.trace(f"drafts {type(error).__name__}: {error}")
                await client.nap(0.3)
            finally:
                await cluster.close()

    async def _make(self, client: Client, cluster: Cluster) -> UUID:
        with suppress(TopicAlreadyExists):  # an earlier try, or an earlier life, made it
            await Admin(cluster).create_topics([NewTopic(DRAFTS, 1, client.stage.swarm.replicas)])
        topic_id = (await cluster.topic(DRAFTS)).id
        if topic_id in self._deleted:
            raise UnknownTopic(f"{topic_id} was deleted, the broker does not know it yet")
        return topic_id

    async def _send(self, client: Client, cluster: Cluster, topic_id: UUID) -> None:
        async with Producer(cluster, SETTINGS) as producer:
            for _ in range(1 + client.rng.below(8)):
                value = f"{client.process}.{client.now()}"
                await (await producer.send(DRAFTS, value.encode(), partition=0))
                await self._is_still(cluster, topic_id)
                self._acknowledged[topic_id].add(value)

    async def _read(self, client: Client, cluster: Cluster, topic_id: UUID) -> None:
        missing = set(self._acknowledged[topic_id])
        while missing:
            missing -= await self._read_once(cluster, topic_id)
            await client.nap(0.2)

    async def _read_once(self, cluster: Cluster, topic_id: UUID) -> set[str]:
        where, found = TopicPartition(DRAFTS, 0), set()
        end = (await bounds(cluster, [where]))[where].end
        consumer = Consumer(cluster)
        await consumer.assign({where: START})
        while consumer.positions[where] < end:
            found |= {(message.value or b"").decode() for message in await consumer.poll(timeout_ms=300)}
        await consumer.close()
        await self._is_still(cluster, topic_id)
        for value in sorted(found):
            if (home := self._homes.setdefault(value, topic_id)) != topic_id:
                self._violated(f"resurfaced: {value} of topic {home} was read in {topic_id}")
        return found

    async def _is_still(self, cluster: Cluster, topic_id: UUID) -> None:
        if (await cluster.topic(DRAFTS)).id != topic_id:
            raise UnknownTopic(f"{topic_id} is not there any more")

    async def _delete(self, client: Client, cluster: Cluster, topic_id: UUID) -> None:
        R = m.DeleteTopicsRequest
        request = R(topics=[R.DeleteTopicState(name=None, topic_id=topic_id)], timeout_ms=2_000)
        node = await cluster.controller()
        answer = await node.ask(Api.DELETE_TOPICS, request, m.DeleteTopicsResponse)
        code = answer.responses[0].error_code
        if code not in GONE:
            cluster.raise_for(code, action="delete", broker=str(node))
        self._deleted.add(topic_id)
        client.stage.loop.trace(f"drafts {topic_id} is deleted")
