"""Receipts: what a consumer shows to settle a message. Opaque to it; a name of one delivery, and no secret.

version u8 | topic id 16 bytes | partition u32 | offset i64 | attempt u32 | generation u32, as base64 for addresses
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import lru_cache
from struct import Struct, error
from typing import NamedTuple
from uuid import UUID

from runnel.model.errors import InvalidRequest
from runnel.model.ids import PartitionKey, TopicId

VERSION = 1
READ_MAX = 4_096  # remembered
_LAYOUT = Struct(">B16sIqII")
_CHARS = 52  # of 37 bytes


class Receipt(NamedTuple):
    """One delivery of one message."""

    key: PartitionKey
    offset: int
    attempt: int
    generation: int


def written(key: PartitionKey, offset: int, attempt: int, generation: int) -> str:
    """The receipt as text."""
    packed = _LAYOUT.pack(VERSION, key.topic_id.bytes, key.number, offset, attempt, generation)
    return urlsafe_b64encode(packed).decode()


@lru_cache(maxsize=READ_MAX)  # each is read by the broker that was asked, and by the leader: mostly they are one
def read(text: str) -> Receipt:
    """What a receipt says; InvalidRequest if it is none of ours."""
    try:
        if len(text) != _CHARS:
            raise ValueError(text)
        version, topic_id, number, offset, attempt, generation = _LAYOUT.unpack(urlsafe_b64decode(text))
    except (ValueError, error):
        shown = text if len(text) <= _CHARS else text[:_CHARS] + "..."
        raise InvalidRequest(f"{shown!r} is no receipt: give back what came with the message, as it was") from None
    if version != VERSION:
        raise InvalidRequest(f"a receipt of version {version} is not known here: use a newer broker")
    return Receipt(PartitionKey(TopicId(UUID(bytes=topic_id)), number), offset, attempt, generation)
