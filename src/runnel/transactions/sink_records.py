"""The records of the internal topic: what of a sink survives (docs/formats/sink-records.md).

One record for the sink, and one for each attempt that has a transaction, by its slot; no value is a tombstone. Keys and
values are msgpack arrays. A value begins with the number of its shape; fields may be added at its end.
"""

from enum import IntEnum
from typing import NamedTuple

import msgspec

from runnel.model.errors import RecordUnreadable
from runnel.model.numbers import whole_number
from runnel.model.sinks import PREFIX, Handle
from runnel.model.unreadable import FOREIGN

SINK, ATTEMPT = 1, 2  # the kinds: the first element of a key
NO_BATCH = -1


class Phase(IntEnum):
    """What is being done with a batch. Stored."""

    IDLE = 0
    HOLDING = 1  # nothing is decided: every transaction of the batch is to be held first
    PUBLISHING = 2  # decided: every one is to be committed
    DROPPING = 3  # every one is to be aborted

    @property
    def label(self) -> str:
        return self.name.lower()


class Chosen(NamedTuple):
    """One transaction of the batch in hand."""

    slot: int
    producer_id: int
    epoch: int


class Head(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """All that is known of a sink but its attempts."""

    query: str
    last: int  # batch that is decided to be published
    changed_ms: int  # wall time of this record
    phase: Phase = Phase.IDLE
    batch: int = NO_BATCH  # that something is being done with
    chosen: tuple[Chosen, ...] = ()
    final: bool = False  # nobody will publish here again
    forgetting: bool = False


class Attempt(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Somebody writes a part of a batch, or has written it."""

    batch: int
    partition: int
    attempt: int
    producer_id: int
    epoch: int
    began_ms: int

    @property
    def place(self) -> tuple[int, int, int]:
        return self.batch, self.partition, self.attempt


class Key(NamedTuple):
    sink: str
    slot: int = -1  # of an attempt


_encoder = msgspec.msgpack.Encoder()
_heads = msgspec.msgpack.Decoder(Head)
_attempts = msgspec.msgpack.Decoder(Attempt)


def transactional_id(sink: str, slot: int) -> str:
    return f"{PREFIX}{sink}/{slot}"


def slot_of(sink: str, handle: Handle) -> int:
    """The slot that a handle speaks of; -1: none of this sink."""
    before, _, text = handle.transactional_id.rpartition("/")
    number = whole_number(text) if before == f"{PREFIX}{sink}" else None
    return -1 if number is None else max(number, -1)


def handle_of(sink: str, slot: int, attempt: Attempt) -> Handle:
    return Handle(transactional_id(sink, slot), attempt.producer_id, attempt.epoch)


def encode_key(key: Key) -> bytes:
    return _encoder.encode((SINK, key.sink) if key.slot < 0 else (ATTEMPT, key.sink, key.slot))


def encode_value(value: Head | Attempt) -> bytes:
    return _encoder.encode(value)


def decode(key: bytes, value: bytes | None) -> tuple[Key, Head | Attempt | None] | None:
    """One record as it was written; None if its kind is unknown: a newer broker wrote it and can do without us."""
    try:
        kind, *parts = msgspec.msgpack.decode(key)
        if kind == SINK:
            [sink] = parts
            return Key(str(sink)), None if value is None else _heads.decode(value)
        if kind == ATTEMPT:
            sink, slot = parts
            return Key(str(sink), int(slot)), None if value is None else _attempts.decode(value)
        return None
    except FOREIGN as problem:
        raise RecordUnreadable(
            f"sink record with key {key[:64].hex()} can't be read: {problem}; was it written by a newer Runnel?"
        ) from None
