"""Requests that may be sent again: the second of a key gets the first one's answer, on any broker, after any crash.

Rule 1: before anything is done, the request is kept under its key, with where its messages will go and a floor there.
        One partition of an internal topic keeps a key, its leader decides who was first.
Rule 2: what is done is done by name above that floor (`once`, `schedule`): doing it again changes nothing, and says the
        same. So whoever comes second does the same, if there is no answer yet.
Rule 3: the answer is kept when it is known. It may be lost: rule 2 makes it again.
Rule 4: another request under the same key is refused.
Rule 5: a key is let go when every request that was given its claim has failed, and has certainly left nothing. The
        leader that wrote the claim knows to how many it was given; the next one does not, and keeps the key.
Rule 6: a key is looked up in an index on disk: memory does not grow with the number of keys. They are forgotten with
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
from runnel.broker.keyed_lock import KeyedLock
from runnel.broker.mailing import Append, Mailing, NewProducer
from runnel.broker.messages import Messages
from runnel.broker.once import Once
from runnel.broker.partitions import Partitions
from runnel.broker.routing import ELSEWHERE
from runnel.broker.schedule_book import Book
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
from runnel.model.requests import (
    REQUEST_ANSWERED,
    REQUEST_CLAIM,
    REQUEST_RELEASE,
    Answered,
    Claim,
    Claimed,
    Entry,
    Release,
    Target,
)
from runnel.model.seams import Clock, Disk
from runnel.model.unreadable import UNREADABLE
from runnel.replica.partition import Partition

KEY_BYTES_MAX: Final = 255
ANSWER_BYTES_MAX: Final = 256 * KIB  # a longer one is made again by doing it again
KEPT_BYTES_MAX: Final = 4 * MIB
FOUND_MAX: Final = 16  # records of one hash that are looked up at once, those of other keys among them
RELEASES_MAX: Final = 50  # of one key: who fails more often keeps the key, as all its records are read each time
ANSWERS_MAX: Final = 1_000  # on their way
CLAIMS_MAX: Final = 10_000  # of one partition, that may be let go: those beyond, the oldest, keep their keys
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
        calls.serve(REQUEST_RELEASE, self._release_here)

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
        act: Callable[[dict[PartitionKey, int]], Awaitable[bytes]], left_nothing: Callable[[], bool] = lambda: False,
    ) -> bytes:  # fmt: skip
        """The answer to the first request of this key. `act` does it, by names at or above the floors it is given.

        If it raises, `left_nothing` tells whether nothing of it was done, nor will be.
        """
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
        try:
            answer = await act(known)
        except RunnelError:
            if left_nothing():
                await self._release(topic, Release(number, key, digest))
            raise
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

    async def _release(self, topic: Topic, release: Release) -> None:
        """Let a key go before the failure is told: the next request may use it. If that fails, the key stays."""
        leader = self._image().topic_with_id(topic.id).partitions[release.partition].leader
        try:
            await self._calls.ask(leader, REQUEST_RELEASE, release)
        except RunnelError as error:
            logger.debug("an idempotency key was not let go: %s", error)

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

    async def _release_here(self, release: Release) -> Nothing:
        await self._ledger(release.partition).release(release.key, release.digest)
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
        self._begin = index.partition.log.end_offset  # nothing that lies below is in this memory
        self._messages = messages
        self._mailing = mailing
        self._clock = clock
        self._book = Book(index.partition, clock)
        self._deciding = KeyedLock()
        self._kept: dict[str, tuple[int, Claimed | None]] = {}  # decided here, and perhaps not covered by the index yet
        self._given: dict[str, int] = {}  # to how many requests a claim that was written here was given
        self._doubtful: set[str] = set()  # they were to be let go, and nobody can say whether that is kept

    @property
    def stands(self) -> bool:
        return self._partition.is_leader and self._partition.leader_epoch == self._epoch

    def close(self) -> None:
        self._mailing.close(NotLeader("the keeper of this idempotency key is another broker now: try again"))

    async def claim(self, claim: Claim) -> Claimed:
        """The first claim of a key, once it is committed."""
        await self._ready(claim.timeout_ms / 1000)
        async with self._deciding.of(claim.key):
            if claim.key in self._doubtful:
                raise RequestTimedOut("whether the idempotency key was let go is not known yet: try again")
            claimed = await self._find(claim.key)
            if claimed is None:
                await self.keep(claim.key, claim.entry)
                claimed = Claimed(claim.entry, None)
                self._given[claim.key] = 0
            if claim.key in self._given and claimed.entry.digest == claim.entry.digest:
                self._given[claim.key] += 1
            if len(self._given) > CLAIMS_MAX:
                del self._given[next(iter(self._given))]
            return claimed

    async def release(self, key: str, digest: bytes) -> None:
        """Let the key go if the request that failed, and left nothing, was the only one under its claim.

        The record is appended in this epoch or never, so it can't come behind a claim of a later leader.
        """
        async with self._deciding.of(key):
            if key not in self._given or len(self._doubtful) >= CLAIMS_MAX:
                return
            self._given[key] -= 1
            if self._given[key] > 0:
                return
            del self._given[key]
            if sum(entry.kind == "release" for entry in await self._entries(key.encode())) >= RELEASES_MAX:
                return
            self._doubtful.add(key)
            offset = await self._book.keep([(key.encode(), _encode(Entry("release", digest)), ())])
            self._doubtful.discard(key)
            self._kept[key] = offset, None

    async def keep(self, key: str, entry: Entry) -> None:
        """Append an entry; returns when it is committed."""
        offset = await self._mailing.put(key.encode(), _encode(entry), (), self._clock.wall_ms())
        if entry.kind == "claim":
            self._kept[key] = offset, Claimed(entry, None)
        else:
            self._given.pop(key, None)

    async def _ready(self, timeout_s: float) -> None:
        """Wait until all that was kept before, here or by earlier leaders, is committed and covered."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        while not self._partition.settled or self.index.end < self._begin:
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
        entries = await self._entries(key.encode())
        released = [n for n, entry in enumerate(entries) if entry.kind == "release"]
        entries = entries[released[-1] + 1 :] if released else entries
        claims = [entry for entry in entries if entry.kind == "claim"]
        answers = [entry.answer for entry in entries if entry.kind == "answer"]
        if not claims:
            return None
        return Claimed(claims[0], answers[0] if answers else None)

    async def _entries(self, key: bytes) -> list[Entry]:
        """All that was kept under a key, in order."""
        entries: list[Entry] = []
        key_hash, offsets = hash_of(key), [0] * FOUND_MAX
        position: int = self._partition.log.start_offset
        while len(offsets) == FOUND_MAX:
            offsets, position = await self.index.find(key_hash, position, FOUND_MAX)
            entries += [entry for offset in offsets if (entry := await self._entry(offset, key)) is not None]
        return entries

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
