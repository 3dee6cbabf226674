"""Inboxes: a message to a user is a message of the topic `inbox` whose key is the user.

Rule 1: a user's messages lie in one partition, in the order in which they were kept; an id is the place in it. So
        whoever resumes behind an id misses none and sees none twice, on whichever broker, in whichever life of it.
Rule 2: the log is the truth. The index of keys says where to look; where it is behind, the log itself is read.
Rule 3: any broker is asked; it asks the leader. Waiting costs the leader one call for each broker and partition,
        however many users wait there.
Rule 4: a message is told of when it is committed, in both senses: its sender hears its id, its receiver gets it.
Rule 5: sending makes the topic; receiving changes nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final

from runnel.broker.calls import Calls
from runnel.broker.fetch import Waits
from runnel.broker.inbox_news import NEWS_MS, PAUSE_S, RemoteNews
from runnel.broker.key_index import KeyIndex, hash_of
from runnel.broker.key_indexes import KeyIndexes
from runnel.broker.mail import (
    FROM,
    INBOX,
    Mails,
    MessageId,
    Sending,
    address_of,
    after,
    letter_of,
    mails_of,
    parse_id,
    tag_of,
    user_of,
)
from runnel.broker.mailing import Append, Mailing, NewProducer
from runnel.broker.messages import Messages
from runnel.broker.partitions import Partitions
from runnel.broker.polling import AtOnce, Poll, Polls, Receiver, asked_of
from runnel.broker.routing import ELSEWHERE
from runnel.broker.unserved import Unserved
from runnel.cluster.image import Change, Image, Topic
from runnel.cluster.topic_rules import NewTopic
from runnel.model.calls import Header, Outgoing
from runnel.model.errors import (
    InvalidPartitions,
    InvalidRequest,
    NotLeader,
    OffsetOutOfRange,
    RequestTimedOut,
    RunnelError,
    UnknownTopicId,
    as_value,
)
from runnel.model.ids import BrokerId, PartitionKey, TopicId
from runnel.model.inbox import INBOX_LOOK, INBOX_NEWS, Arrived, Found, Letter, Look, News
from runnel.model.limits import FRAME_BYTES_MAX, KIB, MIB
from runnel.model.seams import Clock, Disk
from runnel.model.topic_config import TopicConfig
from runnel.replica.partition import Partition

PARTITIONS: Final = 4  # of the topic, unless somebody has made it already: so many brokers can share the work
PARTITIONS_ALONE: Final = 1  # of a broker that stays alone: one batch for all that comes at a time, and one sync
MESSAGE_BYTES_MAX: Final = MIB + 16 * KIB  # of a batch with one message of 1 MiB, its names and what frames it
KEPT_BYTES_MAX: Final = 16 * MIB  # messages that were decoded, for those who come next
LOOK_MS: Final = 30_000  # a new leader may have to read a long log first
WAIT_MS_MAX: Final = 300_000


def inbox_topic(partitions: int, defaults: TopicConfig) -> NewTopic:
    """The topic as it is made here. Kafka's own bound would refuse a message of 1 MiB, for what is around it."""
    fits = defaults.max_message_bytes >= MESSAGE_BYTES_MAX
    return NewTopic(INBOX, partitions, config={} if fits else {"max.message.bytes": str(MESSAGE_BYTES_MAX)})


def growth_refused(topic: str) -> InvalidPartitions | None:
    """Why a topic may not get more partitions, if it may not: with them, users would have others (rule 1)."""
    if topic != INBOX:
        return None
    return InvalidPartitions(f"topic {INBOX!r} keeps its number of partitions: it says where the messages of users are")


class Inbox:
    """The verbs, on any broker."""

    def __init__(
        self, partitions: Partitions, calls: Calls, image: Callable[[], Image], *,
        append: Append, new_producer: NewProducer, make_topic: Callable[[Sequence[NewTopic]], Awaitable[object]],
        new_topic: Callable[[], NewTopic], disk: Disk, clock: Clock,
    ) -> None:  # fmt: skip
        self._new_topic = new_topic
        self._calls = calls
        self._image = image
        self._append = append
        self._new_producer = new_producer
        self._make_topic = make_topic
        self._clock = clock
        self._messages = Messages(KEPT_BYTES_MAX)
        self._indexes = KeyIndexes(INBOX, partitions, disk, self._messages)
        self._at_once = AtOnce(self._indexes, self._messages)
        self._polls = Polls(self._at_once)
        self._mailings: dict[int, Mailing] = {}  # by partition
        self._mailed: TopicId | None = None  # the topic that they are of
        self._news: dict[PartitionKey, RemoteNews] = {}
        self._all = Waits()
        self._exists = asyncio.Event()  # the topic does, or nobody waits for it any more
        calls.serve(INBOX_LOOK, self._look)
        calls.serve(INBOX_NEWS, self._tell_news)

    # --- life

    def unserved(self) -> Iterator[Unserved]:
        return self._indexes.unserved()

    def start(self, image: Image) -> None:
        self._place(image)

    def follow(self, change: Change) -> None:
        """The image changed: index what is here now, forget what is not."""
        self._place(change.after)

    def close(self) -> None:
        """Answer at once who waits."""
        self._all.end()
        self._exists.set()
        self._polls.close()
        self._indexes.wake_all()
        for news in self._news.values():
            news.close()

    async def stop(self) -> None:
        for mailing in self._mailings.values():
            mailing.close(RequestTimedOut("the broker stops: the message was not kept, send it to another one"))
        await self._indexes.stop()

    def _place(self, image: Image) -> None:
        self._indexes.follow(image)
        topic_id = None if self._indexes.topic is None else self._indexes.topic.id
        if topic_id != self._mailed:
            for mailing in self._mailings.values():
                mailing.close(NotLeader("the topic 'inbox' was deleted: the message is gone with it, or was not kept"))
            self._mailings, self._mailed = {}, topic_id
        if topic_id is not None:
            self._exists.set()
        elif not self._all.over:
            self._exists.clear()

    # --- sending

    async def send(self, from_user: str, to_user: str, message: str) -> MessageId:
        """Keep a message; its id, once it is committed."""
        sending = _Hearing(asyncio.get_running_loop().create_future())
        if not self.post(from_user, to_user, message, sending):
            await self._made()
            if not self.post(from_user, to_user, message, sending):
                raise RequestTimedOut("the topic 'inbox' was deleted meanwhile: nothing of the message was kept")
        return await sending.id

    async def addressed(self, from_user: str, to_user: str, message: str) -> Outgoing:
        """A message as one of the topic's, for who sends it another way."""
        topic = await self._made()
        user, number = address_of(to_user, len(topic.partitions))
        headers: list[Header] = [(FROM, from_user.encode())]
        return Outgoing(message.encode(), user, headers, number)

    def id_of(self, partition: int, offset: int) -> MessageId:
        topic = self._indexes.topic
        if topic is None:
            raise RequestTimedOut("the topic 'inbox' was deleted meanwhile")
        return MessageId(tag_of(topic), partition, offset)

    def post(self, from_user: str, to_user: str, message: str, sending: Sending) -> bool:
        """Begin to keep a message; False if the topic is not there yet. Its sender is told what becomes of it."""
        topic = self._indexes.topic
        if topic is None:
            return False
        user, number = address_of(to_user, len(topic.partitions))
        mailing = self._mailings.get(number) or self._mailing(topic, number)
        sending.topic, sending.partition = tag_of(topic), number
        mailing.post(user, message.encode(), ((FROM, from_user.encode()),), self._clock.wall_ms(), sending)
        return True

    def _mailing(self, topic: Topic, number: int) -> Mailing:
        key, encoded = PartitionKey(topic.id, number), self._messages.encoded
        mailing = self._mailings[number] = Mailing(
            key, self._append, self._new_producer, FRAME_BYTES_MAX, encoded=encoded
        )
        return mailing

    async def _made(self) -> Topic:
        """The topic, made if it is not there."""
        if self._indexes.topic is None:
            await self._make_topic([self._new_topic()])
        if self._indexes.topic is None:
            raise RequestTimedOut("the topic 'inbox' is being made: try again")
        return self._indexes.topic

    # --- receiving

    async def receive(
        self, user_id: str, last_message_id: str | None, *, wait_ms: int, messages_max: int, bytes_max: int = MIB,
        waits: Waits,
    ) -> Mails:  # fmt: skip
        """The next messages of a user, in order; if there is none, waits for one, but not longer than `waits`."""
        loop = asyncio.get_running_loop()
        end = loop.time() + min(max(wait_ms, 0), WAIT_MS_MAX) / 1000
        topic = self._indexes.topic or await self._wait_for_topic(user_id, last_message_id, end - loop.time(), waits)
        if topic is None:
            return Mails("", user_id, [])
        asked = asked_of(topic, user_id, messages_max, bytes_max)
        key = PartitionKey(topic.id, asked.number)
        position = 0 if last_message_id is None else after(last_message_id, topic, asked.number)
        patience = max(end, loop.time() + LOOK_MS / 1000)
        while True:
            self._at_once.check_same(topic)
            try:
                found = self._at_once.find(asked, position)
                found = found or await self._ask(Look(*key, asked.user, position, messages_max, bytes_max, LOOK_MS))
            except (*ELSEWHERE, UnknownTopicId):  # the topic may be quite new to its leader
                if loop.time() + PAUSE_S >= patience:
                    raise
                await asyncio.sleep(PAUSE_S)
                continue
            left_s = end - loop.time()
            if found.letters or left_s <= 0 or waits.over or self._all.over:
                return mails_of(found.letters, topic, asked.number, user_id)
            position = max(position, found.upto)
            await self._wait(key, asked.key_hash, position, left_s, waits)

    async def _wait_for_topic(
        self, user_id: str, last_message_id: str | None, timeout_s: float, waits: Waits
    ) -> Topic | None:
        """The topic, once it is there; None if it is not in time."""
        user_of(user_id)
        if last_message_id is not None:
            parse_id(last_message_id)
            raise InvalidRequest(f"there is no message {last_message_id!r}, nor any other: begin at the first")
        await waits.within(timeout_s, self._exists.wait())
        return self._indexes.topic

    def poll(
        self, user_id: str, last_message_id: str | None, *, wait_ms: int, messages_max: int, bytes_max: int = MIB,
        waits: Waits, receiver: Receiver,
    ) -> None:  # fmt: skip
        """The same without a task; a receiver that is told to ask otherwise is to `receive`."""
        wait_s = min(max(wait_ms, 0), WAIT_MS_MAX) / 1000
        topic = self._indexes.topic
        asked = None if topic is None else asked_of(topic, user_id, messages_max, bytes_max)
        index = None if asked is None else self._indexes.at(asked.number)
        if asked is None or index is None:
            receiver.ask_otherwise(wait_s)
            return
        position = 0 if last_message_id is None else after(last_message_id, asked.topic, asked.number)
        deadline = asyncio.get_running_loop().time() + wait_s
        Poll(self._polls, asked, index, position, deadline, waits, receiver).begin()

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
        index = self._indexes.at(key.number)
        source: KeyIndex | RemoteNews
        if index is not None and index.partition.is_leader:
            source = index
        else:
            source = self._remote(key)
        if source.end > position:
            return
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        ending = _Ending(waiter)
        source.begin(key_hash, ending)
        timer = loop.call_later(left_s, ending.end)
        for those in (waits, self._all):
            those.begin(ending)
        try:
            await waiter
        finally:
            timer.cancel()
            source.done(key_hash, ending)
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
                letters.append(letter_of(record))
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
            letters = [letter_of(one) for one in stretch.since(position) if one.key == look.user][: look.messages_max]
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


class _Hearing(Sending):
    """A sender that waits."""

    __slots__ = ("id",)

    def __init__(self, future: "asyncio.Future[MessageId]") -> None:
        self.id = future

    def kept(self, offset: int) -> None:
        if not self.id.done():
            self.id.set_result(MessageId(self.topic, self.partition, offset))

    def failed(self, error: RunnelError) -> None:
        if not self.id.done():
            self.id.set_exception(as_value(error))


class _Ending:
    """Ends a wait before its time."""

    __slots__ = ("_future",)

    def __init__(self, future: "asyncio.Future[None]") -> None:
        self._future = future

    def end(self) -> None:
        if not self._future.done():
            self._future.set_result(None)
