"""The schedule: messages that wait for their time, on whichever broker leads the shard of their target.

Rule 1: who leads the shard of a target keeps what waits for it, and sends it: see `schedule_shards`.
Rule 2: every broker takes every verb, and asks the leaders. What may be sent again (parking under an id) is, until the
        time is up; a change is not: its answer is the one that was given. Where an earlier attempt may have been
        carried out, the next one says so, and names a floor that was seen before: it may have been sent meanwhile.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from msgspec import structs

from runnel.broker.calls import Calls, failure_of
from runnel.broker.elsewhere import ELSEWHERE, PAUSE_MS, is_elsewhere
from runnel.broker.internal import SCHEDULE
from runnel.broker.once import Once
from runnel.broker.partitions import Partitions
from runnel.broker.schedule_shards import ScheduleShards, shard_of
from runnel.client.outcome import error_of_failure
from runnel.cluster.image import NO_LEADER, Image
from runnel.model.calls import (
    SCHEDULE_CANCEL,
    SCHEDULE_COUNT,
    SCHEDULE_GET,
    SCHEDULE_LIST,
    SCHEDULE_MOVE,
    Cancel,
    CountPending,
    GetPending,
    ListPending,
    Move,
    Pending,
    PendingCount,
    PendingMessages,
    Rescheduled,
)
from runnel.model.errors import (
    CoordinatorLoading,
    CoordinatorNotAvailable,
    NotCoordinator,
    NotPending,
    RetriableError,
    RunnelError,
    UnknownTopic,
)
from runnel.model.ids import BrokerId, PartitionKey, TopicId
from runnel.model.schedule import (
    NEWEST,
    SCHEDULE_CHANGE_HERE,
    SCHEDULE_COUNT_HERE,
    SCHEDULE_FIRST_HERE,
    SCHEDULE_NAMED_HERE,
    SCHEDULE_PARK,
    CancelHere,
    CountHere,
    FirstHere,
    NamedHere,
    OpenDueIndex,
    Park,
    Parked,
    WaitingRow,
)
from runnel.model.seams import Clock, Disk, Rng
from runnel.queues.schedule_records import kept_of

__all__ = ["Parked", "Schedule"]

TIMEOUT_MS: Final = 30_000
FLOOR_MS: Final = 2_000  # a target that nobody leads holds up nobody for longer: then parking is not tried again
LIST_MAX: Final = 10_000
UNDONE: Final = (NotCoordinator, CoordinatorLoading, CoordinatorNotAvailable)  # nothing was done then


class Schedule:
    """The verbs, on any broker."""

    def __init__(
        self, partitions: Partitions, calls: Calls, once: Once, image: Callable[[], Image],
        make_topic: Callable[[], Awaitable[None]], *,
        clock: Clock, rng: Rng, disk: Disk, open_index: OpenDueIndex,
    ) -> None:  # fmt: skip
        self._partitions = partitions
        self._calls = calls
        self._once = once
        self._image = image
        self._make_topic = make_topic
        self._rng = rng
        self.shards = ScheduleShards(partitions, calls, once, image, clock, rng, disk, open_index)
        calls.serve(SCHEDULE_CANCEL, self._cancel)
        calls.serve(SCHEDULE_MOVE, self._move)
        calls.serve(SCHEDULE_GET, self.get)
        calls.serve(SCHEDULE_LIST, self.first)
        calls.serve(SCHEDULE_COUNT, self.count)

    # --- verbs

    async def park(
        self, topic: str | TopicId, partition: int, messages: Sequence[Parked], *, timeout_ms: int = TIMEOUT_MS,
        on_retry: Callable[[], None] = lambda: None,
    ) -> list[int]:  # fmt: skip
        """Have messages wait for their time; returns when that is kept: when each is due.

        The same ids may be parked again: what waits under an id is replaced, or (with WINDOW) stays as it is.
        """
        target = self._target(topic, partition)
        self.shards.check(target, messages)
        await self._make_topic()
        floor = await self._floor_of(target, messages)
        request = Park(target.topic_id, target.number, list(messages))
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_ms / 1000
        while True:
            left_ms = max(1, int((end - loop.time()) * 1000))
            try:
                return (await self._calls.ask(self._leader(target), SCHEDULE_PARK, request, timeout_ms=left_ms)).due_ms
            except RetriableError as error:
                pause_s = (PAUSE_MS + self._rng.below(PAUSE_MS)) / 1000
                if loop.time() + pause_s >= end or not self._may_ask_again(error, target, floor):
                    raise
                on_retry()
                await asyncio.sleep(pause_s)
                if floor is not None:
                    request = Park(target.topic_id, target.number, [_again(one, floor) for one in messages])

    async def _floor_of(self, target: PartitionKey, messages: Sequence[Parked]) -> int | None:
        """Where messages will lie that nobody has sent before, or further on; None if nobody can say."""
        if all(message.floor != NEWEST for message in messages):
            return 0  # they have their own
        try:
            return await self._once.floor(target.topic_id, target.number, timeout_ms=FLOOR_MS)
        except RunnelError:
            return None

    def _may_ask_again(self, error: RetriableError, target: PartitionKey, floor: int | None) -> bool:
        """Whether it went to the wrong broker, or came too early; without a floor nothing may have been done there."""
        return isinstance(error, UNDONE) or (
            is_elsewhere(error, self._image(), target.topic_id)
            and (floor is not None or not isinstance(error, ELSEWHERE))
        )

    async def cancel(self, ids: Sequence[str]) -> list[RunnelError | None]:
        """Take out what waits under each id; for each, None when that is kept, or why not."""
        return await self._change(CancelHere(list(ids)))

    async def move(self, id: str, due_ms: int) -> None:
        """Give what waits under this id another time; raises NotPending if it is too late, or nothing waits."""
        [error] = await self._change(CancelHere([id], due_ms))
        if error is not None:
            raise error

    async def first(self, request: ListPending) -> PendingMessages:
        """What is due first, from a time on."""
        rows_max = min(max(request.messages_max, 1), LIST_MAX)
        asked = FirstHere(self._topic_id(request.topic), request.from_ms, request.after_id, rows_max + 1)
        rows: list[WaitingRow] = []
        for broker in self._leaders():
            rows += (await self._calls.ask(broker, SCHEDULE_FIRST_HERE, asked)).rows
        rows.sort(key=lambda row: (row.due_ms, row.id))
        found = [self._shown(row, request.with_values) for row in rows[:rows_max]]
        return PendingMessages(found, len(rows) > rows_max)

    async def get(self, request: GetPending) -> PendingMessages:
        """What waits under an id."""
        asked = NamedHere(request.id)
        answers = [await self._calls.ask(broker, SCHEDULE_NAMED_HERE, asked) for broker in self._leaders()]
        return PendingMessages([self._shown(row, True) for answer in answers for row in answer.rows])

    async def count(self, request: CountPending) -> PendingCount:
        """How many wait, and when the first is due."""
        asked = CountHere(self._topic_id(request.topic))
        counts = [await self._calls.ask(broker, SCHEDULE_COUNT_HERE, asked) for broker in self._leaders()]
        first = min((one.next_due_ms for one in counts if one.next_due_ms >= 0), default=-1)
        return PendingCount(sum(one.messages for one in counts), first)

    def _target(self, topic: str | TopicId, number: int) -> PartitionKey:
        image = self._image()
        found = image.topic_named(topic) if isinstance(topic, str) else image.topic_with_id(topic)
        if not 0 <= number < len(found.partitions):
            raise UnknownTopic(f"topic {found.name!r} has partitions 0 to {len(found.partitions) - 1}, not {number}")
        return PartitionKey(found.id, number)

    def _topic_id(self, name: str) -> TopicId | None:
        return self._image().topic_named(name).id if name else None

    def _leader(self, target: PartitionKey) -> BrokerId:
        topic = self._image().topic(SCHEDULE)
        if topic is None:
            raise CoordinatorNotAvailable("the schedule's topic is not there yet: try again")
        leader = topic.partitions[shard_of(target, len(topic.partitions))].leader
        if leader == NO_LEADER:
            raise CoordinatorNotAvailable(f"the schedule of {target} has no leader now: try again")
        return leader

    def _leaders(self) -> list[BrokerId]:
        """All brokers that lead a shard; raises if one shard has no leader."""
        topic = self._image().topic(SCHEDULE)
        leaders = {partition.leader for partition in topic.partitions} if topic else set()
        if NO_LEADER in leaders:
            raise CoordinatorNotAvailable("a part of the schedule has no leader now: try again")
        return sorted(leaders)

    async def _change(self, request: CancelHere) -> list[RunnelError | None]:
        found = [False] * len(request.ids)
        errors: list[RunnelError | None] = [None] * len(request.ids)
        for broker in self._leaders():
            answer = await self._calls.ask(broker, SCHEDULE_CHANGE_HERE, request)
            for n, (is_found, failure) in enumerate(zip(answer.found, answer.failures, strict=True)):
                found[n] = found[n] or is_found
                errors[n] = errors[n] or error_of_failure(failure)
        missing = "no message waits under the id {!r}: it was delivered or cancelled, or there never was one"
        return [
            error or (None if is_found else NotPending(missing.format(id)))
            for id, is_found, error in zip(request.ids, found, errors, strict=True)
        ]

    async def _cancel(self, request: Cancel) -> Rescheduled:
        return Rescheduled([failure_of(error) for error in await self.cancel(request.ids)])

    async def _move(self, request: Move) -> Rescheduled:
        return Rescheduled(
            [failure_of(error) for error in await self._change(CancelHere([request.id], request.due_ms))]
        )

    def _shown(self, row: WaitingRow, with_values: bool) -> Pending:
        topic = self._image().topics.get(TopicId(row.topic_id))
        kept = kept_of(row.body)
        return Pending(
            row.id, row.due_ms, topic.name if topic else str(row.topic_id), row.partition,
            kept.key, kept.value if with_values else None, kept.headers, kept.parked_ms,
        )  # fmt: skip


def _again(message: Parked, floor: int) -> Parked:
    return structs.replace(message, floor=floor, again=True) if message.floor == NEWEST else message
