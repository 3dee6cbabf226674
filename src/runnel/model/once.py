"""Appending once by name: its values, and the calls that carry them to a partition's leader (broker/once.py).

A message's name is the value of the last of its headers `runnel-message-id`.
"""

from typing import Final
from uuid import UUID

from runnel.model.calls import Failure, Header, Value, Verb

WINDOW: Final = -1  # instead of a floor: the topic's dedup.window.ms, or ten minutes if it has none


class OnceMessage(Value, frozen=True):
    """A message, and from where on one of the same name counts as this one.

    `floor` is a committed offset of the partition (`Once.floor`), seen before the message was sent for the first time.
    """

    id: str
    key: bytes | None
    value: bytes | None
    headers: list[Header]
    timestamp_ms: int
    floor: int = WINDOW
    accepted: bool = False  # the topic's limits were asked before, when Runnel took it over
    in_window: bool = False  # beside the floor, what lies in the window counts


class Placed(Value, frozen=True):
    """Where the message of a name lies; a duplicate was there already."""

    offset: int
    timestamp_ms: int
    duplicate: bool


class AppendOnce(Value, frozen=True):
    topic_id: UUID
    partition: int
    messages: list[OnceMessage]
    timeout_ms: int


class AppendedOnce(Value, frozen=True):
    """For each message, in order: where it lies now, or why it does not."""

    placed: list[Placed | None]
    failures: list[Failure | None]


class AskFloor(Value, frozen=True):
    topic_id: UUID
    partition: int


class Floor(Value, frozen=True):
    offset: int


APPEND_ONCE: Final = Verb("append.once", AppendOnce, AppendedOnce, waits=True)
ONCE_FLOOR: Final = Verb("once.floor", AskFloor, Floor)
