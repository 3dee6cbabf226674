"""Inboxes: a message to a user is a message of the topic `inbox` whose key is the user.

Rule 1: a user's messages lie in one partition, in the order in which they were kept; an id is the place in it. So
        whoever resumes behind an id misses none and sees none twice, on whichever broker, in whichever life of it.
Rule 2: the log is the truth. The index of keys says where to look; where it is behind, the log itself is read.
Rule 3: any broker is asked; it asks the leader. Waiting costs the leader one call for each broker and partition,
        however many users wait there.
Rule 4: a message is told of when it is committed, in both senses: its sender hears its id, its receiver gets it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from runnel.broker.calls import Calls
from runnel.broker.fetch import Waits
from runnel.broker.inbox_news import NEWS_MS, PAUSE_S, RemoteNews
from runnel.broker.key_index import KeyIndex, hash_of
from runnel.broker.key_indexes import KeyIndexes
from runnel.broker.mailing import Append, Mailing, NewProducer
from runnel.broker.messages import Messages
from runnel.broker.partitions import Partitions
from runnel.broker.routing import ELSEWHERE
from runnel.client.partitioner import partition_of_key
from runnel.cluster.image import Change, Image, Topic
from runnel.cluster.topic_rules import NewTopic
from runnel.model.calls import Header, Outgoing
from runnel.model.errors import InvalidPartitions, InvalidRequest, NotLeader, OffsetOutOfRange, RequestTimedOut
from runnel.model.ids import BrokerId, PartitionKey, TopicId
from runnel.model.inbox import INBOX_LOOK, INBOX_NEWS, Arrived, Found, Letter, Look, News
from runnel.model.limits import MIB
from runnel.model.seams import Clock, Disk
from runnel.record.records import Record
from runnel.replica.partition import Partition

INBOX: Final = "inbox"
PARTITIONS: Final = 4  # of the topic, unless somebody has made it already: so many brokers can share the work
FROM: Final = "runnel-from"  # the header with the sender
KEPT_BYTES_MAX: Final = 16 * MIB  # messages that were decoded, for those who come next
USER_BYTES_MAX: Final = 1024
LOOK_MS: Final = 30_000  # a new leader may have to read a long log first
WAIT_MS_MAX: Final = 300_000

_ID: Final = "%08x%04x%016x"
ID_CHARS: Final = 28


class MessageId(NamedTuple):
    """The place of a message. As text it has a fixed width, and sorts by offset within a partition."""

    topic: int  # 32 bits of the topic's id: a topic that was made again is another one
    partition: int
    offset: int

    def __str__(self) -> str:
        return _ID % self


def growth_refused(topic: str) -> InvalidPartitions | None:
    """Why a topic may not get more partitions, if it may not: with them, users would have others (rule 1)."""
    if topic != INBOX:
        return None
    return InvalidPartitions(f"topic {INBOX!r} keeps its number of partitions: it says where the messages of users are")


def parse_id(text: str) -> MessageId:
    try:
        if len(text) != ID_CHARS or not text.isascii() or not text.isalnum():
            raise ValueError(text)
        return MessageId(int(text[:8], 16), int(text[8:12], 16), int(text[12:], 16))
    except ValueError:
        raise InvalidRequest(f"{text[:40]!r} is not the id of a message: use one as it came from /receive") from None


class Placing(NamedTuple):
    """A message on its way to its place."""

    topic: int
    partition: int
    offset: "asyncio.Future[int]"

    def id_of(self, offset: int) -> MessageId:
        return MessageId(self.topic, self.partition, offset)


class Mail(NamedTuple):
    """A message to a user."""

    message_id: str
    from_user: str
    to_user: str
    message: str
    timestamp_ms: int


class Inbox:
    """The verbs, on any broker."""

    def __init__(
        self, partitions: Partitions, calls: Calls, image: Callable[[], Image], *,
        append: Append, new_producer: NewProducer, make_topic: Callable[[Sequence[NewTopic]], Awaitable[None]],
        disk: Disk, clock: Clock,
    ) -> None:  # fmt: skip
        self._calls = calls
        self._image = image
        self._append = append
        self._new_producer = new_producer
        self._make_topic = make_topic
        self._clock = clock
        self._messages = Messages(KEPT_BYTES_MAX)
        self._indexes = KeyIndexes(INBOX, partitions, disk, self._messages)
        self._mailings: dict[PartitionKey, Mailing] = {}
        self._news: dict[PartitionKey, RemoteNews] = {}
        self._all = Waits()
        calls.serve(INBOX_LOOK, self._look)
        calls.serve(INBOX_NEWS, self._tell_news)

    # --- life

    def start(self, image: Image) -> None:
        self._place(image)

    def follow(self, change: Change) -> None:
        """The image changed: index what is here now, forget what is not."""
        self._place(change.after)

    def close(self) -> None:
        """Answer at once who waits."""
        self._all.end()
        self._indexes.wake_all()
        for news in self._news.values():
            news.close()

    async def stop(self) -> None:
        for mailing in self._mailings.values():
            mailing.close(RequestTimedOut("the broker stops: the message was not kept, send it to another one"))
        await self._indexes.stop()

    def _place(self, image: Image) -> None:
        self._indexes.follow(image)
        topic = self._indexes.topic
        for gone in [key for key in self._mailings if topic is None or key.topic_id != topic.id]:
            self._mailings.pop(gone).close(NotLeader("the topic 'inbox' was deleted: nothing of the message was kept"))

    # --- sending

    async def send(self, from_user: str, to_user: str, message: str) -> MessageId:
        """Keep a message; its id, once it is committed."""
        placing = self.put(from_user, to_user, message)
        if placing is None:
            await self._made()
            placing = self.put(from_user, to_user, message)
        if placing is None:
            raise RequestTimedOut("the topic 'inbox' was deleted meanwhile: nothing of the message was kept")
        return placing.id_of(await placing.offset)

    async def addressed(self, from_user: str, to_user: str, message: str) -> Outgoing:
        """A message as one of the topic's, for who sends it another way."""
        topic, user = await self._made(), _user(to_user)
        headers: list[Header] = [(FROM, from_user.encode())]
        return Outgoing(message.encode(), user, headers, _partition_of(user, len(topic.partitions)))

    def id_of(self, partition: int, offset: int) -> MessageId:
        topic = self._indexes.topic
        if topic is None:
            raise RequestTimedOut("the topic 'inbox' was deleted meanwhile")
        return MessageId(_tag(topic), partition, offset)

    def put(self, from_user: str, to_user: str, message: str) -> "Placing | None":
        """Begin to keep a message; None if the topic is not there yet."""
        user = _user(to_user)
        topic = self._indexes.topic
        if topic is None:
            return None
        number = _partition_of(user, len(topic.partitions))
        headers = ((FROM, from_user.encode()),)
        offset = self._mailing(topic, number).put(user, message.encode(), headers, self._clock.wall_ms())
        return Placing(_tag(topic), number, offset)

    def _mailing(self, topic: Topic, number: int) -> Mailing:
        key = PartitionKey(topic.id, number)
        mailing = self._mailings.get(key)
        if mailing is None:
            mailing = self._mailings[key] = Mailing(key, self._append, self._new_producer)
        return mailing

    async def _made(self) -> Topic:
        """The topic, made if it is not there."""
        if self._indexes.topic is None:
            await self._make_topic([NewTopic(INBOX, PARTITIONS)])
        if self._indexes.topic is None:
            raise RequestTimedOut("the topic 'inbox' is being made: try again")
        return self._indexes.topic

    # --- receiving

    async def receive(
        self, user_id: str, last_message_id: str | None, *, wait_ms: int, messages_max: int, bytes_max: int = MIB,
        waits: Waits,
    ) -> list[Mail]:  # fmt: skip
        """The next messages of a user, in order; if there is none, waits for one, but not longer than `waits`."""
        user = _user(user_id)
        topic = await self._made()
        number = _partition_of(user, len(topic.partitions))
        key = PartitionKey(topic.id, number)
        position = 0 if last_message_id is None else _after(last_message_id, topic, number)
        loop = asyncio.get_running_loop()
        end = loop.time() + min(max(wait_ms, 0), WAIT_MS_MAX) / 1000
        patience = max(end, loop.time() + LOOK_MS / 1000)
        while True:
            try:
                found = await self._ask(Look(*key, user, position, messages_max, bytes_max, LOOK_MS))
            except ELSEWHERE:
                if loop.time() + PAUSE_S >= patience:
                    raise
                await asyncio.sleep(PAUSE_S)
                continue
            left_s = end - loop.time()
            if found.letters or left_s <= 0 or waits.over or self._all.over:
                return [_mail(one, topic, number, user_id) for one in found.letters]
            position = max(position, found.upto)
            await self._wait(key, hash_of(user), position, left_s, waits)

    async def _ask(self, look: Look) -> Found:
        key = PartitionKey(TopicId(look.topic_id), look.partition)
        index = self._indexes.get(key)
        if index is not None and index.partition.is_leader:
            return await self._look(look)
        leader = self._leader(key)
        return await self._calls.ask(leader, INBOX_LOOK, look, timeout_ms=LOOK_MS + 5_000)

    def _leader(self, key: PartitionKey) -> BrokerId:
        return self._image().topic_with_id(key.topic_id).partitions[key.number].leader

    async def _wait(self, key: PartitionKey, key_hash: int, position: int, left_s: float, waits: Waits) -> None:
        """Until there may be something for this user at or above `position`, or the time is up."""
        index = self._indexes.get(key)
        source: KeyIndex | RemoteNews
        if index is not None and index.partition.is_leader:
            source = index
        else:
            source = self._remote(key)
        if source.end > position:
            return
        waiter = source.waiter(key_hash)
        ending = _Ending(waiter)
        timer = asyncio.get_running_loop().call_later(left_s, ending.end)
        for those in (waits, self._all):
            those.begin(ending)
        try:
            await waiter
        finally:
            timer.cancel()
            source.forget(key_hash, waiter)
            for those in (waits, self._all):
                those.done(ending)

    def _remote(self, key: PartitionKey) -> "RemoteNews":
        news = self._news.get(key)
        if news is None or news.over:
            news = self._news[key] = RemoteNews(key, self._calls, lambda: self._leader(key))
        return news

    # --- what a leader is asked

    async def _look(self, look: Look) -> Found:
        """The first messages of a user from an offset on."""
        index = self._indexes.led(PartitionKey(TopicId(look.topic_id), look.partition))
        partition = index.partition
        if look.offset > partition.log.end_offset and partition.settled:
            raise OffsetOutOfRange(
                f"{partition.name} ends at {partition.log.end_offset}, what follows {look.offset - 1} was asked for:"
                " resume behind a message that is there"
            )
        key_hash, loop = hash_of(look.user), asyncio.get_running_loop()
        end = loop.time() + look.timeout_ms / 1000
        position = look.offset
        while True:
            stable = partition.last_stable_offset
            known = index.find_now(key_hash, position, look.messages_max)
            offsets, upto = known or await index.find(key_hash, position, look.messages_max)
            if offsets or upto >= stable:
                found = await self._read(partition, offsets, upto, look) if offsets else Found([], upto)
                if found.letters or found.upto >= stable:
                    return found
                position = found.upto  # the hash was another key's
            elif position > upto:
                return await self._scan(partition, position, stable, look, end)
            else:
                await asyncio.wait([index.progress()], timeout=max(0.0, end - loop.time()))
                if loop.time() >= end:
                    raise RequestTimedOut(
                        f"{partition.name} is being indexed, up to {index.end} of {stable} so far: try again"
                    )
            partition.must_lead()

    async def _read(self, partition: Partition, offsets: list[int], upto: int, look: Look) -> Found:
        letters: list[Letter] = []
        size = 0
        for offset in offsets:
            if offset < partition.log.start_offset:
                continue
            stretch = self._messages.cached(partition, offset) or await self._messages.read(partition, offset, 1)
            record = stretch.get(offset)
            if record is not None and record.key == look.user:
                letters.append(_letter(record))
                size += len(record.value or b"")
                if size >= look.bytes_max:
                    return Found(letters, offset + 1)
        return Found(letters, upto)

    async def _scan(self, partition: Partition, position: int, stable: int, look: Look, end: float) -> Found:
        """What the index does not cover yet, out of the log itself."""
        letters: list[Letter] = []
        loop = asyncio.get_running_loop()
        while position < stable and not letters:
            stretch = await self._messages.read(partition, position)
            letters = [_letter(one) for one in stretch.since(position) if one.key == look.user][: look.messages_max]
            if stretch.end <= position or loop.time() >= end:
                break
            position = letters[-1].offset + 1 if letters else stretch.end
            await asyncio.sleep(0)
        return Found(letters, position)

    async def _tell_news(self, news: News) -> Arrived:
        index = self._indexes.led(PartitionKey(TopicId(news.topic_id), news.partition))
        if index.end <= news.since:
            waiter = index.progress()
            await asyncio.wait([waiter], timeout=min(news.wait_ms, NEWS_MS) / 1000)
            waiter.cancel()
        index.partition.must_lead()
        return Arrived(index.end, index.hashes_since(news.since))


class _Ending:
    """Ends a wait before its time."""

    __slots__ = ("_future",)

    def __init__(self, future: "asyncio.Future[None]") -> None:
        self._future = future

    def end(self) -> None:
        if not self._future.done():
            self._future.set_result(None)


@lru_cache(maxsize=65_536)
def _partition_of(user: bytes, count: int) -> int:
    """As Kafka's clients choose it for a key: what they send to a user arrives too."""
    return partition_of_key(user, count)


def _user(name: str) -> bytes:
    user = name.encode()
    if not 0 < len(user) <= USER_BYTES_MAX:
        raise InvalidRequest(f"the name of a user has 1 to {USER_BYTES_MAX} bytes, not {len(user)}")
    return user


def _after(text: str, topic: Topic, number: int) -> int:
    """The offset behind a message of this partition."""
    place = parse_id(text)
    if place.topic != _tag(topic) or place.partition != number:
        raise InvalidRequest(
            f"{text!r} is not the id of a message to this user: use one that came from /receive for the same user,"
            " or leave last_message_id out to begin at the first"
        )
    return place.offset + 1


def _tag(topic: Topic) -> int:
    return topic.id.int & 0xFFFFFFFF


def _letter(record: Record) -> Letter:
    sender = next((value for name, value in record.headers if name == FROM), None)
    return Letter(record.offset, record.timestamp, sender or b"", record.value or b"")


def _mail(letter: Letter, topic: Topic, number: int, user: str) -> Mail:
    return Mail(
        str(MessageId(_tag(topic), number, letter.offset)),
        letter.from_user.decode(errors="replace"),
        user,
        letter.message.decode(errors="replace"),
        letter.timestamp_ms,
    )
