"""Verbs that belong to another broker: those of the controller, and appends to what others lead.

Rule 1: whoever is asked does it if it can, else asks who can, in the same words; the answer goes back as it came.
Rule 2: who that is may be changing just now: it is tried again, until the time of the request is up.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, Final, TypeVar

from runnel.broker.peers import Peers
from runnel.client.calls import question, result
from runnel.client.errors import BrokerUnreachable, check, error_of
from runnel.cluster.image import NO_LEADER
from runnel.cluster.image import Partition as PartitionImage
from runnel.cluster.isr_changes import IsrChange
from runnel.cluster.metadata import Metadata
from runnel.cluster.topic_rules import NewTopic
from runnel.model.calls import Verb
from runnel.model.errors import NotController, RequestTimedOut, RetriableError, RunnelError
from runnel.model.ids import BrokerId, Epoch, PartitionKey, TopicId
from runnel.model.seams import Rng
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api

TIMEOUT_MS: Final = 15_000  # for finding the controller and for its answer
PAUSE_MS: Final = 50
GROUP: Final = 0  # what a coordinator keeps, as FindCoordinator numbers it
TRANSACTION: Final = 1

A = TypeVar("A")
Q = TypeVar("Q")
R = TypeVar("R")


class Forwarding:
    """Asks the controller, whoever that is."""

    def __init__(self, me: BrokerId, peers: Peers, metadata: Metadata, rng: Rng) -> None:
        self._me = me
        self._peers = peers
        self._metadata = metadata
        self._rng = rng

    @property
    def is_ours(self) -> bool:
        """Whether this broker is the controller, as far as it knows."""
        return self._metadata.image.controller.broker == self._me

    async def ask_controller(
        self, api: Api, request: Any, reply: type[R], *, timeout_ms: int = TIMEOUT_MS, version_max: int | None = None
    ) -> R:
        """The controller's answer. It is looked for until the time is up; what was sent to it is not sent again."""
        await asyncio.sleep(0)  # a request that was answered at once until now goes on in a task: timeouts need one
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_ms / 1000
        while True:
            try:
                controller = await self._reach()
                break
            except BrokerUnreachable as error:
                await self._pause(end, error)
        left_ms = max(1, int((end - loop.time()) * 1000))
        return await self._peers.ask(controller, api, request, reply, timeout_ms=left_ms, version_max=version_max)

    async def _reach(self) -> BrokerId:
        controller = self._metadata.image.controller.broker
        if controller == self._me:
            raise NotController("this broker has become the controller: ask it again")
        if controller == NO_LEADER:
            raise BrokerUnreachable("the cluster has no controller now: wait until one is elected")
        await self._peers.reach(controller)
        return controller

    async def _pause(self, end: float, error: RetriableError) -> None:
        loop = asyncio.get_running_loop()
        pause_s = (PAUSE_MS + self._rng.below(PAUSE_MS)) / 1000
        if loop.time() + pause_s >= end:
            raise RequestTimedOut(f"the controller could not be asked in time: {error}") from error
        await asyncio.sleep(pause_s)

    # --- verbs

    async def call(self, verb: Verb[Q, A], request: Q, *, timeout_ms: int = TIMEOUT_MS) -> A:
        """Put a call to the controller."""
        asked = question(verb, request)
        got = await self.ask_controller(Api.RUNNEL_CALL, asked, m.RunnelCallResponse, timeout_ms=timeout_ms)
        return result(verb, got, "the controller")

    async def create_topics(
        self, specs: Sequence[NewTopic], *, timeout_ms: int = TIMEOUT_MS
    ) -> list[RunnelError | None]:
        """Let the controller create topics; for each, why not, if it did not."""
        request = m.CreateTopicsRequest(
            topics=[
                m.CreateTopicsRequest.CreatableTopic(
                    name=spec.name,
                    num_partitions=spec.partitions,
                    replication_factor=spec.replication_factor,
                    configs=[
                        m.CreateTopicsRequest.CreatableTopicConfig(name=k, value=v) for k, v in spec.config.items()
                    ],
                )
                for spec in specs
            ],
            timeout_ms=timeout_ms,
        )
        answer = await self.ask_controller(Api.CREATE_TOPICS, request, m.CreateTopicsResponse, timeout_ms=timeout_ms)
        errors = {
            topic.name: _error(topic.error_code, f"create topic {topic.name!r}", topic.error_message)
            for topic in answer.topics
        }
        return [errors.get(spec.name) for spec in specs]

    async def find_coordinator(self, key: str, key_type: int) -> None:
        """Let the controller look for a coordinator: the topic that its kind lives in is there afterwards."""
        request = m.FindCoordinatorRequest(key=key, key_type=key_type, coordinator_keys=[key])
        await self.ask_controller(Api.FIND_COORDINATOR, request, m.FindCoordinatorResponse)

    async def alter_partitions(self, changes: Sequence[IsrChange]) -> list[PartitionImage | RunnelError]:
        """Let the controller change the ISRs of partitions led here; for each, what it is now, or why not."""
        epoch = self._metadata.epoch
        if self.is_ours:
            return await self._metadata.alter_partitions(self._me, epoch, changes)
        request = m.AlterPartitionRequest(broker_id=self._me, broker_epoch=epoch, topics=_asked_of(changes))
        answer = await self.ask_controller(Api.ALTER_PARTITION, request, m.AlterPartitionResponse)
        check(answer.error_code, action="change the ISRs of partitions", broker="the controller")
        results = {
            PartitionKey(TopicId(topic.topic_id), data.partition_index): _result_of(data)
            for topic in answer.topics
            for data in topic.partitions
        }
        missing = RequestTimedOut("the controller left this partition out of its answer")
        return [results.get(change.key, missing) for change in changes]


def _error(code: int, action: str, message: str | None = None) -> RunnelError | None:
    return error_of(code, action=action, broker="the controller", message=message) if code else None


def _asked_of(changes: Iterable[IsrChange]) -> list[m.AlterPartitionRequest.TopicData]:
    topics: dict[TopicId, list[m.AlterPartitionRequest.PartitionData]] = {}
    for change in changes:
        topics.setdefault(change.key.topic_id, []).append(
            m.AlterPartitionRequest.PartitionData(
                partition_index=change.key.number,
                leader_epoch=change.leader_epoch,
                partition_epoch=change.partition_epoch,
                new_isr_with_epochs=[
                    m.AlterPartitionRequest.BrokerState(broker_id=broker, broker_epoch=epoch)
                    for broker, epoch in change.isr
                ],
            )
        )
    return [m.AlterPartitionRequest.TopicData(topic_id=key, partitions=parts) for key, parts in topics.items()]


def _result_of(data: m.AlterPartitionResponse.PartitionData) -> PartitionImage | RunnelError:
    if error := _error(data.error_code, f"change the ISR of partition {data.partition_index}"):
        return error
    isr = tuple(map(BrokerId, data.isr))
    return PartitionImage(BrokerId(data.leader_id), Epoch(data.leader_epoch), Epoch(data.partition_epoch), isr, isr)
