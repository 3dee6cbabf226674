"""One partition of the schedule's topic, as its leader: what waits in it is parked, changed and sent from here.

Rule 1: nothing is answered before it is committed, and nothing is sent whose front is not (queues/schedule.py).
Rule 2: a shard belongs to one leader epoch. It begins when all that its log has is committed and in the index.
Rule 3: what the agenda believes of messages under way ends when the index has followed: never before.
Rule 4: a target that is gone for good (its topic was deleted) takes with it what waits for it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from runnel.broker.due_tail import Tail
from runnel.broker.keyed_lock import KeyedLock
from runnel.broker.once import Once, OnceMessage
from runnel.broker.schedule_book import Book
from runnel.broker.standing import persist
from runnel.model.errors import (
    CoordinatorLoading,
    InvalidRequest,
    LeaderNotAvailable,
    NotCoordinator,
    NotLeader,
    NotPending,
    RunnelError,
    UnknownTopicId,
    as_value,
)
from runnel.model.ids import PartitionKey
from runnel.model.limits import MIB
from runnel.model.once import WINDOW
from runnel.model.schedule import CANCELLED_MS, DUE_MS_MAX, NEWEST, DueIndex, Front, Parked, Row, TargetRow
from runnel.model.seams import Clock, Rng
from runnel.queues.schedule import Agenda, Fire, KeepFront, Order
from runnel.queues.schedule_records import (
    Kept,
    ScheduleRecord,
    cancellation,
    front_record,
    kept_of,
    message_record,
    tombstone,
)
from runnel.replica.partition import Partition

FIRE_ROWS: Final = 500  # sent to one target at once: about 20 ms of the loop
FIRE_BYTES: Final = MIB
ORDERS_MAX: Final = 64  # targets that are busy at once
SEND_MS: Final = 5_000  # then the target waits for its next turn
TICK_S_MAX: Final = 1.0  # a wall clock that was set is noticed within
RETRY_S: Final = 0.5
BURY_S: Final = 0.05  # the end of what was sent within this time is kept together
BURY_ROWS: Final = 2_000
DROP_ROWS: Final = 1_000
LAG_MAX: Final = 4_000  # records that the index may be behind when more are parked: about 50 ms

logger = logging.getLogger("runnel.schedule")


class Topics(Protocol):
    """The topics of the cluster, as the schedule sees them."""

    def has(self, target: PartitionKey) -> bool: ...

    def is_led(self, target: PartitionKey) -> bool: ...


class ScheduleShard:
    """What waits in one partition, and those who send it."""

    def __init__(
        self, tail: Tail, once: Once, topics: Topics, clock: Clock, rng: Rng,
    ) -> None:  # fmt: skip
        self.partition: Partition = tail.partition
        self._tail = tail
        self._once = once
        self._clock = clock
        self._rng = rng
        self._topics = topics
        self._book = Book(tail.partition, clock)
        self._agenda = Agenda(0)
        self._floors: dict[PartitionKey, int] = {}
        self._work: set[asyncio.Future[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._graves: list[tuple[PartitionKey, str]] = []
        self._burial: asyncio.TimerHandle | None = None  # it is due, or under way
        self._dropping: set[PartitionKey] = set()
        self._changes = KeyedLock()  # of one id the second one meets what the first one left
        self.loaded = False
        self._trouble: Exception | None = None  # why it can't begin
        self.fired = 0  # since this epoch began
        self.dropped = 0  # because their topic was deleted
        self.late_ms_max = 0

    def belongs_to(self, partition: Partition | None) -> bool:
        return partition is self.partition and self._book.epoch == partition.leader_epoch

    @property
    def trouble(self) -> Exception | None:
        """Why it does not serve, if something failed."""
        return self._tail.trouble or self._trouble

    def open(self) -> None:
        self._start(persist(self._load, f"the schedule in {self.partition.name}", self._failed))

    def _failed(self, error: Exception) -> None:
        self._trouble = error

    def close(self) -> None:
        self.loaded = False
        self._tail.on_waiting = None
        for timer in (self._timer, self._burial):
            if timer is not None:
                timer.cancel()
        for task in self._work:
            task.cancel()

    def _start(self, work: "Awaitable[None]") -> None:
        task = asyncio.ensure_future(work)
        self._work.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Future[None]") -> None:
        self._work.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("the schedule in %s stumbled", self.partition.name, exc_info=error)
        self._arm()

    async def _load(self) -> None:
        while self._book.stands:
            try:
                end = await self._book.settled()
                await self._tail.reached(end)
                rows = await self._tail.look(lambda index: index.targets())
            except NotLeader:
                return
            except RunnelError as error:
                self._trouble = None if isinstance(error, CoordinatorLoading) else as_value(error)
                opening = isinstance(error, CoordinatorLoading)  # which takes a moment, and is nothing to be warned of
                level = logging.DEBUG if opening else logging.WARNING
                logger.log(level, "the schedule in %s can't begin yet: %s", self.partition.name, error)
                await asyncio.sleep(RETRY_S)
                continue
            self._agenda = Agenda(end)
            for row in rows:
                self._agenda.restore(row.target, row.next_due_ms, row.front)
            self.loaded, self._trouble = True, None
            self._tail.on_waiting = self._learn
            self.look_for_deleted()
            self._arm()
            return

    # --- verbs

    def _must_serve(self) -> None:
        if not self._book.stands:
            raise NotCoordinator(f"{self.partition.name} is not led here any more: look for its leader")
        if not self.loaded:
            raise CoordinatorLoading(f"{self.partition.name} is reading its log: try again")

    async def park(self, target: PartitionKey, messages: Sequence[Parked]) -> list[int]:
        """Have messages wait; when each is due. One of a name that waits already goes on as it was."""
        self._must_serve()
        if not self._topics.has(target):
            raise UnknownTopicId(f"there is no partition {target}: ask for metadata")
        # Whoever sends waits for the index to come along: it has to know all before it tells what is due.
        await self._tail.reached(self.partition.high_watermark - LAG_MAX)
        now = self._clock.wall_ms()
        known = await self._waiting(target, [one.id for one in messages if _stays(one)])
        rows = [
            message_record(
                target, one.id, Kept(one.due_ms, now, self._floor(target, one), one.key, one.value, one.headers)
            )
            for one in messages
            if one.id not in known
        ]
        if rows:
            await self._book.keep(rows)
        return [known.get(one.id, one.due_ms) for one in messages]

    def _learn(self, waiting: Mapping[PartitionKey, int]) -> None:
        """The index has more that waits."""
        for target, due_ms in waiting.items():
            self._agenda.parked(target, due_ms)
        if not all(self._topics.has(target) for target in waiting):
            self.look_for_deleted()  # its topic went meanwhile
        self._arm()

    def _floor(self, target: PartitionKey, message: Parked) -> int:
        """What was certainly not sent is not looked for: that would be far to look once it is due."""
        is_new = message.again and not self._agenda.may_have_sent(target, message.due_ms)
        return NEWEST if is_new else message.floor

    async def _waiting(self, target: PartitionKey, ids: Sequence[str]) -> dict[str, int]:
        """When those of the ids are due that wait already."""
        if not ids:
            return {}
        await self._tail.reached(self.partition.high_watermark)
        rows = await self._tail.look(lambda index: [index.get(target, id) for id in ids])
        return {row.id: row.due_ms for row in rows if row is not None}

    async def cancel(self, id: str) -> bool:
        """Take out all messages of this id; whether there was one. NotPending if it is too late for one of them.

        Whoever asks again within a day gets the same answer, unless a message came under the id since.
        """
        async with self._changes.of(id):
            rows = await self._named(id)
            for row in rows:
                await self._change(row, None)
            return bool(rows) or await self._was_cancelled(id)

    async def move(self, id: str, due_ms: int) -> bool:
        """Give all messages of this id another time; whether there was one."""
        if not 0 <= due_ms <= DUE_MS_MAX:
            raise InvalidRequest(
                f"a message can't be due at {due_ms}: give milliseconds since 1970, up to {DUE_MS_MAX}"
            )
        async with self._changes.of(id):
            rows = await self._named(id)
            for row in rows:
                await self._change(row, due_ms)
            return bool(rows)

    async def _was_cancelled(self, id: str) -> bool:
        cancelled_ms = await self._tail.look(lambda index: index.cancelled_ms(id))
        return cancelled_ms is not None and self._clock.wall_ms() - cancelled_ms < CANCELLED_MS

    async def _named(self, id: str) -> list[Row]:
        self._must_serve()
        await self._tail.reached(self.partition.high_watermark)
        return await self._tail.look(lambda index: index.named(id))

    async def _change(self, seen: Row, due_ms: int | None) -> None:
        self._must_serve()
        self._agenda.change(seen)
        now_due: int | None = seen.due_ms
        try:
            # What was seen may have been sent since; from here on it can't be.
            row = await self._tail.look(lambda index: index.get(seen.target, seen.id))
            if row is None or row.offset != seen.offset:
                raise NotPending(f"message {seen.id!r} does not wait any more: it was delivered or changed just now")
            now_ms = self._clock.wall_ms()
            record = cancellation(seen.target, seen.id, now_ms) if due_ms is None else _moved(row, due_ms)
            offset = await self._book.keep([record])
            await self._tail.reached(offset + 1)
            now_due = due_ms
        finally:
            self._agenda.changed(seen, now_due)
            self._arm()

    # --- looking

    async def named(self, id: str) -> list[Row]:
        """What waits under this id."""
        return [row for row in await self._named(id) if not self._agenda.was_sent(row)]

    async def count(self, wanted: Callable[[PartitionKey], bool]) -> tuple[int, int | None]:
        """How many wait for these targets, and when the first is due."""
        self._must_serve()
        await self._tail.reached(self.partition.high_watermark)
        sent = {target: self._agenda.sent(target) for target in self._agenda.targets if wanted(target)}
        rows = await self._tail.look(
            lambda index: [_without(row, sent.get(row.target), index) for row in index.targets()]
        )
        chosen = [row for row in rows if row.pending and wanted(row.target)]
        return sum(row.pending for row in chosen), min(
            (row.next_due_ms for row in chosen if row.next_due_ms), default=None
        )

    async def first(
        self, wanted: Callable[[PartitionKey], bool], from_ms: int, after_id: str, rows_max: int
    ) -> list[Row]:
        """The first that are due from then on, in order; of those due just then, those behind an id."""
        self._must_serve()
        await self._tail.reached(self.partition.high_watermark)
        rows: list[Row] = []
        for target in [target for target in self._agenda.targets if wanted(target)]:
            found = await self._tail.look(
                partial(_first, target, from_ms, after_id, rows_max + self._agenda.unburied(target))
            )
            rows += [row for row in found if not self._agenda.was_sent(row)]
            if len(rows) > 4 * rows_max:
                rows = sorted(rows, key=by_time)[:rows_max]
        return sorted(rows, key=by_time)[:rows_max]

    # --- time

    def _arm(self) -> None:
        """Look again when the agenda says so."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self.loaded or len(self._work) >= ORDERS_MAX:
            return
        at = self._agenda.wake_ms()
        if at is not None:
            delay_s = min(max(at - self._clock.wall_ms(), 0) / 1000, TICK_S_MAX)
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _tick(self) -> None:
        self._timer = None
        if not self._book.stands:
            return
        for order in self._agenda.orders(self._clock.wall_ms(), ORDERS_MAX - len(self._work)):
            self._start(self._carry_out(order))
        self._arm()

    async def _carry_out(self, order: Order) -> None:
        try:
            if not self._topics.is_led(order.target):
                raise LeaderNotAvailable(f"{order.target} has no leader now")  # nobody else waits for it meanwhile
            if isinstance(order, KeepFront):
                await self._keep_front(order)
            else:
                await self._fire(order)
        except UnknownTopicId:
            self.look_for_deleted()
            self._agenda.failed(order.target, self._clock.wall_ms(), self._jitter())
        except RunnelError as error:
            if self._book.stands:
                logger.warning("%s: messages for %s have to wait: %s", self.partition.name, order.target, error)
            self._agenda.failed(order.target, self._clock.wall_ms(), self._jitter())

    def _jitter(self) -> float:
        return self._rng.below(1000) / 1000

    async def _keep_front(self, order: KeepFront) -> None:
        floor = self._floors.get(order.target)
        if floor is None:
            floor = await self._once.floor(order.target.topic_id, order.target.number, timeout_ms=SEND_MS)
        front = Front(order.upto_ms, min(floor, order.floor_max))
        await self._book.keep([front_record(order.target, front)])
        self._agenda.fronted(order.target, front)

    async def _fire(self, order: Fire) -> None:
        target = order.target
        await self._tail.reached(self.partition.high_watermark)
        rows_max = FIRE_ROWS + self._agenda.unburied(target)
        rows, following = await self._tail.look(lambda index: _due(index, target, order.upto_ms, rows_max))
        taken, sent = self._agenda.take(target, rows), {}
        if taken:
            now = self._clock.wall_ms()
            self.late_ms_max = max(self.late_ms_max, now - taken[0].due_ms)
            messages = [_message(row, order.floor, now) for row in taken]
            placed = await self._once.append(target.topic_id, target.number, messages, timeout_ms=SEND_MS)
            self._floors[target] = max(self._floors.get(target, 0), *(one.offset + 1 for one in placed))
            sent = {row.id: one.offset for row, one in zip(taken, placed, strict=True)}
            self.fired += len(sent)
            self._bury(target, sent)
        self._agenda.fired(target, sent, following, self._clock.wall_ms())

    # --- the end of what was sent

    def _bury(self, target: PartitionKey, sent: Iterable[str]) -> None:
        self._graves += [(target, id) for id in sent]
        if self._graves and self._burial is None:
            loop = asyncio.get_running_loop()
            self._burial = loop.call_later(BURY_S, lambda: self._start(self._bury_all()))

    async def _bury_all(self) -> None:
        """Keep the end of all that was sent, and try again until that is done: nothing else does it in this epoch."""
        while self._graves and self._book.stands:
            graves, self._graves = self._graves[:BURY_ROWS], self._graves[BURY_ROWS:]
            try:
                offset = await self._book.keep([tombstone(target, id) for target, id in graves])
                await self._tail.reached(offset + len(graves))
            except RunnelError as error:
                logger.warning(
                    "%s: the end of %d messages is not kept yet: %s", self.partition.name, len(graves), error
                )
                self._graves += graves
                await asyncio.sleep(RETRY_S)
                continue
            for target, ids in _by_target(graves).items():
                self._agenda.buried(target, ids)
        self._burial = None

    # --- targets that are gone

    def look_for_deleted(self) -> None:
        """Take out what waits for topics that are not there any more."""
        if not self.loaded:
            return
        for target in [target for target in self._agenda.targets if not self._topics.has(target)]:
            if target not in self._dropping:
                self._dropping.add(target)
                self._start(self._drop(target))

    async def _drop(self, target: PartitionKey) -> None:
        gone = 0
        try:
            while self._book.stands:
                await self._tail.reached(self.partition.high_watermark)
                rows = await self._tail.look(lambda index: index.first(target, -1, "", DROP_ROWS))
                records = [tombstone(target, row.id) for row in rows] or [front_record(target, None)]
                offset = await self._book.keep(records)
                gone += len(rows)
                self.dropped += len(rows)
                await self._tail.reached(offset + len(records))
                if not rows:
                    self._agenda.forget(target)
                    break
        except RunnelError as error:
            logger.warning("%s: what waits for the deleted %s stays for now: %s", self.partition.name, target, error)
        finally:
            self._dropping.discard(target)
            if gone:
                logger.warning(
                    "%s: %d messages that waited for %s went with its topic", self.partition.name, gone, target
                )


def _stays(message: Parked) -> bool:
    """Whether one that waits under the same id already goes on as it is."""
    return message.again or (message.floor == WINDOW and not message.replaces)


def _due(index: DueIndex, target: PartitionKey, upto_ms: int, rows_max: int) -> tuple[list[Row], int | None]:
    """What is due, and when the next one is behind it."""
    rows = index.due(target, upto_ms, rows_max, FIRE_BYTES)
    after = (rows[-1].due_ms, rows[-1].offset) if rows else (-1, -1)
    return rows, index.next_due_ms(target, *after)


def _by_target(graves: Sequence[tuple[PartitionKey, str]]) -> dict[PartitionKey, list[str]]:
    ids: dict[PartitionKey, list[str]] = {}
    for target, id in graves:
        ids.setdefault(target, []).append(id)
    return ids


def by_time(row: Row) -> tuple[int, str]:
    return row.due_ms, row.id


def _first(target: PartitionKey, from_ms: int, after_id: str, rows_max: int, index: DueIndex) -> list[Row]:
    return index.first(target, from_ms, after_id, rows_max)


def _without(row: TargetRow, sent: Collection[str] | None, index: DueIndex) -> TargetRow:
    """What waits for a target, without what was sent and is still in the index."""
    if not sent or not row.pending:
        return row
    left = [one for one in index.first(row.target, 0, "", len(sent) + 1) if one.id not in sent]
    gone = sum(index.get(row.target, id) is not None for id in sent)
    return row._replace(pending=row.pending - gone, next_due_ms=left[0].due_ms if left else None)


def _moved(row: Row, due_ms: int) -> ScheduleRecord:
    kept = kept_of(row.body)
    moved = Kept(due_ms, kept.parked_ms, kept.floor, kept.key, kept.value, kept.headers)
    return message_record(row.target, row.id, moved)


def _message(row: Row, floor: int, now_ms: int) -> OnceMessage:
    kept = kept_of(row.body)
    name = row.id if kept.floor == WINDOW else f"due:{row.id}"
    if kept.floor not in (NEWEST, WINDOW):
        floor = min(floor, kept.floor)
    return OnceMessage(
        name, kept.key, kept.value, kept.headers, max(now_ms, row.due_ms), floor, True, kept.floor == WINDOW
    )
