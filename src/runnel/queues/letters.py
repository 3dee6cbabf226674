"""Copies of messages that queues make: dead letters, copies for a later attempt, and dead letters that go back.

Rule 1: a copy has the whole message: key, value, headers. What Runnel tells about it lies in headers beside them.
Rule 2: the origin is where the message was first; a copy of a copy tells the same.
Rule 3: a copy is as old as the copying, so that retention counts from then. The first timestamp is told in a header.
Rule 4: a copy's name (`runnel-message-id`) says of what it is the copy, so that it is made once; the name that the
        message had from its sender is told in another header, and is not given back: who sent it has sent it.
"""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from runnel.model import headers as h
from runnel.model.calls import Header, Outgoing
from runnel.model.errors import InvalidRequest
from runnel.model.ids import PartitionKey
from runnel.model.numbers import whole_number
from runnel.model.unreadable import UNREADABLE
from runnel.record.records import Headers, Record

EXPIRED: Final = "expired"  # the reason of a message that nobody got in time
ORIGIN: Final = (h.ORIGIN_TOPIC, h.ORIGIN_PARTITION, h.ORIGIN_OFFSET, h.ORIGIN_TIMESTAMP)
ABOUT_DEATH: Final = (h.DEAD_QUEUE, h.DEAD_REASON, h.DEAD_AT, h.ATTEMPTS)
EXPIRY: Final = (h.EXPIRES_AT, h.TTL_MS)
DUE: Final = (h.DELIVER_AT, h.DELAY_MS)
ATTEMPTS_MAX: Final = 2**31 - 1  # that a copy is believed: a receipt has 32 bits for the attempts that follow

Json: TypeAlias = Any

# Numbers with a point stay as they were written: no float may hold them.
_decode: Final = msgspec.json.Decoder(Any, float_hook=lambda text: msgspec.Raw(text.encode())).decode


class Origin(NamedTuple):
    """Where a message was first."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int


def header(headers: Headers, name: str) -> str | None:
    """The text of a header; the last one counts, as in Kafka."""
    for key, value in reversed(headers):
        if key == name:
            return None if value is None else str(value, "utf-8", "replace")
    return None


def number(headers: Headers, name: str) -> int | None:
    """The whole number in a header; None if there is none."""
    text = header(headers, name)
    return None if text is None else whole_number(text)


def origin_of(headers: Headers) -> Origin | None:
    """Where a copy comes from, if it tells."""
    topic, partition = header(headers, h.ORIGIN_TOPIC), number(headers, h.ORIGIN_PARTITION)
    offset, timestamp = number(headers, h.ORIGIN_OFFSET), number(headers, h.ORIGIN_TIMESTAMP)
    if topic is None or partition is None or offset is None:
        return None
    return Origin(topic, partition, offset, -1 if timestamp is None else timestamp)


def attempts_of(headers: Headers) -> int:
    """How often the message had been delivered when it was copied."""
    return min(max(number(headers, h.ATTEMPTS) or 0, 0), ATTEMPTS_MAX)


def is_letter_of(queue: str, headers: Headers) -> bool:
    """Whether a dead letter is this queue's: several may have one topic for them. Who does not say, is."""
    return header(headers, h.DEAD_QUEUE) in (None, queue)


def name_of_copy(kind: str, queue: str, key: PartitionKey, offset: int, generation: int) -> str:
    """The name of a copy: a queue makes one of each message, and another one after it was rewound."""
    return f"{kind}:{queue}:{key}:{offset}:{generation}"


def dead_letter(
    record: Record, origin: Origin, name: str, *, queue: str, reason: str, attempts: int, now_ms: int
) -> Outgoing:
    """What is put aside of a message that a queue gives up."""
    told = {h.DEAD_QUEUE: queue, h.DEAD_REASON: reason, h.DEAD_AT: str(now_ms), h.ATTEMPTS: str(attempts)}
    return _copy(record, origin, name, told, without=(h.COPY_EXPIRES_AT,))  # its time to live is that of the message


def retry_copy(
    record: Record, origin: Origin, name: str, *, attempts: int, expires_ms: int = 0, due_ms: int | None = None
) -> Outgoing:
    """What goes to a queue's retry topic instead of waiting in its place; 0: it never expires."""
    told = {h.ATTEMPTS: str(attempts)}
    if expires_ms:
        told[h.COPY_EXPIRES_AT] = str(expires_ms)
    return msgspec.structs.replace(_copy(record, origin, name, told, without=DUE), deliver_at_ms=due_ms)


def _copy(record: Record, origin: Origin, name: str, told: Mapping[str, str], without: Sequence[str] = ()) -> Outgoing:
    first = origin_of(record.headers) or origin
    told = {**dict(zip(ORIGIN, map(str, first), strict=True)), **told}
    dropped = {*told, *without, h.MESSAGE_ID}
    kept: list[Header] = [pair for pair in record.headers if pair[0] not in dropped]
    if (sent_as := header(record.headers, h.MESSAGE_ID)) and header(record.headers, h.ORIGIN_MESSAGE_ID) is None:
        told[h.ORIGIN_MESSAGE_ID] = sent_as
    return Outgoing(record.value, record.key, kept + _texts(told), message_id=name)


def _texts(told: Mapping[str, str]) -> list[Header]:
    return [(name, text.encode()) for name, text in told.items()]


# --- going back


class Edit(NamedTuple):
    """What is changed in dead letters before they go back."""

    set_headers: Mapping[str, str] = {}
    remove_headers: frozenset[str] = frozenset()
    value: bytes | None = None  # instead of the message's own
    merge: Json = None  # into the message's own, which is JSON (RFC 7396)

    def check(self) -> None:
        """Refuse what can't be meant."""
        if any(name.startswith(h.PREFIX) for name in self.set_headers):
            raise InvalidRequest(f"headers that begin with {h.PREFIX!r} are Runnel's own: set others")
        if self.value is not None and self.merge is not None:
            raise InvalidRequest("a value is either replaced or merged into: give one of the two")


def edit_of(
    set_headers: Mapping[str, str], remove_headers: Sequence[str], value: str, merge: str, *, empties: bool = False
) -> Edit:
    """What a request says is to be changed: the value as base64, what is merged as JSON; nothing leaves them."""
    try:
        replaced = b64decode(value, validate=True) if value or empties else None
        merged = _decode(merge) if merge else None
    except Base64Error as error:
        raise InvalidRequest(f"the new value is not base64: {error}") from None
    except UNREADABLE as error:
        raise InvalidRequest(f"what is to be merged is not JSON: {error}") from None
    edit = Edit(set_headers, frozenset(remove_headers), replaced, merged)
    edit.check()
    return edit


def going_back(letter: Record, name: str, edit: Edit) -> Outgoing:
    """What a dead letter becomes again: the message as it was, with what is edited, and its origin told."""
    dropped = {h.MESSAGE_ID, *ABOUT_DEATH, *DUE, *edit.remove_headers, *edit.set_headers}
    if header(letter.headers, h.DEAD_REASON) == EXPIRED:
        dropped.update(EXPIRY)  # it would die again at once
    kept: list[Header] = [pair for pair in letter.headers if pair[0] not in dropped]
    return Outgoing(_value(letter, edit), letter.key, kept + _texts(edit.set_headers), message_id=name)


def _value(letter: Record, edit: Edit) -> bytes | None:
    if edit.value is not None:
        return edit.value
    if edit.merge is None:
        return letter.value
    try:
        return msgspec.json.encode(merged(_decode(letter.value or b"null"), edit.merge))
    except UNREADABLE as error:
        why = f"the dead letter at offset {letter.offset} is not JSON that can be merged into: {error}"
        raise InvalidRequest(why) from None


def merged(before: Json, patch: Json) -> Json:
    """A JSON value after a merge patch (RFC 7396): null takes a field out."""
    if not isinstance(patch, dict):
        return patch
    after = dict(before) if isinstance(before, dict) else {}
    for name, value in patch.items():
        if value is None:
            after.pop(name, None)
        else:
            after[name] = merged(after.get(name), value)
    return after
