"""Looking at queues and moving them, on any broker: describe, peek, purge, rewind.

Rule 1: each partition is looked at, or moved, by its leader; one that can't be asked is told with its failure, and
        costs the others nothing.
Rule 2: to peek changes nothing.
Rule 3: what waits in the schedule for another attempt is part of its queue. It is purged first: what comes due
        meanwhile is in a partition by then.
"""

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from runnel.broker import queue_calls
from runnel.broker.calls import Calls, failure_of
from runnel.broker.deliveries import Deliveries, passes_of
from runnel.broker.messages import Messages
from runnel.broker.outlet import Outlet
from runnel.broker.queue_calls import At, PeekedThere, PeekThere, Shift, States
from runnel.broker.sources import Queue, Source, Sources
from runnel.model.calls import (
    SCHEDULE_CANCEL,
    SCHEDULE_COUNT,
    SCHEDULE_LIST,
    Cancel,
    CountPending,
    DeliveryState,
    ListPending,
    Moved,
    NamedQueue,
    Peek,
    Peeked,
    Purge,
    QueueDescription,
    Read,
    Rewind,
    Setting,
    Shifted,
    Verb,
)
from runnel.model.errors import InvalidRequest, OffsetOutOfRange, RetriableError, RunnelError, UnknownTopic
from runnel.model.ids import BrokerId, PartitionKey, TopicId
from runnel.model.queue_config import SETTINGS, canonical, shown_value
from runnel.model.topic_config import field_name
from runnel.queues import values
from runnel.queues.values import Described
from runnel.record.records import Record
from runnel.replica.partition import Partition

PEEK_MAX: Final = 1_000  # messages at once
PEEK_LOOKED_MAX: Final = 100_000  # messages looked at, to find those that pass
PEEK_BYTES_MAX: Final = 16 << 20
DONE: Final = "done"
UNSCHEDULED_AT_ONCE: Final = 1_000

Q = TypeVar("Q")
A = TypeVar("A")


class Overseeing:
    """The verbs."""

    def __init__(
        self, me: BrokerId, deliveries: Deliveries, sources: Sources, calls: Calls, messages: Messages
    ) -> None:
        self._me = me
        self._deliveries = deliveries
        self._sources = sources
        self._calls = calls
        self._messages = messages
        calls.serve(queue_calls.STATES, self._states_here)
        calls.serve(queue_calls.PEEK, self._peek_here)
        calls.serve(queue_calls.SHIFT, self._shift_here)

    # --- describe

    async def describe(self, request: NamedQueue) -> QueueDescription:
        """A queue's settings, and how it stands in each partition."""
        queue = self._sources.queue(request.queue)
        states = await self._gather(queue, self._states_at)
        overrides = set(map(canonical, self._sources.overrides(queue.name)))
        settings = [
            Setting(name, shown_value(name, _text(getattr(queue.config, field_name(name)))), name not in overrides)
            for name in SETTINGS
        ]
        topic = queue.config.topic_of(queue.name)
        partitions = [state for part in states for state in part]
        return QueueDescription(queue.name, topic, True, settings, partitions, await self._count_scheduled(queue))

    async def _count_scheduled(self, queue: Queue) -> int:
        try:
            return sum([(await self._schedule(SCHEDULE_COUNT, CountPending(t))).messages for t in _retries(queue)])
        except RetriableError:
            return -1

    async def _gather(self, queue: Queue, ask: Callable[[Queue, BrokerId, list[Source]], Awaitable[A]]) -> Sequence[A]:
        """Ask every leader about its partitions of a queue, side by side."""
        by_leader: defaultdict[BrokerId, list[Source]] = defaultdict(list)
        for source in queue.sources:
            by_leader[source.leader].append(source)
        await asyncio.sleep(0)  # a request that was answered at once until now goes on in a task: timeouts need one
        return await asyncio.gather(*(ask(queue, leader, some) for leader, some in sorted(by_leader.items())))

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
        states = [await self._state(queue.name, source) for source in queue.sources if source.leader == self._me]
        return States(states)

    async def _state(self, queue: str, source: Source) -> DeliveryState:
        try:
            outlet = self._deliveries.find(queue, source.key)
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
        for source in _chosen(queue, request.partition, topic):
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
        outlet = self._deliveries.find(request.queue, _key(request.place))
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

    # --- purge and rewind

    async def purge(self, request: Purge) -> Shifted:
        """Have all that is there and not leased count as done."""
        queue = self._sources.queue(request.queue)
        scheduled = 0 if request.partition is not None else await self._unschedule(queue, request.dry_run)
        shifted = await self._shift(request.queue, request.partition, "purge", -1, request.dry_run)
        return Shifted(shifted.partitions, scheduled)

    async def _unschedule(self, queue: Queue, dry_run: bool) -> int:
        if dry_run:
            return await self._count_scheduled(queue)
        cancelled = 0
        for topic in _retries(queue):
            asked = ListPending(topic, messages_max=UNSCHEDULED_AT_ONCE)
            while waiting := (await self._schedule(SCHEDULE_LIST, asked)).messages:
                answer = await self._schedule(SCHEDULE_CANCEL, Cancel([message.id for message in waiting]))
                cancelled += answer.failures.count(None)
                last = waiting[-1]
                asked = ListPending(topic, last.due_ms, UNSCHEDULED_AT_ONCE, last.id)
        return cancelled

    async def _schedule(self, verb: Verb[Q, A], request: Q) -> A:
        await asyncio.sleep(0)  # timeouts need a task
        return await self._calls.ask(self._me, verb, request)

    async def rewind(self, request: Rewind) -> Shifted:
        """Deliver from another place on."""
        if request.to not in ("start", "end", "offset", "time"):
            raise InvalidRequest(f"a queue can't be rewound to {request.to!r}: start, end, offset and time are places")
        to = {"offset": request.offset, "time": request.time_ms}.get(request.to, 0)
        if to < 0:
            raise InvalidRequest(f"give the {request.to} that the queue is to be rewound to")
        return await self._shift(request.queue, request.partition, request.to, to, request.dry_run)

    async def _shift(self, name: str, partition: int | None, verb: str, to: int, dry_run: bool) -> Shifted:
        queue = self._sources.queue(name)
        moved = []
        for source in _chosen(queue, partition, None):
            shift = Shift(name, At(source.key.topic_id, source.key.number), verb, to, dry_run)
            await asyncio.sleep(0)
            try:
                moved.append(await self._calls.ask(source.leader, queue_calls.SHIFT, shift))
            except RetriableError as error:
                moved.append(Moved(source.topic, source.key.number, -1, -1, failure_of(error)))
        return Shifted(moved)

    async def _shift_here(self, shift: Shift) -> Moved:
        self._sources.must_know(shift.queue)
        outlet = self._deliveries.find(shift.queue, _key(shift.place))
        topic, number = outlet.partition.topic, outlet.partition.key.number
        if shift.verb == "purge":
            stands = await outlet.describe()
            if not shift.dry_run:
                await outlet.ask("purge", values.Purge())
            return Moved(topic, number, stands.first_open, stands.end)
        to = await _offset_of(outlet.partition, shift)
        stands = await outlet.describe()
        if shift.dry_run:
            return Moved(topic, number, stands.first_open, to)
        rewound: values.Rewound = await outlet.ask("rewind", values.Rewind(to))
        return Moved(topic, number, rewound.before, rewound.after)


def _retries(queue: Queue) -> list[str]:
    """The topic to which messages of a queue go that wait for long, if it is there."""
    retry = queue.config.retry_topic_of(queue.name)
    return [retry] if any(source.topic == retry for source in queue.sources) else []


def _key(place: At) -> PartitionKey:
    return PartitionKey(TopicId(place.topic_id), place.partition)


def _chosen(queue: Queue, partition: int | None, topic: str | None) -> list[Source]:
    found = [
        source
        for source in queue.sources
        if (partition is None or source.key.number == partition) and (topic is None or source.topic == topic)
    ]
    if not found and (partition is not None or topic is not None):
        raise UnknownTopic(f"queue {queue.name!r} has no partition {partition} of topic {topic!r}")
    return found


async def _offset_of(partition: Partition, shift: Shift) -> int:
    start, end = partition.log.start_offset, partition.last_stable_offset
    match shift.verb:
        case "start":
            return start
        case "end":
            return end
        case "time":
            timed = await partition.log.offset_by_time(shift.to)
            return end if timed is None else min(timed.offset, end)
        case _:
            return min(max(shift.to, start), end)


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
