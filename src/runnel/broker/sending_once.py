"""Sending messages by requests that may come again: each message of a request that has an idempotency key is kept once.

Rule 1: where each message goes follows from the request and its key alone: who comes second goes to the same places.
Rule 2: messages get names of the key's; one that has a name of its own keeps it, and counts by it too.
Rule 3: the request is done when all its messages are kept. If one can't be, that is told, and the same request may be
        sent again: it goes on where it stopped.
Rule 4: a request that was refused and of which certainly nothing is kept gives its key back.
Rule 5: a call has a key of its own in the same way as a request over HTTP; without one it is sent as it comes.
"""

import hashlib
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from crc32c import crc32c

from runnel.broker.calls import Calls, failure_of
from runnel.broker.once import Once
from runnel.broker.requests import Requests
from runnel.broker.schedule import Schedule
from runnel.broker.sending import Sending, place_of
from runnel.cluster.image import Topic
from runnel.model.calls import MESSAGE_SEND, Outgoing, Placed, SendTo, Sent
from runnel.model.errors import ClientError, RunnelError
from runnel.model.ids import PartitionKey
from runnel.model.once import OnceMessage
from runnel.model.once import Placed as Lies
from runnel.model.schedule import Parked
from runnel.model.seams import Clock

NOT_YET: Final = -1  # the offset of a message that waits for its time

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[Placed]).decode


class _Named(NamedTuple):
    name: str
    message: Outgoing
    number: int  # in the request


class _Attempt:
    """An attempt to keep the messages of a request."""

    def __init__(self) -> None:
        self.left_nothing = True  # as far as anybody can say

    def leave(self) -> None:
        """Something may be kept now."""
        self.left_nothing = False


class SendingOnce:
    """The verb."""

    def __init__(
        self, requests: Requests, once: Once, schedule: Schedule, sending: Sending, calls: Calls, clock: Clock
    ) -> None:
        self._requests = requests
        self._once = once
        self._schedule = schedule
        self._sending = sending
        self._clock = clock
        calls.serve(MESSAGE_SEND, self._serve)

    async def _serve(self, asked: SendTo) -> Sent:
        if asked.request:
            return all_kept(await self.send(asked.request, digest_of(asked), asked.topic, asked.messages))
        sending = self._sending
        return each_told(await sending.send(asked.topic, asked.messages, acks=asked.acks, timeout_ms=asked.timeout_ms))

    async def send(self, key: str, digest: bytes, topic: str, messages: Sequence[Outgoing]) -> list[Placed]:
        """Where each message lies, once all are kept; the same for every request of this key. Raises why not."""
        found = await self._sending.topic_of(topic)
        parts: dict[PartitionKey, list[_Named]] = {}
        for number, message in enumerate(messages):
            place = PartitionKey(found.id, place_of(found, message, crc32c(key.encode()) % len(found.partitions)))
            parts.setdefault(place, []).append(_Named(message.message_id or f"{key}/{number}", message, number))

        attempt = _Attempt()

        async def act(floors: dict[PartitionKey, int]) -> bytes:
            placed: dict[int, Placed] = {}
            for place, named in parts.items():
                placed |= await self._keep(found, place, named, floors[place], attempt)
            return _encode([placed[number] for number in range(len(messages))])

        return _decode(await self._requests.once(key, digest, sorted(parts), act, lambda: attempt.left_nothing))

    async def _keep(
        self, topic: Topic, place: PartitionKey, named: list[_Named], floor: int, attempt: _Attempt
    ) -> dict[int, Placed]:
        now = [one for one in named if one.message.deliver_at_ms is None]
        later = [one for one in named if one.message.deliver_at_ms is not None]
        placed: dict[int, Placed] = {}
        if later:
            await self._park(place, [_parked(one, floor) for one in later], attempt)
        for one in later:
            placed[one.number] = Placed(topic.name, place.number, NOT_YET, scheduled_id=one.name)
        if now:
            kept = await self._append(place, [self._named(one, floor) for one in now], attempt)
            for one, lies in zip(now, kept, strict=True):
                duplicate = lies.duplicate and one.message.message_id is not None
                placed[one.number] = Placed(
                    topic.name, place.number, lies.offset, lies.timestamp_ms, duplicate=duplicate
                )
        return placed

    async def _park(self, place: PartitionKey, messages: list[Parked], attempt: _Attempt) -> None:
        try:
            await self._schedule.park(place.topic_id, place.number, messages, on_retry=attempt.leave)
        except ClientError:
            raise  # refused
        except BaseException:
            attempt.leave()
            raise
        attempt.leave()

    async def _append(self, place: PartitionKey, messages: list[OnceMessage], attempt: _Attempt) -> list[Lies]:
        results = await self._once.append_each(place.topic_id, place.number, messages, on_retry=attempt.leave)
        if not all(isinstance(result, ClientError) for result in results):
            attempt.leave()
        kept: list[Lies] = []
        for result in results:
            if isinstance(result, RunnelError):
                raise result
            kept.append(result)
        return kept

    def _named(self, one: _Named, floor: int) -> OnceMessage:
        message = one.message
        time_ms = self._clock.wall_ms() if message.timestamp_ms is None else message.timestamp_ms
        has_own = message.message_id is not None
        return OnceMessage(
            one.name, message.key, message.value, list(message.headers), time_ms, floor, in_window=has_own
        )


def _parked(one: _Named, floor: int) -> Parked:
    message = one.message
    assert message.deliver_at_ms is not None
    return Parked(one.name, message.deliver_at_ms, message.key, message.value, list(message.headers), floor)


def digest_of(call: object) -> bytes:
    """The digest that tells one call from another that has the same key."""
    return hashlib.sha256(_encode(call)).digest()


def all_kept(placed: Sequence[Placed]) -> Sent:
    return Sent(list(placed), [None] * len(placed))


def each_told(results: Sequence[Placed | RunnelError]) -> Sent:
    """For each message where it is, or why it is nowhere."""
    placed = [None if isinstance(result, RunnelError) else result for result in results]
    return Sent(placed, [failure_of(result) if isinstance(result, RunnelError) else None for result in results])
