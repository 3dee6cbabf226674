"""What brokers ask each other about inboxes: values and verbs of broker/inbox.py, see model/calls.py."""

from typing import Final
from uuid import UUID

from runnel.model.calls import Value, Verb


class Look(Value, frozen=True, array_like=True, gc=False):
    """For the messages of one user, from an offset on, in the partition that has them."""

    topic_id: UUID
    partition: int
    user: bytes
    offset: int
    messages_max: int
    bytes_max: int
    timeout_ms: int


class Letter(Value, frozen=True, array_like=True, gc=False):
    """A message to a user, as it lies in the partition."""

    offset: int
    timestamp_ms: int
    from_user: bytes
    message: bytes


class Found(Value, frozen=True, array_like=True):
    """The first of them, in order. All below `upto` was looked at."""

    letters: list[Letter]
    upto: int


class News(Value, frozen=True, array_like=True, gc=False):
    """For whom has anything come since this offset? The answer may wait until something has."""

    topic_id: UUID
    partition: int
    since: int
    wait_ms: int


class Arrived(Value, frozen=True, array_like=True):
    """The hashes of the users who got something in [since, upto); None: nobody knows, all must look."""

    upto: int
    hashes: list[int] | None


INBOX_LOOK: Final = Verb("inbox.look", Look, Found)
INBOX_NEWS: Final = Verb("inbox.news", News, Arrived, waits=True)
