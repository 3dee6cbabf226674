"""The records of a delivery: what of it survives (docs/formats/queue-state.md).

Keys and values are msgpack arrays. A key begins with the number of its kind, a value with the number of its shape;
fields may be added at the end of a value.
"""

from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

import msgspec

from runnel.model.errors import RecordUnreadable
from runnel.model.ids import PartitionKey, TopicId
from runnel.model.step import Record
from runnel.model.unreadable import FOREIGN
from runnel.queues.status import DONE, LEASED, WAIT
from runnel.queues.values import Counters, Leaving, LeavingId

CHUNK_OFFSETS: Final = 1_024  # of which one record tells, see `window`
MARK: Final = 1
CHUNK: Final = 2
LEAVING: Final = 3
PAST: Final = 4
SINCE: Final = 5


class Run(NamedTuple):
    """Some neighbours in a chunk with one status."""

    length: int
    kind: int
    attempts: int
    until: int


class Mark(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """How far the queue is."""

    done: int  # everything below is done
    next: int  # nothing at or above it was leased or passed over, unless a chunk says so
    generation: int
    holder: str  # the single active consumer
    counters: Counters
    sure_from: int = 0  # see `past`
    longest_ms: int = 0  # no lease and no wait was ever longer
    made: int = 0  # the number of the queue whose state this is


class Chunk(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The runs of 1,024 offsets, from the first one on; numbers in a row, see `_packed`."""

    base_ms: int
    runs: tuple[int, ...]


class Left(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Messages that leave."""

    leaving: Leaving


class Ended(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """How messages ended, see `past`."""

    last: int
    attempt: int


class Counts(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Since which generation the copies of a partition count, see `copies`."""

    generation: int


class KeptMark(NamedTuple):
    mark: Mark


class KeptChunk(NamedTuple):
    number: int
    runs: list[Run] | None


class KeptLeaving(NamedTuple):
    id: LeavingId
    leaving: Leaving | None


class KeptPast(NamedTuple):
    first: int
    note: tuple[int, int] | None


class KeptSince(NamedTuple):
    key: PartitionKey
    generation: int | None


Kept: TypeAlias = KeptMark | KeptChunk | KeptLeaving | KeptPast | KeptSince

_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_marks = msgspec.msgpack.Decoder(Mark)
_chunks = msgspec.msgpack.Decoder(Chunk)
_leavings = msgspec.msgpack.Decoder(Left)
_pasts = msgspec.msgpack.Decoder(Ended)
_sinces = msgspec.msgpack.Decoder(Counts)
MARK_KEY: Final = _encoder.encode((MARK,))
LEAVING_BEGINS: Final = _encoder.encode((LEAVING, 0, 0))[:2]  # the keys of what is on its way out of a queue


def mark_record(mark: Mark) -> Record:
    return MARK_KEY, _encoder.encode(mark)


def chunk_record(number: int, runs: list[Run] | None) -> Record:
    return _encoder.encode((CHUNK, number)), None if runs is None else _encoder.encode(_packed(runs))


def leaving_record(id: LeavingId, leaving: Leaving | None) -> Record:
    return _encoder.encode((LEAVING, *id)), None if leaving is None else _encoder.encode(Left(leaving))


def past_record(first: int, note: tuple[int, int] | None) -> Record:
    return _encoder.encode((PAST, first)), None if note is None else _encoder.encode(Ended(*note))


def since_record(key: PartitionKey, generation: int | None) -> Record:
    return _encoder.encode((SINCE, *key)), None if generation is None else _encoder.encode(Counts(generation))


def decode(key: bytes, value: bytes | None) -> Kept | None:
    """One record as it was written; None if its kind is unknown: a newer broker wrote it and can do without us."""
    try:
        return _decoded(msgspec.msgpack.decode(key), value)
    except FOREIGN as problem:
        raise RecordUnreadable(
            f"queue record with key {key[:64].hex()} can't be read: {problem}; was it written by a newer Runnel?"
        ) from None


def chunk_number(key: bytes) -> int | None:
    """The chunk that a record is about, if it is about one."""
    try:
        match msgspec.msgpack.decode(key):
            case [2, int(number)]:
                return number
    except FOREIGN:
        return None
    return None


def _decoded(parts: list[Any], value: bytes | None) -> Kept | None:
    match parts:
        case [1] if value is not None:
            return KeptMark(_marks.decode(value))
        case [2, int(number)]:
            return KeptChunk(number, None if value is None else _unpacked(_chunks.decode(value)))
        case [3, int(generation), int(first)]:
            leaving = None if value is None else _leavings.decode(value).leaving
            return KeptLeaving(LeavingId(generation, first), leaving)
        case [4, int(first)]:
            ended = None if value is None else _pasts.decode(value)
            return KeptPast(first, None if ended is None else (ended.last, ended.attempt))
        case [5, bytes(topic_id), int(number)]:
            key = PartitionKey(TopicId(UUID(bytes=topic_id)), number)
            return KeptSince(key, None if value is None else _sinces.decode(value).generation)
        case [1] | [0, *_]:
            return None
        case [int(kind), *_] if kind > SINCE:
            return None
    raise ValueError("its key is none of a queue's")


def _packed(runs: list[Run]) -> Chunk:
    """Of each run: its length; its kind and attempts in one number; if it ends at a moment, the milliseconds to it.

    They count from one before the earliest of them, so that 0 is left to say that there is no moment.
    """
    base_ms = min((run.until for run in runs if run.until), default=1) - 1
    numbers: list[int] = []
    for length, kind, attempts, until in runs:
        numbers.append(length)
        numbers.append((kind - DONE) + 4 * attempts)
        if kind >= WAIT:
            numbers.append(until - base_ms if until else 0)
    return Chunk(base_ms, tuple(numbers))


def _unpacked(chunk: Chunk) -> list[Run]:
    numbers = iter(chunk.runs)
    runs: list[Run] = []
    for length in numbers:
        attempts, kind = divmod(next(numbers), 4)
        kind += DONE
        ends = next(numbers) if kind in (WAIT, LEASED) else 0
        runs.append(Run(length, kind, attempts, ends + chunk.base_ms if ends else 0))
    if sum(run.length for run in runs) > CHUNK_OFFSETS or any(run.length < 1 or run.attempts < 0 for run in runs):
        raise ValueError(f"its runs are none of {CHUNK_OFFSETS} offsets")
    return runs
