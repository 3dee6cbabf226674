"""Sending messages to topics from any broker, one or many, for doors whose clients know neither leaders nor batches.

Rule 1: a message with a key goes where every Kafka client sends that key; one without a key goes where its name says,
        so that a second one of that name meets the first. Those with neither that are sent together stay together, in a
        partition chosen by lot.
Rule 2: acks=all: sent in the batches of an idempotent producer, together with what others send there (`mailing`): so
        what happens on the way never doubles a message. A weaker acks is a request of its own to the leader.
Rule 3: a message that has a name is appended once (`once`), one that has a time is parked (`schedule`).
Rule 4: one message's error costs the others nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeAlias

from crc32c import crc32c

from runnel.broker.internal import refuse_internal
from runnel.broker.mailing import BATCH_BYTES, ONES_FAULT, Append, Mailing, NewProducer
from runnel.broker.once import Once
from runnel.broker.produce import ACKS_ALL
from runnel.broker.schedule import Schedule
from runnel.client.partitioner import partition_of_key
from runnel.cluster.image import VIEW_OF, Image, Topic
from runnel.model.calls import Outgoing, Placed
from runnel.model.errors import InvalidAcks, InvalidPartitions, ReadOnlyTopic, RequestTimedOut, RunnelError, as_value
from runnel.model.ids import PartitionKey
from runnel.model.limits import FRAME_BYTES_MAX
from runnel.model.once import WINDOW, OnceMessage
from runnel.model.schedule import Parked
from runnel.model.seams import Clock, Rng
from runnel.record.records import Record, encode

TIMEOUT_MS: Final = 30_000
NOT_YET: Final = -1  # the offset of a message that waits for its time
ID_BYTES: Final = 16
MAILINGS_MAX: Final = 2_000  # partitions whose producer is remembered

Sent: TypeAlias = Placed | RunnelError
Way: TypeAlias = Callable[[Topic, int, Sequence[Outgoing], int, int], Awaitable[Sequence[Sent]]]


class Sending:
    """The verb."""

    def __init__(
        self, image: Callable[[], Image], *,
        append: Append, new_producer: NewProducer, make_topics: Callable[[Sequence[str]], Awaitable[None]],
        once: Once, schedule: Schedule, clock: Clock, rng: Rng,
    ) -> None:  # fmt: skip
        self._image = image
        self._append = append
        self._new_producer = new_producer
        self._make_topics = make_topics
        self._once = once
        self._schedule = schedule
        self._clock = clock
        self._rng = rng
        self._mailings: dict[PartitionKey, Mailing] = {}

    def close(self) -> None:
        for mailing in self._mailings.values():
            mailing.close(RequestTimedOut("the broker stops: nothing of the message was kept, send it to another one"))
        self._mailings.clear()

    async def send(
        self, topic: str, messages: Sequence[Outgoing], *, acks: int = ACKS_ALL, timeout_ms: int = TIMEOUT_MS
    ) -> list[Sent]:
        """For each message where it lies, once that is acknowledged, or why it does not."""
        if acks not in (ACKS_ALL, 0, 1):
            raise InvalidAcks(f"acks={acks} is not known: use 0, 1 or -1 (all)")
        found = await self.topic_of(topic)
        lot = self._rng.below(len(found.partitions))
        late = RequestTimedOut(f"it was not acknowledged in {timeout_ms} ms: it may be kept yet, or not")
        results: list[Sent] = [late] * len(messages)
        mailed: list[tuple[int, int, asyncio.Future[int]]] = []
        others: dict[tuple[int, Way], list[int]] = {}
        mailings: dict[int, Mailing] = {}
        for number, message in enumerate(messages):
            try:
                partition, way = _partition_of(found, message, lot), self._way(message, acks)
                if way is not None:
                    others.setdefault((partition, way), []).append(number)
                    continue
                to = mailings.get(partition) or mailings.setdefault(partition, self._mailing(found, partition))
                place = to.put(message.key, message.value, tuple(message.headers), self._time(message))
                mailed.append((number, partition, place))
            except RunnelError as error:
                results[number] = as_value(error)
        for (partition, way), numbers in others.items():
            some = [messages[number] for number in numbers]
            for number, sent in zip(numbers, await _try(way, found, partition, some, acks, timeout_ms), strict=True):
                results[number] = sent
        if mailed and timeout_ms < TIMEOUT_MS:  # mailings have that deadline themselves
            _, waiting = await asyncio.wait([place for _, _, place in mailed], timeout=timeout_ms / 1000)
            for place in waiting:
                place.add_done_callback(_ignore)
            mailed = [one for one in mailed if one[2].done()]
        for number, partition, place in mailed:
            results[number] = await _placed(topic, partition, place)
        return results

    def _way(self, message: Outgoing, acks: int) -> "Way | None":
        """How a message goes that does not go with the others."""
        if message.deliver_at_ms is not None:
            return self._park
        if message.message_id is not None:
            return self._name
        return None if acks == ACKS_ALL else self._produce

    async def topic_of(self, name: str) -> Topic:
        """The topic to send to, made if it may be; raises why nothing can be sent there."""
        refuse_internal(name)
        if name not in self._image().names:
            await self._make_topics([name])
        found = self._image().topic_named(name)
        if found.is_view:
            raise ReadOnlyTopic(f"topic {name!r} is a view of {found.config[VIEW_OF]!r}: send to that topic")
        return found

    # --- the ways that a message can go

    def _mailing(self, topic: Topic, partition: int) -> Mailing:
        """Its limit is the leader's affair: topics have limits of their own."""
        key = PartitionKey(topic.id, partition)
        mailing = self._mailings.get(key)
        if mailing is None:
            if len(self._mailings) >= MAILINGS_MAX:
                self._mailings = {key: mailing for key, mailing in self._mailings.items() if not mailing.idle}
            mailing = self._mailings[key] = Mailing(key, self._append, self._new_producer, FRAME_BYTES_MAX)
        return mailing

    async def _park(
        self, topic: Topic, partition: int, messages: Sequence[Outgoing], acks: int, timeout_ms: int
    ) -> Sequence[Sent]:
        parked = [self._parked(message) for message in messages]
        await self._schedule.park(topic.id, partition, parked, timeout_ms=timeout_ms)
        return [Placed(topic.name, partition, NOT_YET, scheduled_id=one.id) for one in parked]

    def _parked(self, message: Outgoing) -> Parked:
        """Under the message's own name, which a second one of that name finds, or under one that nobody else has."""
        assert message.deliver_at_ms is not None
        name, body = message.message_id, (message.key, message.value, list(message.headers))
        if name is not None:
            return Parked(name, message.deliver_at_ms, *body, floor=max(message.floor, WINDOW))
        return Parked(self._rng.token(ID_BYTES).hex(), message.deliver_at_ms, *body)

    async def _name(
        self, topic: Topic, partition: int, messages: Sequence[Outgoing], acks: int, timeout_ms: int
    ) -> Sequence[Sent]:
        once = [
            OnceMessage(
                one.message_id or "", one.key, one.value, list(one.headers), self._time(one), max(one.floor, WINDOW)
            )
            for one in messages
        ]
        results = await self._once.append_each(topic.id, partition, once, timeout_ms=timeout_ms)
        return [
            each if isinstance(each, RunnelError)
            else Placed(topic.name, partition, each.offset, each.timestamp_ms, duplicate=each.duplicate)
            for each in results
        ]  # fmt: skip

    async def _produce(
        self, topic: Topic, partition: int, messages: Sequence[Outgoing], acks: int, timeout_ms: int
    ) -> Sequence[Sent]:
        """In batches of a request's own; where one message may be to blame, look for it by halves (rule 4)."""
        records = [Record(n, self._time(one), one.key, one.value, tuple(one.headers)) for n, one in enumerate(messages)]
        batch, half = encode(records), len(messages) // 2
        if half == 0 or len(batch) <= BATCH_BYTES:
            try:
                key = PartitionKey(topic.id, partition)
                produced = await self._append(key, memoryview(bytearray(batch)), acks, timeout_ms)
                return [Placed(topic.name, partition, produced.base_offset + n) for n in range(len(messages))]
            except ONES_FAULT as error:
                if half == 0:
                    return [as_value(error)]
        first = await _try(self._produce, topic, partition, messages[:half], acks, timeout_ms)
        return [*first, *await _try(self._produce, topic, partition, messages[half:], acks, timeout_ms)]

    def _time(self, message: Outgoing) -> int:
        return self._clock.wall_ms() if message.timestamp_ms is None else message.timestamp_ms


def _partition_of(topic: Topic, message: Outgoing, lot: int) -> int:
    name = message.message_id
    return place_of(topic, message, lot if name is None else crc32c(name.encode()) % len(topic.partitions))


def place_of(topic: Topic, message: Outgoing, lot: int) -> int:
    """The partition that a message is for, or that its key says, or else the one that is given."""
    count = len(topic.partitions)
    if message.partition is not None:
        if not 0 <= message.partition < count:
            raise InvalidPartitions(f"topic {topic.name!r} has partitions 0 to {count - 1}, not {message.partition}")
        return message.partition
    return lot if message.key is None else partition_of_key(message.key, count)


async def _try(
    way: Way, topic: Topic, partition: int, messages: Sequence[Outgoing], acks: int, timeout_ms: int
) -> Sequence[Sent]:
    try:
        return await way(topic, partition, messages, acks, timeout_ms)
    except RunnelError as error:
        return [as_value(error)] * len(messages)


def _ignore(place: "asyncio.Future[int]") -> None:
    """Nobody waits for it any more: what became of it is no error of anybody."""
    if not place.cancelled():
        place.exception()


async def _placed(topic: str, partition: int, place: "asyncio.Future[int]") -> Sent:
    try:
        return Placed(topic, partition, await place)
    except RunnelError as error:
        return as_value(error)
