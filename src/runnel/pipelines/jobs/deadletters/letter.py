"""A dead letter as a repair function gets it, and what the function may answer.

Rule 1: a letter is whole: key, value and headers as they lie in the topic of dead letters, and read out of its headers
        where it came from, why and when it died, and how often it was repaired before.
Rule 2: nothing here knows Spark: a repair function is tried out on a `Letter` like any other function.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from runnel.client.queue import DeadLetter
from runnel.client.values import Body, HeaderMap, bytes_of, headers_of
from runnel.model import headers as h
from runnel.model.numbers import whole_number

Pairs: TypeAlias = Sequence[tuple[str, bytes | None]]


@dataclass(frozen=True)
class Letter(DeadLetter):
    """A message that a queue gave up."""

    origin_timestamp_ms: int = -1
    died_ms: int = -1
    queue: str = ""
    repairs: int = 0  # how often it was repaired and died again

    def with_value(self, value: Body) -> "Letter":
        """The same with another value: bytes, text, or what is sent as JSON."""
        return replace(self, value=bytes_of(value))

    def with_headers(self, headers: HeaderMap) -> "Letter":
        """The same with these headers and no others; those of Runnel stay."""
        return replace(self, headers=dict(headers_of(headers)))


@dataclass(frozen=True, slots=True)
class Park:
    """Put the letter into the parking topic, for people to look at."""

    why: str = ""


Answer: TypeAlias = Letter | Park | None  # None: leave it where it is


def letter_of(
    topic: str, partition: int, offset: int, timestamp_ms: int, key: bytes | None, value: bytes | None, pairs: Pairs
) -> Letter:
    """A record of a topic of dead letters, with what its headers tell. Of several of one name the last counts."""
    told: Mapping[str, bytes | None] = dict(pairs)
    return Letter(
        topic, partition, offset, timestamp_ms, key, value, told,
        origin_topic=_text(told, h.ORIGIN_TOPIC), origin_partition=_number(told, h.ORIGIN_PARTITION, -1),
        origin_offset=_number(told, h.ORIGIN_OFFSET, -1), reason=_text(told, h.DEAD_REASON),
        attempts=_number(told, h.ATTEMPTS, 0), origin_timestamp_ms=_number(told, h.ORIGIN_TIMESTAMP, -1),
        died_ms=_number(told, h.DEAD_AT, timestamp_ms), queue=_text(told, h.DEAD_QUEUE),
        repairs=max(_number(told, h.REPAIRS, 0), 0),
    )  # fmt: skip


def _text(headers: Mapping[str, bytes | None], name: str) -> str:
    return str(headers.get(name) or b"", "utf-8", "replace")


def _number(headers: Mapping[str, bytes | None], name: str, default: int) -> int:
    """A header that is no number counts for nothing: anybody can write into the topic."""
    number = whole_number(_text(headers, name))
    return default if number is None else number
