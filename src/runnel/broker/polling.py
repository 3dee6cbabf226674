"""Receiving what is in memory: at once, or as soon as it is there, without a task for each who waits.

Rule 1: it says what `Inbox.receive` would say. What can't be said out of memory is left to that.
Rule 2: whoever knows of something ends a wait: its poll looks in the next turn of the loop, and waits on if there was
        nothing for it. It answers once, and leaves nothing behind in any list then.
"""

import asyncio
from typing import NamedTuple, Protocol

from runnel.broker.fetch import Waits
from runnel.broker.key_index import KeyIndex, hash_of
from runnel.broker.key_indexes import KeyIndexes
from runnel.broker.mail import Mail, address_of, letter_of, mail_of
from runnel.broker.messages import Messages
from runnel.cluster.image import Topic
from runnel.model.errors import InvalidRequest, RunnelError
from runnel.model.inbox import Found, Letter


class Receiver(Protocol):
    """Who is told of messages to a user, once."""

    def received(self, mails: list[Mail]) -> None: ...

    def failed(self, error: RunnelError) -> None: ...

    def ask_otherwise(self, left_s: float) -> None:
        """It can't be said out of memory. Wait no longer than so."""


class AtOnce:
    """What the indexes and the messages in memory say of a user, if this broker leads and has it all."""

    def __init__(self, indexes: KeyIndexes, messages: Messages) -> None:
        self._indexes = indexes
        self._messages = messages

    def asked(self, user_id: str, messages_max: int, bytes_max: int) -> "Asked | None":
        """A question about a user; None if nothing is known here."""
        topic = self._indexes.topic
        if topic is None:
            return None
        user, number = address_of(user_id, len(topic.partitions))
        index = self._indexes.at(number)
        return None if index is None else Asked(self, topic, number, index, user_id, user, messages_max, bytes_max)

    def check_same(self, topic: Topic) -> None:
        """Positions mean nothing in a topic that was made again."""
        current = self._indexes.topic
        if current is not topic and (current is None or current.id != topic.id):
            raise InvalidRequest("the topic 'inbox' was deleted meanwhile, with all messages: begin at the first")

    def find(self, number: int, user: bytes, position: int, messages_max: int, bytes_max: int) -> Found | None:
        """The next messages; most who ask have seen what is older than memory has."""
        index = self._indexes.at(number)
        if index is None or not index.partition.is_leader:
            return None
        known = index.find_now(hash_of(user), position, messages_max)
        if known is None:
            return None
        offsets, upto = known
        if not offsets:
            return Found([], upto) if position <= upto and upto >= index.partition.last_stable_offset else None
        letters: list[Letter] = []
        size, stretch = 0, None
        for offset in offsets:
            if stretch is None or offset >= stretch.end:
                stretch = self._messages.cached(index.partition, offset)
            record = None if stretch is None else stretch.get(offset)
            if record is None or record.key != user:
                return None
            letters.append(letter_of(record))
            size += len(record.value or b"")
            if size >= bytes_max:
                return Found(letters, offset + 1)
        return Found(letters, upto)


class Asked(NamedTuple):
    """What is asked for."""

    at_once: AtOnce
    topic: Topic
    number: int  # of the partition
    keys: KeyIndex
    user_id: str
    user: bytes
    messages_max: int
    bytes_max: int

    def look(self, position: int) -> Found | None:
        self.at_once.check_same(self.topic)
        return self.at_once.find(self.number, self.user, position, self.messages_max, self.bytes_max)


class Poll:
    """One receive."""

    __slots__ = ("_asked", "_deadline", "_hash", "_looks", "_loop", "_position", "_receiver", "_timer", "_waits")

    def __init__(
        self, asked: Asked, position: int, wait_s: float, waits: tuple[Waits, ...], receiver: Receiver
    ) -> None:
        self._asked = asked
        self._position = position
        self._waits = waits
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + wait_s
        self._looks = False  # in the next turn
        self._timer: asyncio.TimerHandle | None = None  # once it waits

    def begin(self) -> None:
        """Say what is there, or wait for it."""
        if not self._said():
            self._wait()

    def end(self) -> None:
        """There may be something, or it is over."""
        if not self._looks and self._timer is not None:
            self._looks = True
            self._loop.call_soon(self._look)

    def _wait(self) -> None:
        asked = self._asked
        self._timer = self._loop.call_at(self._deadline, self.end)
        self._hash = hash_of(asked.user)
        asked.keys.begin(self._hash, self)
        for those in self._waits:
            those.begin(self)

    def _look(self) -> None:
        self._looks = False
        if self._said():
            assert self._timer is not None
            self._timer.cancel()
            self._timer = None
            self._asked.keys.done(self._hash, self)
            for those in self._waits:
                those.done(self)

    def _said(self) -> bool:
        """Whether the receiver has been told."""
        left_s = self._deadline - self._loop.time()
        try:
            found = self._asked.look(self._position)
        except RunnelError as error:
            self._receiver.failed(error)
            return True
        if found is None:
            self._receiver.ask_otherwise(left_s)
            return True
        if not found.letters and left_s > 0 and not any(those.over for those in self._waits):
            self._position = max(self._position, found.upto)
            return False
        asked = self._asked
        self._receiver.received([mail_of(one, asked.topic, asked.number, asked.user_id) for one in found.letters])
        return True
