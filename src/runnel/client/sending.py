"""Sending by calls: messages that wait for their time, messages that have names, and messages into queues.

Rule 1: sending again never doubles a message, so a send is repeated until it is answered or its time is up. A message
        that has a name is safe by that. Other messages are sent under a key, which the brokers remember for a day.
Rule 2: what goes into a queue now, without a name, is sent to the queue's topic by an idempotent producer: it costs one
        write. Everything else is decided by the broker that is asked.
"""

from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from runnel.client.calls import call_until_done
from runnel.client.cluster import Cluster
from runnel.client.outcome import only
from runnel.client.producer import Producer
from runnel.client.values import Sent
from runnel.model import calls
from runnel.model.calls import MESSAGE_SEND, QUEUE_LIST, QUEUE_SEND, ListQueues, Outgoing
from runnel.model.errors import InvalidConfig, InvalidRequest, UnknownQueue

NAME_BYTES = 16  # of chance in a key, and in the name of a message
KNOWN_S = 5.0  # then a queue's definition is looked up again


async def send_to_topic(cluster: Cluster, topic: str, messages: Sequence[Outgoing]) -> calls.Sent:
    """For each message where it is, or the id under which it waits."""
    asked = calls.SendTo(topic, _named(cluster, messages), request=_key_for(cluster, messages))
    return await call_until_done(cluster, MESSAGE_SEND, asked)


async def send_to_queue(cluster: Cluster, queue: str, messages: Sequence[Outgoing]) -> calls.Sent:
    """The same for a queue, where messages may have a priority."""
    asked = calls.Send(queue, _named(cluster, messages), request=_key_for(cluster, messages))
    return await call_until_done(cluster, QUEUE_SEND, asked)


def _named(cluster: Cluster, messages: Sequence[Outgoing]) -> list[Outgoing]:
    """The messages; each that waits for its time has a name, by which it can be cancelled."""
    return [
        replace(one, message_id=_token(cluster)) if one.deliver_at_ms is not None and one.message_id is None else one
        for one in messages
    ]


def _key_for(cluster: Cluster, messages: Sequence[Outgoing]) -> str:
    """The key that makes a request safe to repeat; none where the names of its messages do."""
    return "" if all(one.message_id is not None for one in messages) else _token(cluster)


def _token(cluster: Cluster) -> str:
    if cluster.rng is None:
        raise InvalidConfig("a cluster without chance can't name what it sends: give it an rng")
    return cluster.rng.token(NAME_BYTES).hex()


class Target(NamedTuple):
    """The part of a queue's definition that is about sending."""

    topic: str
    lanes: int

    def partition(self, priority: int | None) -> int | None:
        """The partition of a priority; None where the message's key decides."""
        if priority is not None and not 0 <= priority < self.lanes:
            raise InvalidRequest(f"priority {priority} is not known: the queue has lanes 0 to {self.lanes - 1}")
        return None if self.lanes == 1 else priority or 0


async def target_of(cluster: Cluster, queue: str) -> Target:
    """Where messages for a queue go now."""
    found = await call_until_done(cluster, QUEUE_LIST, ListQueues(queue, queues_max=1))
    if not found.queues or found.queues[0].queue != queue:
        raise UnknownQueue(f"queue {queue!r} does not exist: create it first")
    return Target(found.queues[0].topic, int(found.queues[0].settings.get("lanes", "1")))


class QueueSender:
    """Messages into one queue."""

    def __init__(self, cluster: Cluster, queue: str, producer: Producer | None) -> None:
        self._cluster = cluster
        self._queue = queue
        self._producer = producer
        self._target: Target | None = None
        self._read_at_s = 0.0

    def forget(self) -> None:
        """Look up the queue's definition before the next message."""
        self._target = None

    async def send(self, message: Outgoing) -> Sent:
        """Send one message, and wait until it is safe."""
        if self._producer is None or message.message_id is not None or message.deliver_at_ms is not None:
            answer = await send_to_queue(self._cluster, self._queue, [message])
            return Sent.of(only(answer.placed, answer.failures))
        topic, partition = await self._place(message)
        delivery = await self._producer.send(
            topic, message.value, key=message.key, partition=partition, headers=tuple(message.headers)
        )
        return Sent(*await delivery)

    async def _place(self, message: Outgoing) -> tuple[str, int | None]:
        now_s = self._cluster.clock.monotonic_ms() / 1000
        if self._target is None or now_s - self._read_at_s >= KNOWN_S:
            self._target, self._read_at_s = await target_of(self._cluster, self._queue), now_s
        return self._target.topic, self._target.partition(message.priority)
