"""Receipts: what a consumer shows to settle a message. Opaque to it; a name of one delivery, and no secret.

version u8 | topic id 16 bytes | partition u32 || offset i64 | attempt u32 | generation u32, as base64 for addresses

The first part is the same for all messages of a partition, and 28 characters by itself: it is made and read once.
"""

from binascii import a2b_base64, b2a_base64
from functools import lru_cache
from struct import Struct, error
from typing import Final, NamedTuple
from uuid import UUID

from runnel.model.errors import InvalidRequest
from runnel.model.ids import PartitionKey, TopicId

VERSION: Final = 1
PLACES_MAX: Final = 4_096  # remembered
_PLACE: Final = Struct(">B16sI")
_DELIVERY: Final = Struct(">qII")
_PLACE_CHARS: Final = 28  # of 21 bytes
_CHARS: Final = 52  # of 37 bytes
_FOR_ADDRESSES: Final = bytes.maketrans(b"+/", b"-_")


class Receipt(NamedTuple):
    """One delivery of one message."""

    key: PartitionKey
    offset: int
    attempt: int
    generation: int


def written(key: PartitionKey, offset: int, attempt: int, generation: int) -> str:
    """The receipt as text."""
    return _place(key) + _text(_DELIVERY.pack(offset, attempt, generation))


def read(text: str) -> Receipt:
    """What a receipt says; InvalidRequest if it is none of ours."""
    try:
        if len(text) != _CHARS:
            raise ValueError(text)
        key = _key(text[:_PLACE_CHARS])
        offset, attempt, generation = _DELIVERY.unpack(_bytes(text[_PLACE_CHARS:]))
    except (ValueError, error):
        shown = text if len(text) <= _CHARS else text[:_CHARS] + "..."
        raise InvalidRequest(f"{shown!r} is no receipt: give back what came with the message, as it was") from None
    return Receipt(key, offset, attempt, generation)


@lru_cache(maxsize=PLACES_MAX)
def _place(key: PartitionKey) -> str:
    return _text(_PLACE.pack(VERSION, key.topic_id.bytes, key.number))


@lru_cache(maxsize=PLACES_MAX)
def _key(place: str) -> PartitionKey:
    version, topic_id, number = _PLACE.unpack(_bytes(place))
    if version != VERSION:
        raise InvalidRequest(f"a receipt of version {version} is not known here: use a newer broker")
    return PartitionKey(TopicId(UUID(bytes=topic_id)), number)


def _text(packed: bytes) -> str:
    return b2a_base64(packed, newline=False).translate(_FOR_ADDRESSES).decode()


def _bytes(text: str) -> bytes:
    return a2b_base64(text.replace("-", "+").replace("_", "/"))
