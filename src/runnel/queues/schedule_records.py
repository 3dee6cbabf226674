"""The schedule's records: what its log holds, as bytes and as changes of an index (docs/formats/schedule.md).

key    kind u8 | topic id 16 bytes | partition u32 | id, UTF-8 (of a message alone)
value  msgpack: of a message [due, parked, floor, key, value, headers]; of a front [up to, floor]; null: it is gone
header cancelled, i64 in milliseconds: of a message that is gone because it was cancelled
"""

from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from runnel.model.calls import Header, Value
from runnel.model.errors import RecordUnreadable
from runnel.model.ids import PartitionKey, TopicId
from runnel.model.schedule import Change, Drop, Front, Move, Put
from runnel.model.unreadable import FOREIGN
from runnel.record.records import Headers

MESSAGE: Final = 0
FRONT: Final = 1
CANCELLED: Final = "cancelled"
I64_END: Final = 1 << 63
_KEY: Final = Struct(">B16sI")
_TIME: Final = Struct(">q")


class ScheduleRecord(NamedTuple):
    key: bytes
    value: bytes | None
    headers: Headers = ()


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


def message_record(target: PartitionKey, id: str, kept: Kept) -> ScheduleRecord:
    return ScheduleRecord(_key(MESSAGE, target) + id.encode(), _encode(kept))


def tombstone(target: PartitionKey, id: str) -> ScheduleRecord:
    """The end of a message that was sent, or whose topic is gone."""
    return ScheduleRecord(_key(MESSAGE, target) + id.encode(), None)


def cancellation(target: PartitionKey, id: str, now_ms: int) -> ScheduleRecord:
    """The end of a message that was cancelled."""
    return tombstone(target, id)._replace(headers=((CANCELLED, _TIME.pack(now_ms)),))


def front_record(target: PartitionKey, front: Front | None) -> ScheduleRecord:
    return ScheduleRecord(_key(FRONT, target), None if front is None else _encode(_KeptFront(*front)))


def kept_of(body: bytes) -> Kept:
    return _decode(body)


def change_of(offset: int, key: bytes | None, value: bytes | None, headers: Headers = ()) -> Change:
    """Decode a record; raises RecordUnreadable."""
    if key is None:
        raise RecordUnreadable("it has no key: the schedule writes no such record")
    try:
        return _change(offset, key, value, headers)
    except (*FOREIGN, StructError) as problem:
        raise RecordUnreadable(f"schedule record with key {key[:64].hex()} can't be read: {problem}") from None


def _key(kind: int, target: PartitionKey) -> bytes:
    return _KEY.pack(kind, target.topic_id.bytes, target.number)


def _change(offset: int, key: bytes, value: bytes | None, headers: Headers) -> Change:
    kind, topic_id, number = _KEY.unpack_from(key)
    target = PartitionKey(TopicId(UUID(bytes=topic_id)), number)
    if kind == FRONT:
        return Move(target, None if value is None else _front(value))
    if kind != MESSAGE:
        raise ValueError(f"there is no kind {kind}")
    id = str(key[_KEY.size :], "utf-8")
    if value is None:
        return Drop(target, id, _cancelled_ms(headers))
    return Put(target, id, _number(_decode(value).due_ms), offset, value)


def _cancelled_ms(headers: Headers) -> int | None:
    for name, time in headers:
        if name == CANCELLED and time is not None:
            return int(_TIME.unpack(time)[0])
    return None


def _front(value: bytes) -> Front:
    kept = _decode_front(value)
    return Front(_number(kept.upto_ms), _number(kept.floor))


def _number(value: int) -> int:
    """Return a number, if the index can hold it."""
    if not -I64_END <= value < I64_END:
        raise ValueError(f"{value} does not fit into 64 bits")
    return value
