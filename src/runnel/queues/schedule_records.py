"""The schedule's records: what its log holds, as bytes and as changes of an index (docs/formats/schedule.md).

key    kind u8 | topic id 16 bytes | partition u32 | id, UTF-8 (of a message alone)
value  msgpack: of a message [due, parked, floor, key, value, headers]; of a front [up to, floor]; null: it is gone
"""

from collections.abc import Iterable
from struct import Struct
from typing import Final
from uuid import UUID

import msgspec

from runnel.model.calls import Header, Value
from runnel.model.ids import PartitionKey, TopicId
from runnel.model.schedule import Change, Drop, Front, Move, Put
from runnel.model.step import Record

MESSAGE: Final = 0
FRONT: Final = 1
_KEY: Final = Struct(">B16sI")


class Kept(Value, frozen=True):
    """A message as it is kept."""

    due_ms: int
    parked_ms: int
    floor: int
    key: bytes | None
    value: bytes | None
    headers: list[Header]


class _KeptFront(Value, frozen=True):
    upto_ms: int
    floor: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Kept).decode
_decode_front = msgspec.msgpack.Decoder(_KeptFront).decode


def message_record(target: PartitionKey, id: str, kept: Kept) -> Record:
    return _key(MESSAGE, target) + id.encode(), _encode(kept)


def tombstone(target: PartitionKey, id: str) -> Record:
    return _key(MESSAGE, target) + id.encode(), None


def front_record(target: PartitionKey, front: Front | None) -> Record:
    return _key(FRONT, target), None if front is None else _encode(_KeptFront(*front))


def kept_of(body: bytes) -> Kept:
    return _decode(body)


def changes(rows: Iterable[tuple[int, bytes | None, bytes | None]]) -> list[Change]:
    """What records (offset, key, value) say, in order."""
    return [_change(offset, key, value) for offset, key, value in rows if key is not None]


def _key(kind: int, target: PartitionKey) -> bytes:
    return _KEY.pack(kind, target.topic_id.bytes, target.number)


def _change(offset: int, key: bytes, value: bytes | None) -> Change:
    kind, topic_id, number = _KEY.unpack_from(key)
    target = PartitionKey(TopicId(UUID(bytes=topic_id)), number)
    if kind == FRONT:
        return Move(target, None if value is None else _front(value))
    id = str(key[_KEY.size :], "utf-8")
    return Drop(target, id) if value is None else Put(target, id, _decode(value).due_ms, offset, value)


def _front(value: bytes) -> Front:
    kept = _decode_front(value)
    return Front(kept.upto_ms, kept.floor)
