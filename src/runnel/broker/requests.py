"""Requests that may be sent again: the second of a key gets the first one's answer, on any broker, after any crash.

Rule 1: before anything is done, the request is kept under its key, with where its messages will go and a floor there.
        One partition of an internal topic keeps a key, its leader decides who was first.
Rule 2: what is done is done by name above that floor (`once`, `schedule`): doing it again changes nothing, and says the
        same. So whoever comes second does the same, if there is no answer yet.
Rule 3: the answer is kept when it is known. It may be lost: rule 2 makes it again.
Rule 4: another request under the same key is refused.
Rule 5: a key is looked up in an index on disk: memory does not grow with the number of keys. They are forgotten with
        the retention of the topic.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

import msgspec

from runnel.broker.calls import Calls
from runnel.broker.internal import REQUESTS
from runnel.broker.key_index import KeyIndex, hash_of
from runnel.broker.key_indexes import KeyIndexes
from runnel.broker.mailing import Append, Mailing, NewProducer
from runnel.broker.messages import Messages
from runnel.broker.once import Once
from runnel.broker.partitions import Partitions
from runnel.broker.routing import ELSEWHERE
from runnel.broker.unserved import Unserved
from runnel.client.partitioner import partition_of_key
from runnel.cluster.image import Change, Image, Topic
from runnel.model.calls import Nothing
from runnel.model.errors import (
    CoordinatorLoading,
    InvalidRequest,
    KeyReused,
    NotLeader,
    RecordUnreadable,
    RequestTimedOut,
    RunnelError,
    UnknownTopic,
    UnknownTopicId,
)
from runnel.model.ids import PartitionKey, TopicId
from runnel.model.limits import KIB, MIB
from runnel.model.requests import REQUEST_ANSWERED, REQUEST_CLAIM, Answered, Claim, Claimed, Entry, Target
from runnel.model.seams import Clock, Disk
from runnel.model.unreadable import UNREADABLE
from runnel.replica.partition import Partition

KEY_BYTES_MAX: Final = 255
ANSWER_BYTES_MAX: Final = 256 * KIB  # a longer one is made again by doing it again
KEPT_BYTES_MAX: Final = 4 * MIB
FOUND_MAX: Final = 16  # records of one hash: claims and answers, those of other keys among them
ANSWERS_MAX: Final = 1_000  # on their way
TIMEOUT_MS: Final = 30_000
PAUSE_S: Final = 0.05
AGAIN: Final = (*ELSEWHERE, CoordinatorLoading, UnknownTopic, UnknownTopicId)  # the topic may be quite new

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Entry).decode

logger = logging.getLogger("runnel.requests")


class Requests:
    """The verb, on any broker."""

    def __init__(
        self, partitions: Partitions, calls: Calls, once: Once, image: Callable[[], Image], *,
        append: Append, new_producer: NewProducer, make_topic: Callable[[], Awaitable[None]],
        disk: Disk, clock: Clock,
    ) -> None:  # fmt: skip
        self._partitions = partitions
        self._calls = calls
        self._once = once
        self._image = image
        self._append = append
        self._new_producer = new_producer
        self._make_topic = make_topic
        self._clock = clock
        self._messages = Messages(KEPT_BYTES_MAX)
        self._indexes = KeyIndexes(REQUESTS, partitions, disk, self._messages)
        self._ledgers: dict[PartitionKey, Ledger] = {}
        self._answers: set[asyncio.Task[None]] = set()
        calls.serve(REQUEST_CLAIM, self._claim_here)
        calls.serve(REQUEST_ANSWERED, self._answered_here)

    def unserved(self) -> Iterator[Unserved]:
        return self._indexes.unserved()

    def start(self, image: Image) -> None:
        self._indexes.follow(image)

    def follow(self, change: Change) -> None:
        self._indexes.follow(change.after)
        self._ledgers = {key: one for key, one in self._ledgers.items() if one.stands}

    async def stop(self) -> None:
        for task in self._answers:
            task.cancel()
        if self._answers:
            await asyncio.wait(self._answers)
        for ledger in self._ledgers.values():
            ledger.close()
        await self._indexes.stop()

    async def once(
        self, key: str, digest: bytes, places: Sequence[PartitionKey],
        act: Callable[[dict[PartitionKey, int]], Awaitable[bytes]],
    ) -> bytes:  # fmt: skip
        """The answer to the first request of this key. `act` does it, by names at or above the floors it is given."""
        if not 0 < len(key.encode()) <= KEY_BYTES_MAX:
            raise InvalidRequest(f"an idempotency key has 1 to {KEY_BYTES_MAX} bytes")
        floors = tuple([Target(*place, await self._once.floor(place.topic_id, place.number)) for place in places])
        topic = await self._topic()
        number = partition_of_key(key.encode(), len(topic.partitions))
        claimed = await self._claim(topic, Claim(number, key, Entry("claim", digest, floors), TIMEOUT_MS))
        first = claimed.entry
        if first.digest != digest:
            raise KeyReused(f"the idempotency key {key!r} belongs to another request: choose a key for each request")
        if claimed.answer is not None:
            return claimed.answer
        known = {PartitionKey(TopicId(one.topic_id), one.partition): one.floor for one in first.targets}
        answer = await act(known)
        self._keep_answer(topic, Answered(number, key, Entry("answer", digest, answer=answer)))
        return answer

    async def _topic(self) -> Topic:
        """The topic that requests are kept in, as far as this broker has followed it."""
        if self._indexes.topic is None:
            await self._make_topic()
        if self._indexes.topic is None:
            raise RequestTimedOut("the topic of idempotency keys is being made: try again")
        return self._indexes.topic

    async def _claim(self, topic: Topic, claim: Claim) -> Claimed:
        loop = asyncio.get_running_loop()
        end = loop.time() + claim.timeout_ms / 1000
        while True:
            try:
                leader = self._image().topic_with_id(topic.id).partitions[claim.partition].leader
                return await self._calls.ask(leader, REQUEST_CLAIM, claim)
            except AGAIN:
                if loop.time() + PAUSE_S >= end:
                    raise
                await asyncio.sleep(PAUSE_S)

    def _keep_answer(self, topic: Topic, answered: Answered) -> None:
        """In the background: nobody waits for it, and nothing depends on it."""
        if len(answered.entry.answer) > ANSWER_BYTES_MAX or len(self._answers) >= ANSWERS_MAX:
            return

        async def keep() -> None:
            leader = self._image().topic_with_id(topic.id).partitions[answered.partition].leader
            try:
                await self._calls.ask(leader, REQUEST_ANSWERED, answered)
            except RunnelError as error:
                logger.debug("an answer was not kept: %s", error)

        task = asyncio.get_running_loop().create_task(keep())
        self._answers.add(task)
        task.add_done_callback(self._answers.discard)

    # --- at the leader of a key

    async def _claim_here(self, claim: Claim) -> Claimed:
        return await self._ledger(claim.partition).claim(claim)

    async def _answered_here(self, answered: Answered) -> Nothing:
        await self._ledger(answered.partition).keep(answered.key, answered.entry)
        return Nothing()

    def _ledger(self, number: int) -> "Ledger":
        topic = self._image().topic_named(REQUESTS)
        key = PartitionKey(topic.id, number)
        index = self._indexes.led(key)
        ledger = self._ledgers.get(key)
        if ledger is None or ledger.index is not index or not ledger.stands:
            if ledger is not None:
                ledger.close()
            mailing = Mailing(key, self._append, self._new_producer)
            ledger = self._ledgers[key] = Ledger(index, self._messages, mailing, self._clock)
        return ledger


class Ledger:
    """The keys of one partition, in one leader epoch."""

    def __init__(self, index: KeyIndex, messages: Messages, mailing: Mailing, clock: Clock) -> None:
        self.index = index
        self._partition: Partition = index.partition
        self._epoch = index.partition.leader_epoch
        self._messages = messages
        self._mailing = mailing
        self._clock = clock
        self._open: dict[str, asyncio.Future[Claimed]] = {}  # claims that are being decided
        self._kept: dict[str, tuple[int, Claimed]] = {}  # decided here, and perhaps not covered by the index yet

    @property
    def stands(self) -> bool:
        return self._partition.is_leader and self._partition.leader_epoch == self._epoch

    def close(self) -> None:
        self._mailing.close(NotLeader("the keeper of this idempotency key is another broker now: try again"))

    async def claim(self, claim: Claim) -> Claimed:
        """The first claim of a key, once it is committed."""
        await self._ready(claim.timeout_ms / 1000)
        while (pending := self._open.get(claim.key)) is not None:
            await asyncio.wait([pending])
        pending = self._open[claim.key] = asyncio.get_running_loop().create_future()
        try:
            claimed = await self._find(claim.key)
            if claimed is None:
                await self.keep(claim.key, claim.entry)
                claimed = Claimed(claim.entry, None)
            return claimed
        finally:
            del self._open[claim.key]
            pending.cancel()

    async def keep(self, key: str, entry: Entry) -> None:
        """Append an entry; returns when it is committed."""
        offset = await self._mailing.put(key.encode(), _encode(entry), (), self._clock.wall_ms())
        if entry.kind == "claim":
            self._kept[key] = offset, Claimed(entry, None)

    async def _ready(self, timeout_s: float) -> None:
        """Wait until all that earlier leaders kept is committed and covered."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        while not self._partition.settled or self.index.end < self._partition.epoch_start:
            if not self.stands:
                raise NotLeader(f"{self._partition.name} is led by another broker now: try again")
            if loop.time() >= end:
                raise RequestTimedOut("the idempotency keys are being read: try again")
            await asyncio.wait([self.index.progress()], timeout=PAUSE_S)

    async def _find(self, key: str) -> Claimed | None:
        covered = self.index.end
        for name in [name for name, (offset, _) in self._kept.items() if offset < covered]:
            del self._kept[name]
        if key in self._kept:
            return self._kept[key][1]
        offsets, _ = await self.index.find(hash_of(key.encode()), self._partition.log.start_offset, FOUND_MAX)
        entries = [entry for offset in offsets if (entry := await self._entry(offset, key.encode())) is not None]
        claims = [entry for entry in entries if entry.kind == "claim"]
        answers = [entry.answer for entry in entries if entry.kind == "answer"]
        if not claims:
            return None
        return Claimed(claims[0], answers[0] if answers else None)

    async def _entry(self, offset: int, key: bytes) -> Entry | None:
        if offset < self._partition.log.start_offset:
            return None
        stretch = await self._messages.read(self._partition, offset, 1)
        record = stretch.get(offset)
        if record is None or record.key != key or record.value is None:
            return None
        try:
            return _decode(record.value)
        except UNREADABLE as error:
            problem = RecordUnreadable(f"the entry of an idempotency key can't be read: {error}")
            self._partition.unreadable.set_aside(problem, offset)
            return None
