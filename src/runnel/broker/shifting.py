"""Moving queues, on any broker: purge and rewind.

Rule 1: each partition is moved by its leader; one that can't be asked is told with its failure, and costs the others
        nothing.
Rule 2: what waits in the schedule for another attempt is part of its queue. It is purged first: what comes due
        meanwhile is in a partition by then.
Rule 3: to rewind is to deliver all from there on, and nothing else: all copies that were made of the messages of a
        partition are void (queues/copies.py), wherever their messages lie.
Rule 4: a partition is rewound before its copies are void: if that is interrupted, some messages come twice, and none
        is lost. To do it again brings it to its end.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from runnel.broker import queue_calls
from runnel.broker.calls import Calls, failure_of
from runnel.broker.deliveries import Deliveries
from runnel.broker.end_offsets import commit_written
from runnel.broker.overseeing import Overseeing
from runnel.broker.queue_calls import At, Shift, VoidThere
from runnel.broker.sources import Queue, Source, Sources
from runnel.model.calls import (
    SCHEDULE_CANCEL,
    SCHEDULE_LIST,
    Cancel,
    DeliveryState,
    ListPending,
    Moved,
    Pending,
    Purge,
    Rewind,
    Shifted,
    Verb,
)
from runnel.model.errors import InvalidRequest, RetriableError
from runnel.model.ids import BrokerId, PartitionKey
from runnel.queues import values
from runnel.queues.copies import maker_of
from runnel.queues.values import Since
from runnel.queues.window import NEVER
from runnel.replica.partition import Partition

UNSCHEDULED_AT_ONCE: Final = 1_000

Q = TypeVar("Q")
A = TypeVar("A")


class _Rewound(NamedTuple):
    """Partitions that were rewound, or would be; `whole`: all that the queue has."""

    since: Sequence[Since]
    whole: bool
    dry_run: bool


class Shifting:
    """The verbs."""

    def __init__(
        self, me: BrokerId, deliveries: Deliveries, sources: Sources, calls: Calls, overseeing: Overseeing
    ) -> None:
        self._me = me
        self._deliveries = deliveries
        self._sources = sources
        self._calls = calls
        self._overseeing = overseeing
        calls.serve(queue_calls.SHIFT, self._shift_here)
        calls.serve(queue_calls.VOID, self._void_here)

    async def purge(self, request: Purge) -> Shifted:
        """Have all that is there and not leased count as done."""
        queue = self._sources.queue(request.queue)
        scheduled = 0
        if request.partition is None and request.dry_run:
            scheduled = await self._overseeing.count_scheduled(queue)
        elif request.partition is None:
            scheduled = await self._unschedule(queue, lambda pending: True)
        chosen = queue.chosen(request.partition, None)
        moved = [await self._shift(queue.name, source, "purge", -1, request.dry_run) for source in chosen]
        return Shifted(moved, scheduled)

    async def rewind(self, request: Rewind) -> Shifted:
        """Deliver from another place on; rules 3 and 4."""
        to = _place_of(request)
        queue = self._sources.queue(request.queue)
        own = queue.chosen(None, queue.config.topic_of(queue.name))
        chosen = [source for source in own if request.partition in (None, source.key.number)]
        if not chosen:
            queue.chosen(request.partition, own[0].topic)  # says which it does not have
        before = await self._overseeing.states(queue)  # all copies that lie there are made by now
        moved = [await self._shift(queue.name, source, request.to, to, request.dry_run) for source in chosen]
        since = _since(chosen, moved, request.dry_run)
        rewound = _Rewound(since, len(since) == len(own), request.dry_run)
        voided = await self._void(self._sources.queue(queue.name), before, rewound)
        scheduled = await self._unschedule(queue, _is_void(rewound), request.dry_run)
        return Shifted(moved + voided, scheduled)

    # --- in the schedule

    async def _unschedule(self, queue: Queue, chosen: Callable[[Pending], bool], dry_run: bool = False) -> int:
        """Take out what waits for another attempt, as far as it is chosen; how many that were."""
        cancelled = 0
        async for waiting in self._waiting(queue):
            ids = [message.id for message in waiting if chosen(message)]
            if dry_run:
                cancelled += len(ids)
            elif ids:
                cancelled += (await self._schedule(SCHEDULE_CANCEL, Cancel(ids))).failures.count(None)
        return cancelled

    async def _waiting(self, queue: Queue) -> AsyncIterator[list[Pending]]:
        for topic in queue.retry_topics:
            asked = ListPending(topic, messages_max=UNSCHEDULED_AT_ONCE)
            while waiting := (await self._schedule(SCHEDULE_LIST, asked)).messages:
                yield waiting
                last = waiting[-1]
                asked = ListPending(topic, last.due_ms, UNSCHEDULED_AT_ONCE, last.id)

    async def _schedule(self, verb: Verb[Q, A], request: Q) -> A:
        await asyncio.sleep(0)  # timeouts need a task
        return await self._calls.ask(self._me, verb, request)

    # --- in partitions with copies

    async def _void(self, queue: Queue, states: Sequence[DeliveryState], rewound: _Rewound) -> list[Moved]:
        """Void copies of what was rewound: by their makers, or all that were there if all of it was."""
        before = {(state.topic, state.partition): state for state in states}
        found = [
            await self._void_at(queue.name, source, before.get((source.topic, source.key.number)), rewound)
            for source in queue.sources
            if source.topic in queue.retry_topics
        ]
        return [moved for moved in found if moved.failure or moved.before != moved.after]

    async def _void_at(self, queue: str, source: Source, before: DeliveryState | None, rewound: _Rewound) -> Moved:
        below = max(before.end, 0) if before is not None and rewound.whole else 0
        if rewound.dry_run:
            first, failure = (0, None) if before is None else (before.first_open, before.failure)
            return Moved(source.topic, source.key.number, first, max(first, below), failure)
        asked = VoidThere(queue, At(source.key.topic_id, source.key.number), list(rewound.since), below)
        await asyncio.sleep(0)
        try:
            return await self._calls.ask(source.leader, queue_calls.VOID, asked)
        except RetriableError as error:
            return Moved(source.topic, source.key.number, -1, -1, failure_of(error))

    async def _void_here(self, request: VoidThere) -> Moved:
        self._sources.must_know(request.queue)
        outlet = self._deliveries.find(request.queue, request.place.key)
        voided: values.Voided = await outlet.ask("void", values.Void(request.since, request.below))
        return Moved(outlet.partition.topic, outlet.partition.key.number, voided.before, voided.after)

    # --- in partitions with messages

    async def _shift(self, queue: str, source: Source, verb: str, to: int, dry_run: bool) -> Moved:
        shift = Shift(queue, At(source.key.topic_id, source.key.number), verb, to, dry_run)
        await asyncio.sleep(0)
        try:
            return await self._calls.ask(source.leader, queue_calls.SHIFT, shift)
        except RetriableError as error:
            return Moved(source.topic, source.key.number, -1, -1, failure_of(error))

    async def _shift_here(self, shift: Shift) -> Moved:
        self._sources.must_know(shift.queue)
        outlet = self._deliveries.find(shift.queue, shift.place.key)
        topic, number = outlet.partition.topic, outlet.partition.key.number
        await commit_written(outlet.partition)  # the end is behind all that was acknowledged
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
        return Moved(topic, number, rewound.before, rewound.after, generation=rewound.generation)


def _place_of(request: Rewind) -> int:
    """The number in what is asked for, which must be one."""
    if request.to not in ("start", "end", "offset", "time"):
        raise InvalidRequest(f"a queue can't be rewound to {request.to!r}: start, end, offset and time are places")
    to = {"offset": request.offset, "time": request.time_ms}.get(request.to, 0)
    if to < 0:
        raise InvalidRequest(f"give the {request.to} that the queue is to be rewound to")
    return to


def _since(sources: Sequence[Source], moved: Sequence[Moved], dry_run: bool) -> list[Since]:
    """Since when copies count, of each partition that was rewound, or would be."""
    return [
        Since(source.key, NEVER if dry_run else each.generation)
        for source, each in zip(sources, moved, strict=True)
        if each.failure is None
    ]


def _is_void(rewound: _Rewound) -> Callable[[Pending], bool]:
    """Whether a copy was made before. One that does not tell was, if all were."""
    since: Mapping[PartitionKey, int] = dict(rewound.since)

    def is_void(pending: Pending) -> bool:
        maker = maker_of(pending.headers)
        return rewound.whole if maker is None else maker.generation < since.get(maker.key, 0)

    return is_void


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
