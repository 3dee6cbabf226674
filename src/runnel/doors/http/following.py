"""Where those who are sent messages begin and go on: what the streams have in common."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, TypeAlias

from msgspec import Meta

from runnel.broker.fetch import Waits
from runnel.broker.tailing import Tail
from runnel.doors.http.call import Call
from runnel.doors.http.payload import PARTITION_MAX, Partition, offset_of, time_ms
from runnel.doors.http.problems import InvalidInput
from runnel.model.reading import END, START
from runnel.route.filter import compile

From: TypeAlias = Annotated[
    str, Meta(description="start, end, a time as ISO 8601, or positions as they came with a message: 0-15.1-7")
]
Numbers: TypeAlias = Annotated[list[Partition] | None, Meta(description="these partitions alone")]


def tail_of(call: Call, topic: str, begin: str, partitions: Sequence[int] | None, filter: str, waits: Waits) -> Tail:
    """Follow a topic from a place on."""
    if filter:
        compile(filter)
    found = call.broker.image.topic_named(topic)
    count = len(call.broker.image.shown(found).partitions)
    numbers = range(count) if partitions is None else partitions
    for number in numbers:
        if not 0 <= number < count:
            raise InvalidInput(f"topic {topic!r} has partitions 0 to {count - 1}, not {number}")
    tail = partial(Tail, call.broker, found.id, waits=waits, filter=filter, grows=partitions is None)
    if begin in ("start", "end"):
        return tail(dict.fromkeys(numbers, START if begin == "start" else END))
    known = parse_positions(begin)
    if known is None:
        return tail(dict.fromkeys(numbers, START), time_ms=time_ms(begin))
    return tail({number: known.get(number, START) for number in numbers})  # one that is new begins at its start


def shown_place(topic: str, partition: int, next_offset: int) -> str:
    """The id of a message to a member of a group: who commits it has done all up to it."""
    return f"{topic}/{partition}/{next_offset}"


def parse_place(id: str) -> tuple[str, int, int]:
    """Topic, partition and next offset."""
    topic, partition, next_offset = (["", "", *id.rsplit("/", 2)])[-3:]
    number, offset = offset_of(partition, PARTITION_MAX), offset_of(next_offset)
    if not topic or number is None or offset is None:
        raise InvalidInput(f"{id[:60]!r} is not the id of a message: use one as it came, e.g. orders/0/17")
    return topic, number, offset


def resumed(last_event_id: str) -> str:
    """The positions that the id of an event is; digits alone are no time here."""
    if parse_positions(last_event_id) is None:
        raise InvalidInput(
            f"Last-Event-ID {last_event_id[:60]!r} is not the id of an event: send one as it came, e.g. 0-15.1-7;"
            " to begin at a time, use the parameter begin"
        )
    return last_event_id


def shown_positions(positions: dict[int, int]) -> str:
    return ".".join(f"{number}-{offset}" for number, offset in sorted(positions.items()))


def parse_positions(text: str) -> dict[int, int] | None:
    """Positions by partition; None if the text is no such thing."""
    positions: dict[int, int] = {}
    for part in text.split("."):
        first, _, second = part.partition("-")
        number, offset = offset_of(first, PARTITION_MAX), offset_of(second)
        if number is None or offset is None:
            return None
        positions[number] = offset
    return positions
