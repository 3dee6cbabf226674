"""Receiving what is in memory: at once, or as soon as it is there, without a task or a timer for each who waits.

Rule 1: it says what `Inbox.receive` would say. What can't be said out of memory is left to that.
Rule 2: whoever knows of something ends a wait: its poll looks in the next turn of the loop, and waits on if there was
        nothing for it. It answers once, and leaves nothing behind in any list then.
"""

import asyncio
from collections import deque
from typing import Protocol

from msgspec import Struct

from runnel.broker.deadlines import Deadlines
from runnel.broker.fetch import Waits
from runnel.broker.key_index import KeyIndex, hash_of
from runnel.broker.key_indexes import KeyIndexes
from runnel.broker.mail import Mails, address_of, letter_of, mails_of
from runnel.broker.messages import Messages
from runnel.cluster.image import Topic
from runnel.model.errors import InvalidRequest, RunnelError
from runnel.model.inbox import Found, Letter


class Receiver(Protocol):
    """Who is told of messages to a user, once."""

    def received(self, mails: Mails) -> None: ...

    def failed(self, error: RunnelError) -> None: ...

    def ask_otherwise(self, left_s: float) -> None:
        """It can't be said out of memory. Wait no longer than so."""


class Asked(Struct, frozen=True, eq=False):
    """What is asked for."""

    topic: Topic
    number: int  # of the partition
    user_id: str
    user: bytes
    key_hash: int
    messages_max: int
    bytes_max: int


def asked_of(topic: Topic, user_id: str, messages_max: int, bytes_max: int) -> Asked:
    user, number = address_of(user_id, len(topic.partitions))
    return Asked(topic, number, user_id, user, hash_of(user), messages_max, bytes_max)


class AtOnce:
    """What the indexes and the messages in memory say of a user, if this broker leads and has it all."""

    def __init__(self, indexes: KeyIndexes, messages: Messages) -> None:
        self._indexes = indexes
        self._messages = messages

    def check_same(self, topic: Topic) -> None:
        """Positions mean nothing in a topic that was made again."""
        current = self._indexes.topic
        if current is not topic and (current is None or current.id != topic.id):
            raise InvalidRequest("the topic 'inbox' was deleted meanwhile, with all messages: begin at the first")

    def find(self, asked: Asked, position: int) -> Found | None:
        """The next messages; most who ask have seen what is older than memory has."""
        index = self._indexes.at(asked.number)
        if index is None or not index.partition.is_leader:
            return None
        known = index.find_now(asked.key_hash, position, asked.messages_max)
        if known is None:
            return None
        offsets, upto = known
        if not offsets:
            return Found([], upto) if position <= upto and upto >= index.partition.last_stable_offset else None
        letters: list[Letter] = []
        user, bytes_left, stretch = asked.user, asked.bytes_max, None
        for offset in offsets:
            if stretch is None or offset >= stretch.end:
                stretch = self._messages.cached(index.partition, offset)
            record = None if stretch is None else stretch.get(offset)
            if record is None or record.key != user:
                return None
            letter = letter_of(record)
            letters.append(letter)
            bytes_left -= len(letter.message)
            if bytes_left <= 0:
                return Found(letters, offset + 1)
        return Found(letters, upto)


class Polls:
    """Those who wait: for a message, for their time, or for the end."""

    def __init__(self, at_once: AtOnce) -> None:
        self._at_once = at_once
        self.deadlines = Deadlines()
        self.over = False
        self._ended: deque[Poll] = deque()  # these look in the next turn

    def close(self) -> None:
        """Answer at once, now and from now on."""
        self.over = True
        self.deadlines.end_all()

    def find(self, asked: Asked, position: int) -> Found | None:
        self._at_once.check_same(asked.topic)
        return self._at_once.find(asked, position)

    def look_soon(self, poll: "Poll") -> None:
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._look)
        self._ended.append(poll)

    def _look(self) -> None:
        """Should one of them fail, the others still look."""
        ended, self._ended = self._ended, deque()
        try:
            while ended:
                ended.popleft().look()
        finally:
            for poll in ended:
                self.look_soon(poll)


class Poll(Struct, eq=False):
    """One receive."""

    polls: Polls
    asked: Asked
    keys: KeyIndex
    position: int
    deadline: float
    waits: Waits  # it ends with these
    receiver: Receiver
    looks: bool = False  # in the next turn
    tick: int | None = None  # of its deadline, once it waits

    def begin(self) -> None:
        """Say what is there, or wait for it."""
        if not self._said():
            self.tick = self.polls.deadlines.begin(self, self.deadline)
            self.keys.begin(self.asked.key_hash, self)
            self.waits.begin(self)

    def end(self) -> None:
        """There may be something, or it is over."""
        if not self.looks and self.tick is not None:
            self.looks = True
            self.polls.look_soon(self)

    def look(self) -> None:
        self.looks = False
        if self.tick is not None and self._said():
            self.polls.deadlines.done(self, self.tick)
            self.tick = None
            self.keys.done(self.asked.key_hash, self)
            self.waits.done(self)

    def _said(self) -> bool:
        """Whether the receiver has been told."""
        asked, receiver = self.asked, self.receiver
        left_s = self.deadline - asyncio.get_running_loop().time()
        try:
            found = self.polls.find(asked, self.position)
        except RunnelError as error:
            receiver.failed(error)
            return True
        if found is None:
            receiver.ask_otherwise(left_s)
            return True
        if not found.letters and left_s > 0 and not (self.waits.over or self.polls.over):
            self.position = max(self.position, found.upto)
            return False
        receiver.received(mails_of(found.letters, asked.topic, asked.number, asked.user_id))
        return True
