"""Messages to users as values: their ids, the partition they are in, and how they lie in the log.

Rule 1: where the messages of a user are follows from the user's name and the number of partitions alone, in the same
        way as with Kafka's clients.
Rule 2: an id is a place. As text it has a fixed width, and sorts by offset within a partition.
"""

from functools import lru_cache
from typing import Final, NamedTuple

from runnel.client.partitioner import partition_of_key
from runnel.cluster.image import Topic
from runnel.model.errors import InvalidRequest, RunnelError
from runnel.model.inbox import Letter
from runnel.record.records import Record

INBOX: Final = "inbox"  # the topic
FROM: Final = "runnel-from"  # the header with the sender
USER_BYTES_MAX: Final = 1024

_PLACE: Final = "%08x%04x"
_ID: Final = _PLACE + "%016x"
ID_CHARS: Final = 28


class MessageId(NamedTuple):
    """The place of a message. As text it has a fixed width, and sorts by offset within a partition."""

    topic: int  # 32 bits of the topic's id: a topic that was made again is another one
    partition: int
    offset: int

    def __str__(self) -> str:
        return _ID % self


def parse_id(text: str) -> MessageId:
    try:
        if len(text) != ID_CHARS or not text.isascii() or not text.isalnum():
            raise ValueError(text)
        number = int(text, 16)
        return MessageId(number >> 80, number >> 64 & 0xFFFF, number & 0xFFFF_FFFF_FFFF_FFFF)
    except ValueError:
        raise InvalidRequest(f"{text[:40]!r} is not the id of a message: use one as it came from /receive") from None


class Sending:
    """A message on its way to its place: who sends it is told, once, what becomes of it."""

    __slots__ = ("partition", "topic")

    topic: int  # 32 bits of the topic's id
    partition: int

    def kept(self, offset: int) -> None:
        """It has its place."""
        raise NotImplementedError

    def failed(self, error: RunnelError) -> None:
        raise NotImplementedError


class Mails(NamedTuple):
    """Messages to a user, in order."""

    place: str  # of the partition: what their ids begin with
    to_user: str
    letters: list[Letter]


@lru_cache(maxsize=16_384)
def address_of(name: str, partitions: int) -> tuple[bytes, int]:
    """A user as a key, and the partition, as Kafka's clients choose it: what they send to a user arrives too."""
    user = user_of(name)
    return user, partition_of_key(user, partitions)


def user_of(name: str) -> bytes:
    user = name.encode()
    if not 0 < len(user) <= USER_BYTES_MAX:
        raise InvalidRequest(f"the name of a user has 1 to {USER_BYTES_MAX} bytes, not {len(user)}")
    return user


def after(text: str, topic: Topic, number: int) -> int:
    """The offset behind a message of this partition."""
    place = parse_id(text)
    if place.topic != tag_of(topic) or place.partition != number:
        raise InvalidRequest(
            f"{text!r} is not the id of a message to this user: use one that came from /receive for the same user,"
            " or leave last_message_id out to begin at the first"
        )
    return place.offset + 1


def tag_of(topic: Topic) -> int:
    return topic.id.int & 0xFFFFFFFF


def mails_of(letters: list[Letter], topic: Topic, number: int, user: str) -> Mails:
    return Mails(_PLACE % (tag_of(topic), number), user, letters)


def letter_of(record: Record) -> Letter:
    offset, timestamp, _, value, headers = record
    for name, sender in headers:
        if name == FROM:
            return Letter(offset, timestamp, sender or b"", value or b"")
    return Letter(offset, timestamp, b"", value or b"")
