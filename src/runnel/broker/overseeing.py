"""Looking at queues, on any broker: describe, peek.

Rule 1: each partition is looked at by its leader; one that can't be asked is told with its failure, and costs the
        others nothing.
Rule 2: to peek changes nothing.
Rule 3: what waits in the schedule for another attempt is part of its queue.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from runnel.broker import queue_calls
from runnel.broker.calls import Calls, failure_of
from runnel.broker.deliveries import Deliveries, passes_of
from runnel.broker.end_offsets import commit_written
from runnel.broker.messages import Messages
from runnel.broker.outlet import Outlet
from runnel.broker.queue_calls import At, PeekedThere, PeekThere, States
from runnel.broker.sources import Queue, Source, Sources
from runnel.model.calls import (
    SCHEDULE_COUNT,
    CountPending,
    DeliveryState,
    NamedQueue,
    Peek,
    Peeked,
    QueueDescription,
    Read,
    Setting,
)
from runnel.model.errors import InvalidRequest, OffsetOutOfRange, RetriableError, RunnelError
from runnel.model.ids import BrokerId
from runnel.model.queue_config import SETTINGS, canonical, shown_value
from runnel.model.topic_config import field_name
from runnel.net.eager import gather_eagerly
from runnel.queues import values
from runnel.queues.values import Described
from runnel.record.records import Record
from runnel.replica.partition import Partition

PEEK_MAX: Final = 1_000  # messages at once
PEEK_LOOKED_MAX: Final = 100_000  # messages looked at, to find those that pass
PEEK_BYTES_MAX: Final = 16 << 20
DONE: Final = "done"
SCHEDULE_S: Final = 2.0  # for the schedule to say what waits in it
PAUSE_S: Final = 0.05
UNSCHEDULED_AT_ONCE: Final = 1_000

Q = TypeVar("Q")
A = TypeVar("A")


class Overseeing:
    """The verbs."""

    def __init__(
        self, me: BrokerId, deliveries: Deliveries, sources: Sources, calls: Calls, messages: Messages,
        count_dead: Callable[[str], Awaitable[int]],
    ) -> None:  # fmt: skip
        self._me = me
        self._deliveries = deliveries
        self._sources = sources
        self._calls = calls
        self._messages = messages
        self._count_dead = count_dead
        calls.serve(queue_calls.STATES, self._states_here)
        calls.serve(queue_calls.PEEK, self._peek_here)

    # --- describe

    async def describe(self, request: NamedQueue) -> QueueDescription:
        """A queue's settings, and how it stands in each partition."""
        queue = self._sources.queue(request.queue)
        partitions = await self.states(queue)
        overrides = set(map(canonical, self._sources.overrides(queue.name)))
        settings = [
            Setting(name, shown_value(name, _text(getattr(queue.config, field_name(name)))), name not in overrides)
            for name in SETTINGS
        ]
        topic = queue.config.topic_of(queue.name)
        scheduled, dead = await self.count_scheduled(queue), await self._count_dead(queue.name)
        return QueueDescription(queue.name, topic, True, settings, partitions, scheduled, dead)

    async def count_scheduled(self, queue: Queue) -> int:
        """How many messages wait in the schedule for another attempt; -1 if nobody can say."""
        await asyncio.sleep(0)  # timeouts need a task
        asked = [CountPending(topic) for topic in queue.retry_topics]
        end = asyncio.get_running_loop().time() + SCHEDULE_S
        while True:
            try:
                return sum([(await self._calls.ask(self._me, SCHEDULE_COUNT, each)).messages for each in asked])
            except RetriableError:  # most often it is being made, or read
                if asyncio.get_running_loop().time() >= end:
                    return -1
                await asyncio.sleep(PAUSE_S)

    async def states(self, queue: Queue) -> list[DeliveryState]:
        """How a queue stands in each partition: all leaders are asked, side by side."""
        by_leader: defaultdict[BrokerId, list[Source]] = defaultdict(list)
        for source in queue.sources:
            by_leader[source.leader].append(source)
        await asyncio.sleep(0)  # a request that was answered at once until now goes on in a task: timeouts need one
        asked = (self._states_at(queue, leader, some) for leader, some in sorted(by_leader.items()))
        return [state for part in await asyncio.gather(*asked) for state in part]

    async def _states_at(self, queue: Queue, leader: BrokerId, sources: list[Source]) -> list[DeliveryState]:
        try:
            return (await self._calls.ask(leader, queue_calls.STATES, NamedQueue(queue.name))).partitions
        except RunnelError as error:
            failure = failure_of(error)
            return [
                DeliveryState(source.topic, source.key.number, leader, -1, -1, -1, failure=failure)
                for source in sources
            ]

    async def _states_here(self, request: NamedQueue) -> States:
        queue = self._sources.must_know(request.queue)
        here = [source for source in queue.sources if source.leader == self._me]
        return States(await gather_eagerly(self._state(queue.name, source) for source in here))

    async def _state(self, queue: str, source: Source) -> DeliveryState:
        try:
            outlet = self._deliveries.find(queue, source.key)
            await commit_written(outlet.partition)
            stands = await outlet.describe()
            return _state_of(self._me, source, stands, await self._age(outlet.partition, stands))
        except RetriableError as error:
            failure = failure_of(error)
            return DeliveryState(source.topic, source.key.number, self._me, -1, -1, -1, failure=failure)

    async def _age(self, partition: Partition, stands: Described) -> int:
        """The timestamp of the first message that is not done."""
        try:
            found = (await self._messages.read(partition, stands.first_open)).since(stands.first_open)
        except OffsetOutOfRange:
            return -1
        return found[0].timestamp if found else -1

    # --- peek

    async def peek(self, request: Peek) -> Peeked:
        """Messages that are not done yet, without taking them."""
        queue = self._sources.queue(request.queue)
        if not 1 <= request.messages_max <= PEEK_MAX:
            raise InvalidRequest(f"{request.messages_max} messages can't be peeked at: ask for 1 to {PEEK_MAX}")
        topic = request.topic or queue.config.topic_of(queue.name)
        found: list[Read] = []
        for source in queue.chosen(request.partition, topic):
            place = At(source.key.topic_id, source.key.number)
            left = request.messages_max - len(found)
            if left <= 0:
                break
            asked = PeekThere(queue.name, place, left, request.offset, request.filter)
            await asyncio.sleep(0)
            found += (await self._calls.ask(source.leader, queue_calls.PEEK, asked)).messages
        return Peeked(found)

    async def _peek_here(self, request: PeekThere) -> PeekedThere:
        self._sources.must_know(request.queue)
        outlet = self._deliveries.find(request.queue, request.place.key)
        stands = await outlet.describe()
        passes = passes_of(request.filter, outlet.partition) if request.filter else None
        found: list[Read] = []
        size = looked = 0
        at = max(stands.first_open if request.offset is None else request.offset, outlet.partition.log.start_offset)
        while len(found) < request.messages_max and looked < PEEK_LOOKED_MAX and size < PEEK_BYTES_MAX:
            stretch = await self._messages.read(outlet.partition, at)
            if stretch.end <= at:
                break
            for record in stretch.since(at):
                looked += 1
                if passes is not None and not passes(record):
                    continue
                stands_as = outlet.standing(record.offset)
                if request.offset is None and stands_as.state == DONE:
                    continue
                found.append(_read(outlet, record, stands_as))
                size += len(record.value or b"")
                if len(found) >= request.messages_max:
                    break
            at = stretch.end
        return PeekedThere(found)


def _state_of(me: BrokerId, source: Source, stands: Described, oldest_ms: int) -> DeliveryState:
    counters = stands.counters
    return DeliveryState(
        source.topic, source.key.number, me, stands.first_open, stands.next_new, stands.end,
        leased=stands.leased, waiting=stands.waiting, blocked=stands.blocked, ready=stands.ready + stands.backlog,
        done_above=stands.done_above, dead=counters.dead, accepted=counters.accepted,
        released=counters.released + counters.timed_out, expired=counters.expired, generation=stands.generation,
        breaker=stands.breaker, consumers=1 if stands.holder else 0, oldest_ms=oldest_ms,
    )  # fmt: skip


def _read(outlet: Outlet, record: Record, stands: values.Standing) -> Read:
    state = "ready" if stands.state == "new" else stands.state
    return Read(
        outlet.partition.topic, outlet.partition.key.number, record.offset, record.timestamp, record.key, record.value,
        list(record.headers), stands.attempts, state,
    )  # fmt: skip


def _text(value: object) -> str:
    return str(getattr(value, "value", value))
