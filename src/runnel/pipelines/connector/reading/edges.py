"""Where reading begins and ends, as users write it. Pure.

    earliest, latest, committed    the first message kept; the end; where the option group.id stands
    -100                           100 before the end of each partition
    {"orders": {"0": 23, "1": -2}} one for each partition: an offset, -2 for earliest, -1 for latest (as Spark's Kafka
                                   source has it), or one of the words above as a text
    startingTimestamp              the first message at or after a time: ms since 1970, or ISO 8601 with a zone

Rule: what names partitions one by one names all that are read: one that was forgotten would begin somewhere by chance.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import msgspec

from runnel.client.metadata import TopicPartition
from runnel.client.positions import END, START, STORED, From, Position
from runnel.pipelines.errors import BadOption

WORDS = {"earliest": START, "latest": END, "committed": STORED}
NUMBERS = {-2: START, -1: END}
OFFSETS_HELP = (
    'use earliest, latest, committed, -N (N before the end of each partition), or JSON as {"topic": {"0": 23, "1": -2}}'
)
TIME_HELP = "use milliseconds since 1970, or a time as 2026-01-31T12:00:00Z"
_DISTANCE = re.compile(r"-(\d+)")


@dataclass(frozen=True)
class Edge:
    """Where reading begins, or where it ends: the same for every partition, or one for each."""

    option: str  # who said so, for errors
    every: Position = START
    each: Mapping[TopicPartition, Position] = field(default_factory=dict)
    strict: bool = False  # no message at such a time is an error, not the end

    def of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Position]:
        """What is wanted of each of these partitions."""
        wanted = list(partitions)
        if not self.each:
            return dict.fromkeys(wanted, self.every)
        if missing := [str(where) for where in wanted if where not in self.each]:
            raise BadOption(self.option, _shown(self.each), f"name every partition; missing: {', '.join(missing)}")
        if beyond := [str(where) for where in self.each if where not in wanted]:
            raise BadOption(self.option, _shown(self.each), f"it names what is not read: {', '.join(beyond)}")
        return {where: self.each[where] for where in wanted}

    def uses(self, anchor: From) -> bool:
        return any(position.anchor is anchor for position in (self.each.values() if self.each else (self.every,)))


def offsets_edge(option: str, text: str) -> Edge:
    """An edge by offsets."""
    if text.startswith("{"):
        return Edge(option, each=_each(option, text, lambda value: _offset(option, text, value)))
    return Edge(option, _word(option, text, text))


def time_edge(option: str, text: str, *, strict: bool) -> Edge:
    """An edge at one time."""
    return Edge(option, _time(option, text, text), strict=strict)


def times_edge(option: str, text: str, *, strict: bool) -> Edge:
    """An edge at a time for each partition."""
    return Edge(option, each=_each(option, text, lambda value: _time(option, text, value)), strict=strict)


def partitions_of(option: str, text: str) -> tuple[TopicPartition, ...]:
    """What `assign` names: {"orders": [0, 1]}."""
    found = _json(option, text, dict[str, list[int]], '{"topic": [0, 1]}')
    wanted = [TopicPartition(topic, number) for topic, numbers in found.items() for number in numbers]
    if not wanted or any(number < 0 for _, number in wanted):
        raise BadOption(option, text, "name partitions by numbers from 0 on")
    return tuple(sorted(set(wanted)))


def _word(option: str, text: str, word: str) -> Position:
    if (known := WORDS.get(word.lower())) is not None:
        return known
    match = _DISTANCE.fullmatch(word)
    if match is None:
        raise BadOption(option, text, OFFSETS_HELP)
    return Position(From.END, int(match[1]))


def _offset(option: str, text: str, value: object) -> Position:
    if isinstance(value, str):
        return _word(option, text, value)
    if not isinstance(value, int) or isinstance(value, bool) or value < -2:
        raise BadOption(option, text, f'{value!r} is no offset: {OFFSETS_HELP}, in which "-100" is a text')
    return NUMBERS.get(value, Position(From.OFFSET, value))


def _time(option: str, text: str, value: object) -> Position:
    if isinstance(value, str) and not value.isdecimal():
        try:
            when = datetime.fromisoformat(value)
        except ValueError:
            raise BadOption(option, text, TIME_HELP) from None
        if when.tzinfo is None:
            raise BadOption(option, text, f"{value!r} has no time zone: append Z for UTC, or +01:00")
        return Position(From.TIME, int(when.timestamp() * 1000))
    if isinstance(value, bool) or not isinstance(value, int | str) or int(value) < 0:
        raise BadOption(option, text, TIME_HELP)
    return Position(From.TIME, int(value))


def _each(option: str, text: str, position: Callable[[object], Position]) -> dict[TopicPartition, Position]:
    found = _json(option, text, dict[str, dict[int, Any]], '{"topic": {"0": 23}}')
    each = {TopicPartition(t, n): position(value) for t, numbers in found.items() for n, value in numbers.items()}
    if not each:
        raise BadOption(option, text, "it names no partition")
    return each


def _json(option: str, text: str, shape: Any, example: str) -> Any:
    try:
        return msgspec.json.decode(text, type=shape)
    except (msgspec.DecodeError, msgspec.ValidationError) as problem:
        raise BadOption(option, text, f"it is not JSON of the form {example}: {problem}") from None


def _shown(each: Mapping[TopicPartition, Position]) -> str:
    return ", ".join(str(where) for where in each)
