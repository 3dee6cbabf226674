"""Queues: the verbs of users, on any broker. Each asks those that lead the partitions in question.

`receiving`, `settling`, `overseeing` and `shifting` do it for partitions here and elsewhere; `deliveries` holds those
here.
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from msgspec.structs import replace

from runnel.broker.calls import Calls
from runnel.broker.deliveries import Deliveries
from runnel.broker.fetch import Waits
from runnel.broker.messages import Messages
from runnel.broker.overseeing import Overseeing
from runnel.broker.owners import Owners
from runnel.broker.receiving import Receiving
from runnel.broker.sending import Sending
from runnel.broker.sending_once import SendingOnce, all_kept, digest_of, each_told
from runnel.broker.settling import Settling
from runnel.broker.shifting import Shifting
from runnel.broker.sources import Sources
from runnel.cluster.image import NO_LEADER, Change, Image
from runnel.model.calls import (
    QUEUE_DESCRIBE,
    QUEUE_EXTEND,
    QUEUE_PEEK,
    QUEUE_PURGE,
    QUEUE_RECEIVE,
    QUEUE_REWIND,
    QUEUE_SEND,
    QUEUE_SETTLE,
    Outgoing,
    Placed,
    Receive,
    Received,
    Send,
    Sent,
)
from runnel.model.errors import InvalidRequest, RunnelError
from runnel.model.ids import BrokerId, Life
from runnel.model.queue_config import QueueConfig
from runnel.model.seams import Rng

CONSUMER_BYTES: Final = 8  # of chance in a consumer's name


class Queues:
    """What doors call. The verbs of definitions are elsewhere (`queue_definitions`)."""

    def __init__(
        self, me: BrokerId, deliveries: Deliveries, sources: Sources, sending: Sending, sending_once: SendingOnce,
        calls: Calls, messages: Messages, image: Callable[[], Image], life: Callable[[], Life], rng: Rng,
        count_dead: Callable[[str], Awaitable[int]],
    ) -> None:  # fmt: skip
        self._sources = sources
        self._sending = sending
        self._sending_once = sending_once
        self._me = me
        self._rng = rng
        settling = Settling(me, deliveries, sources, calls, image, rng)
        overseeing = Overseeing(me, deliveries, sources, calls, messages, count_dead)
        shifting = Shifting(me, deliveries, sources, calls, overseeing)
        self._owners = Owners(deliveries, calls, life)
        self._receiving = Receiving(deliveries, sources, calls, self._owners, life, settling.give_back)
        self.settle = settling.settle
        self.extend = settling.extend
        self.describe = overseeing.describe
        self.peek = overseeing.peek
        self.purge = shifting.purge
        self.rewind = shifting.rewind
        calls.serve_waiting(QUEUE_RECEIVE, self.receive)
        calls.serve(QUEUE_SEND, self.send)
        calls.serve(QUEUE_SETTLE, self.settle)
        calls.serve(QUEUE_EXTEND, self.extend)
        calls.serve(QUEUE_DESCRIBE, self.describe)
        calls.serve(QUEUE_PEEK, self.peek)
        calls.serve(QUEUE_PURGE, self.purge)
        calls.serve(QUEUE_REWIND, self.rewind)

    def start(self, image: Image) -> None:
        self._owners.follow(image)

    def follow(self, change: Change) -> None:
        if change.delta.brokers:
            self._owners.follow(change.after)

    async def receive(self, request: Receive, waits: Waits) -> Received:
        """Lease messages, waiting for them if there are none."""
        return await self._receiving.receive(request, waits)

    def new_consumer(self, kind: str) -> str:
        """A name for who receives and has none, which nobody else has."""
        return f"{kind}-{self._rng.token(CONSUMER_BYTES).hex()}"

    def gone(self, name: str, consumer: str) -> None:
        """A consumer receives no more: its leases end, and the next may have its place."""
        if self._sources.defined(name):
            leaders = {source.leader for source in self._sources.queue(name).sources}
            self._owners.gone(name, consumer, leaders - {self._me, NO_LEADER})

    def lease_ms(self, name: str) -> int:
        """How long a lease of a queue lasts if nobody says; UnknownQueue if there is no such queue."""
        return self._sources.queue(name).config.lease_ms

    def addressed(self, name: str, messages: Sequence[Outgoing]) -> tuple[str, list[Outgoing]]:
        """The topic that messages to a queue go to, and in which partition, if that is not left to chance."""
        queue = self._sources.queue(name)
        for message in messages:
            if error := _refusal(message, queue.config.lanes):
                raise error
        return queue.config.topic_of(name), [_in_lane(message, queue.config) for message in messages]

    async def send(self, request: Send) -> Sent:
        """Send messages to a queue's topic; of a queue with lanes, to the lane of their priority."""
        if request.request:
            topic, addressed = self.addressed(request.queue, request.messages)
            return all_kept(await self._sending_once.send(request.request, digest_of(request), topic, addressed))
        queue = self._sources.queue(request.queue)
        lanes = queue.config.lanes
        refused = [_refusal(message, lanes) for message in request.messages]
        allowed = [
            _in_lane(message, queue.config)
            for message, error in zip(request.messages, refused, strict=True)
            if error is None
        ]
        results: Sequence[Placed | RunnelError] = ()
        if allowed:
            results = await self._sending.send(queue.config.topic_of(queue.name), allowed)
        left = iter(results)
        return each_told([next(left) if error is None else error for error in refused])


def _refusal(message: Outgoing, lanes: int) -> RunnelError | None:
    if message.priority is not None and not 0 <= message.priority < lanes:
        return InvalidRequest(f"priority {message.priority} is not known: the queue has lanes 0 to {lanes - 1}")
    if message.partition is not None and lanes > 1:
        return InvalidRequest("the partitions of a queue with lanes are its priorities: give the priority alone")
    return None


def _in_lane(message: Outgoing, config: QueueConfig) -> Outgoing:
    return message if config.lanes == 1 else replace(message, partition=message.priority or 0)
