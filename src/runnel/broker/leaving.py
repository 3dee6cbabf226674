"""Messages that leave a queue without having been accepted: dead letters, and copies for a later attempt.

Rule 1: what is to leave is kept by the delivery until it lies in its target, committed. It is tried for ever: what
        can't be appended now (its target has no leader, or refuses it) waits, and holds up nothing else.
Rule 2: each message is appended once, by its name, from a floor that was kept before it was sent for the first time.
Rule 3: a target that is not there is made; from then on the queue knows it, and how far it went.
Rule 4: of what leaves because the queue is too long, most was never looked at: a message that the queue would not
        deliver (its filter leaves it out, or it has expired) does not become a dead letter.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from msgspec.structs import replace

from runnel.broker.messages import Messages
from runnel.broker.offers import Rules, offer_of
from runnel.broker.once import Once, OnceMessage, Placed
from runnel.cluster.image import Image
from runnel.cluster.topic_rules import NewTopic
from runnel.model.calls import Outgoing
from runnel.model.errors import OffsetOutOfRange, RunnelError, UnknownTopic, UnknownTopicId, as_value
from runnel.model.limits import MIB
from runnel.model.queue_config import Expired, QueueConfig
from runnel.model.seams import Clock, Rng
from runnel.queues.copies import maker_of, told
from runnel.queues.expiry import expires_ms
from runnel.queues.letters import Origin, dead_letter, name_of_copy, retry_copy
from runnel.queues.values import Aimed, Leaving, LeavingId, Maker, Target, Why
from runnel.record.records import Record
from runnel.replica.partition import Partition

AT_ONCE_MAX: Final = 500  # messages in one request
AT_ONCE_BYTES_MAX: Final = MIB
PAUSE_MS, PAUSE_MS_MAX = 50, 30_000
LOUD_AFTER: Final = 6  # tries: about three seconds
DEAD, COPY = "dead", "copy"

REASONS: Final = {
    Why.REJECTED: "rejected",
    Why.ATTEMPTS: "attempts",
    Why.EXPIRED: "expired",
    Why.OVERFLOW: "max.length",
}

logger = logging.getLogger("runnel.queues")


class Park(Protocol):
    """Has messages appended once to a partition when they are due."""

    def __call__(self, target: Target, due_ms: int, messages: Sequence[OnceMessage]) -> Awaitable[None]: ...


class Targets:
    """The partitions that messages leave to, as far as they are known here."""

    def __init__(
        self, once: Once, image: Callable[[], Image], make_topics: Callable[[Sequence[NewTopic]], Awaitable[None]]
    ) -> None:
        self._once = once
        self._image = image
        self._make_topics = make_topics
        self._known: dict[tuple[str, int], Target] = {}
        self._learned = 0

    @property
    def version(self) -> tuple[int, int]:
        """Another one whenever something else may be known."""
        return self._image().version, self._learned

    def known(self, topic: str, number: int) -> Target | None:
        """The partition for what comes from one of this number, if it is known and still there."""
        found = self._image().topic(topic) if topic else None
        if found is None:
            return None
        target = self._known.get((topic, number % len(found.partitions)))
        return target if target is not None and target.topic_id == found.id else None

    async def find(self, topic: str, number: int, partitions: int) -> Target:
        """The same, made with so many partitions if it is not there, and with a floor that is new."""
        if self._image().topic(topic) is None:
            await self._make_topics([NewTopic(topic, partitions)])
        found = self._image().topic_named(topic)
        number %= len(found.partitions)
        target = Target(found.id, number, await self._once.floor(found.id, number))
        self._learn(topic, target)
        return target

    def reached(self, topic: str, target: Target, offset: int) -> None:
        """Something was appended there."""
        before = self._known.get((topic, target.partition))
        if before is None or before.topic_id != target.topic_id or before.floor < offset:
            self._learn(topic, Target(target.topic_id, target.partition, offset))

    def _learn(self, topic: str, target: Target) -> None:
        self._known[topic, target.partition] = target
        self._learned += 1


class Exits(NamedTuple):
    """What all leavers of a broker share."""

    messages: Messages
    once: Once
    park: Park
    targets: Targets
    clock: Clock
    rng: Rng


class _Sent(NamedTuple):
    id: LeavingId
    message: OnceMessage


class Leaver:
    """Has the messages of one outlet leave. `tell` is the delivery's ear."""

    def __init__(
        self, queue: str, partition: Partition, config: Callable[[], QueueConfig], partitions: Callable[[], int],
        exits: Exits, tell: Callable[[str, Any], None], made: Callable[[], int], rules: Callable[[], Rules],
    ) -> None:  # fmt: skip
        self._queue = queue
        self._partition = partition
        self._config = config
        self._partitions = partitions  # of the queue's topic
        self._exits = exits
        self._tell = tell
        self._made = made  # the number of the queue
        self._rules = rules
        self._left: dict[LeavingId, Leaving] = {}  # to do
        self._tries: dict[LeavingId, int] = {}
        self._worker: asyncio.Task[None] | None = None
        self._pauses: set[asyncio.TimerHandle] = set()

    @property
    def is_idle(self) -> bool:
        return self._worker is None and not self._pauses

    @property
    def targets_version(self) -> tuple[int, int]:
        return self._exits.targets.version

    def targets(self) -> tuple[Target | None, Target | None]:
        """Where dead letters and copies go, as far as that is known."""
        config, number, known = self._config(), self._partition.key.number, self._exits.targets.known
        return known(config.dead_topic_of(self._queue), number), known(config.retry_topic_of(self._queue), number)

    def close(self) -> None:
        for pause in self._pauses:
            pause.cancel()
        self._pauses.clear()
        self._left.clear()
        if self._worker is not None:
            self._worker.cancel()

    def leave(self, leaving: Leaving) -> None:
        """Begin to have some messages leave."""
        self._left[leaving.id] = leaving
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._work())
            self._worker.add_done_callback(_report)

    async def _work(self) -> None:
        try:
            while self._left:
                todo, self._left = self._left, {}
                for leaving in [one for one in todo.values() if one.target is None]:
                    await self._aim(leaving)
                for group in _groups(todo.values()):
                    await self._send(group)
        finally:
            self._worker = None

    def _failed(self, leaving: Leaving, error: RunnelError) -> None:
        """Try it again later; rule 1."""
        tries = self._tries[leaving.id] = self._tries.get(leaving.id, 0) + 1
        pause_ms = min(PAUSE_MS * 2**tries, PAUSE_MS_MAX)
        if tries >= LOUD_AFTER:
            logger.warning(
                "queue %r: what is to leave %s from offset %d on can't yet, the next try is in %d ms: %s",
                self._queue, self._partition.name, leaving.first, pause_ms, error,
            )  # fmt: skip
        if isinstance(error, UnknownTopic | UnknownTopicId):
            leaving = replace(leaving, target=None)  # it was deleted: find another

        def again() -> None:
            self._pauses.discard(pause)
            self.leave(leaving)

        delay_s = (pause_ms + self._exits.rng.below(pause_ms)) / 2000
        pause = asyncio.get_running_loop().call_later(delay_s, again)
        self._pauses.add(pause)

    # --- where to

    def _topic_of(self, leaving: Leaving) -> str:
        config = self._config()
        return config.dead_topic_of(self._queue) if leaving.why.dies else config.retry_topic_of(self._queue)

    async def _aim(self, leaving: Leaving) -> None:
        topic = self._topic_of(leaving)
        if not topic:
            self._tell("left", leaving.id)  # the setting was taken out meanwhile: there is nowhere to go
            return
        partitions = 1 if leaving.why.dies else self._partitions()
        try:
            target = await self._exits.targets.find(topic, self._partition.key.number, partitions)
        except RunnelError as error:
            self._failed(leaving, error)
        else:
            self._tell("aim", Aimed(leaving.id, target))

    # --- going there

    async def _send(self, group: Sequence[Leaving]) -> None:
        """Have all messages of some leavings appended, which have one target and one time."""
        failed: dict[LeavingId, RunnelError] = {}
        some: list[_Sent] = []
        size = 0
        for leaving in group:
            for offset in range(leaving.first, leaving.last + 1):
                try:
                    record = await self._read(offset)
                except RunnelError as error:
                    failed[leaving.id] = as_value(error)
                    continue
                if record is None:
                    continue  # retention or compaction took it
                if leaving.why is Why.OVERFLOW and not self._would_deliver(leaving, record):
                    continue
                some.append(_Sent(leaving.id, self._message(leaving, record)))
                size += len(record.value or b"")
                if len(some) >= AT_ONCE_MAX or size >= AT_ONCE_BYTES_MAX:
                    failed |= await self._append(leaving, some)
                    some, size = [], 0
        if some:
            failed |= await self._append(group[0], some)
        for leaving in group:
            if leaving.id in failed:
                self._failed(leaving, failed[leaving.id])
            else:
                self._tries.pop(leaving.id, None)
                self._tell("left", leaving.id)

    async def _append(self, kind: Leaving, some: Sequence["_Sent"]) -> dict[LeavingId, RunnelError]:
        """Append once, or have it done when it is due; returns what failed."""
        exits, target = self._exits, kind.target
        assert target is not None
        messages = [one.message for one in some]
        try:
            if kind.due_ms:  # also if that is over by now: what was parked is known by another name than what was not
                await exits.park(target, kind.due_ms, messages)
                return {}
            placed = await exits.once.append_each(target.topic_id, target.partition, messages)
        except RunnelError as error:
            return dict.fromkeys((one.id for one in some), as_value(error))
        ends = [place.offset + 1 for place in placed if isinstance(place, Placed)]
        if ends:
            exits.targets.reached(self._topic_of(kind), target, max(ends))
        return {one.id: place for one, place in zip(some, placed, strict=True) if isinstance(place, RunnelError)}

    async def _read(self, offset: int) -> Record | None:
        try:
            return (await self._exits.messages.read(self._partition, offset)).get(offset)
        except OffsetOutOfRange:
            return None

    def _would_deliver(self, leaving: Leaving, record: Record) -> bool:
        """Rule 4."""
        offer = offer_of(record, self._rules())
        has_expired = 0 < offer.expires_ms <= leaving.left_ms and self._config().expired is Expired.DROP
        return offer.passes and not has_expired

    def _message(self, leaving: Leaving, record: Record) -> OnceMessage:
        assert leaving.target is not None
        key = self._partition.key
        origin = Origin(self._partition.topic, key.number, record.offset, record.timestamp)
        name = name_of_copy(DEAD if leaving.why.dies else COPY, self._queue, key, record.offset, leaving.generation)
        copy: Outgoing
        if leaving.why.dies:
            copy = dead_letter(
                record, origin, name, queue=self._queue, reason=leaving.reason or REASONS[leaving.why],
                attempts=leaving.attempts, now_ms=leaving.left_ms,
            )  # fmt: skip
        else:
            expires = expires_ms(record.headers, record.timestamp)
            copy = retry_copy(record, origin, name, attempts=leaving.attempts, expires_ms=expires)
        headers = told(copy.headers, None if leaving.why.dies else self._maker(leaving, record))
        return OnceMessage(name, copy.key, copy.value, headers, leaving.left_ms, leaving.target.floor, True)

    def _maker(self, leaving: Leaving, record: Record) -> Maker:
        """A copy of a copy was made by what made that one; whatever else comes with such a header, was not made so."""
        is_copy = self._partition.topic == self._config().retry_topic_of(self._queue)
        first = maker_of(record.headers) if is_copy else None
        return first or Maker(self._made(), self._partition.key, leaving.generation)


def _groups(todo: Iterable[Leaving]) -> list[list[Leaving]]:
    """Those that go to one place at one time, together."""
    groups: defaultdict[tuple[Any, ...], list[Leaving]] = defaultdict(list)
    for leaving in todo:
        if leaving.target is not None:
            groups[leaving.target.topic_id, leaving.target.partition, leaving.due_ms].append(leaving)
    return list(groups.values())


def _report(worker: "asyncio.Task[None]") -> None:
    if not worker.cancelled() and (error := worker.exception()):
        logger.error("messages that are to leave a queue are stuck", exc_info=error)
