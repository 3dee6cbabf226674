"""What programs send and get: messages, where they went, and what waits for its time."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeAlias

import msgspec

from runnel.client.consumer import Message as Fetched
from runnel.model import calls
from runnel.model.errors import InvalidConfig, InvalidRecord
from runnel.model.json_values import parse
from runnel.model.seams import Clock
from runnel.model.unreadable import UNREADABLE

Body: TypeAlias = Any  # bytes, text, None; everything else is sent as JSON
HeaderMap: TypeAlias = Mapping[str, str | bytes | None]


class Sent(NamedTuple):
    """Where a message went; with a `scheduled_id`, it waits for its time, and has no offset yet."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    scheduled_id: str = ""
    duplicate: bool = False  # a message of this id was there already: this is its place

    @classmethod
    def of(cls, placed: calls.Placed) -> "Sent":
        return cls(
            placed.topic, placed.partition, placed.offset, placed.timestamp_ms, placed.scheduled_id, placed.duplicate
        )


@dataclass(frozen=True)
class Message:
    """A message as it is read."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes | None] = field(default_factory=dict)  # of several of one name, the last

    @classmethod
    def of(cls, found: "Fetched | calls.Read") -> "Message":
        return cls(
            found.topic, found.partition, found.offset, found.timestamp_ms, found.key, found.value,
            dict(found.headers),
        )  # fmt: skip

    @property
    def text(self) -> str:
        """The value as UTF-8."""
        return (self.value or b"").decode()

    @property
    def time(self) -> datetime:
        return time_of(self.timestamp_ms)

    def json(self) -> Any:
        """The value as JSON. A number that no float holds is infinite, as in Python's own json."""
        try:
            return parse(self.value or b"null")
        except UNREADABLE as problem:
            place = f"{self.topic}/{self.partition}@{self.offset}"
            raise InvalidRecord(
                f"the value of the message at {place} is not JSON ({problem}): read it by its .value or .text, or"
                " reject the message"
            ) from problem


@dataclass(frozen=True)
class Pending:
    """A message that waits for its time."""

    id: str
    due: datetime
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Mapping[str, bytes | None]

    @property
    def text(self) -> str:
        """The value as UTF-8."""
        return (self.value or b"").decode()


def pending_of(waiting: calls.Pending) -> Pending:
    return Pending(
        waiting.id, time_of(waiting.due_ms), waiting.topic, waiting.partition, waiting.key, waiting.value,
        dict(waiting.headers),
    )  # fmt: skip


def time_of(wall_ms: int) -> datetime:
    return datetime.fromtimestamp(wall_ms / 1000, UTC)


def bytes_of(value: Body) -> bytes | None:
    """As it is stored: bytes as they are, text as UTF-8, everything else as JSON."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    return value.encode() if isinstance(value, str) else msgspec.json.encode(value)


def headers_of(headers: HeaderMap | Iterable[calls.Header] | None) -> list[calls.Header]:
    pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
    return [(name, _header(name, value)) for name, value in pairs]


def _header(name: str, value: str | bytes | None) -> bytes | None:
    if not isinstance(value, str | bytes | bytearray | memoryview | None):
        raise InvalidConfig(f"header {name!r} can't be {value!r}: use text or bytes")
    return bytes_of(value)


def milliseconds(span: float | timedelta) -> int:
    """Seconds, or a timedelta, in whole milliseconds; never less than was asked for."""
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if not 0 <= seconds < math.inf:
        raise InvalidConfig(f"{span!r} is no time to wait: use seconds, or a timedelta, from 0 on")
    return math.ceil(seconds * 1000)


def due_ms(clock: Clock, delay: float | timedelta | None, at: datetime | None) -> int | None:
    """When a message is due, by the wall clock; None: at once."""
    if delay is not None and at is not None:
        raise InvalidConfig("a message is due after a `delay` or `at` a time: give one of them")
    if at is not None:
        if at.tzinfo is None:
            raise InvalidConfig(f"{at.isoformat()} has no time zone: use e.g. datetime.now(UTC) + timedelta(hours=1)")
        return math.ceil(at.timestamp() * 1000)
    return None if delay is None else clock.wall_ms() + milliseconds(delay)
