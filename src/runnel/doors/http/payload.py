"""Messages as JSON.

Rule 1: what was sent comes back as it was sent. A value is JSON (`value`), text (`text`) or bytes (`base64`): who sends
        names one of the three; who reads gets the first that fits, or the one that was asked for.
Rule 2: `"value": null` is a message without a value: the tombstone of a compacted topic.
Rule 3: a header is text, bytes as {"base64": ...}, null, or a list of these if its name is there more than once.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from runnel.doors.http.operation import Struct, View
from runnel.doors.http.problems import InvalidInput
from runnel.model.calls import Header, Outgoing
from runnel.model.headers import TTL_MS
from runnel.model.numbers import INT64_MAX, whole_number
from runnel.model.seams import Clock
from runnel.model.unreadable import UNREADABLE

Form: TypeAlias = Literal["auto", "json", "text", "base64"]
DUE_MS_MAX = 253_402_300_800_000  # the year 10000
PARTITION_MAX = 2**31 - 1  # Kafka numbers them with 32 bits


class Bytes(Struct):
    """Bytes that may be anything."""

    base64: str


HeaderPart: TypeAlias = str | Bytes | None
HeaderValue: TypeAlias = str | Bytes | list[HeaderPart] | None

Instant: TypeAlias = Annotated[int | str, Meta(description="milliseconds since 1970 UTC, or ISO 8601 with a time zone")]
Whole: TypeAlias = Annotated[int, Meta(ge=0, le=INT64_MAX)]
Name: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
Partition: TypeAlias = Annotated[int, Meta(ge=0, le=PARTITION_MAX)]


class NewMessage(Struct):
    """A message to be sent."""

    value: Annotated[Raw | UnsetType, Meta(description="any JSON; kept as JSON text; null: no value")] = UNSET
    text: Annotated[str | UnsetType, Meta(description="instead of value: text, kept as it is")] = UNSET
    base64: Annotated[str | UnsetType, Meta(description="instead of value: bytes")] = UNSET
    key: Annotated[str | None, Meta(description="messages of one key keep their order")] = None
    key_base64: Annotated[str | None, Meta(description="instead of key: bytes")] = None
    headers: Annotated[dict[str, HeaderValue], Meta(description="name to text")] = msgspec.field(default_factory=dict)
    partition: Annotated[Partition | None, Meta(description="by the key, or by lot, if it is left out")] = None
    priority: Annotated[int | None, Meta(description="the lane of a queue; higher first")] = None
    timestamp_ms: Annotated[int | None, Meta(description="now, if it is left out")] = None
    delay_ms: Annotated[Whole | None, Meta(description="deliver it so much later")] = None
    deliver_at: Annotated[Instant | None, Meta(description="deliver it then")] = None
    ttl_ms: Annotated[Whole | None, Meta(description="queues do not deliver it later than this after it is there")] = (
        None
    )
    message_id: Annotated[Name | None, Meta(description="a second message of this name is not kept")] = None

    def outgoing(self, clock: Clock) -> Outgoing:
        headers = list(_headers(self.headers))
        if self.ttl_ms is not None:
            headers.append((TTL_MS, b"%d" % self.ttl_ms))
        return Outgoing(
            self._value(), self._key(), headers, self.partition, self.priority,
            self.timestamp_ms, due_ms(clock, self.delay_ms, self.deliver_at), self.message_id,
        )  # fmt: skip

    def _value(self) -> bytes | None:
        given = [each for each in (self.value, self.text, self.base64) if each is not UNSET]
        if len(given) != 1:
            raise InvalidInput('a message has either value, text or base64; "value": null means none')
        [one] = given
        if isinstance(one, Raw):
            return None if bytes(one) == b"null" else bytes(one)
        return one.encode() if one is self.text else _unbase64(str(one))

    def _key(self) -> bytes | None:
        if self.key is not None and self.key_base64 is not None:
            raise InvalidInput("a message has either key or key_base64")
        if self.key_base64 is not None:
            return _unbase64(self.key_base64)
        return None if self.key is None else self.key.encode()


def due_ms(clock: Clock, delay_ms: int | None, deliver_at: Instant | None) -> int | None:
    """When a message is due; None: at once."""
    if delay_ms is not None and deliver_at is not None:
        raise InvalidInput("a message has either delay_ms or deliver_at")
    if delay_ms is not None:
        return min(clock.wall_ms() + delay_ms, DUE_MS_MAX)
    return None if deliver_at is None else time_ms(deliver_at)


class MessageView(View, kw_only=True):
    """A message that was read."""

    topic: str | UnsetType = UNSET
    partition: int
    offset: int
    timestamp_ms: int
    key: str | UnsetType = UNSET
    key_base64: str | UnsetType = UNSET
    value: Raw | UnsetType = UNSET
    text: str | UnsetType = UNSET
    base64: str | UnsetType = UNSET
    left_out_bytes: int | UnsetType = UNSET  # of a value that is larger than bytes_max
    headers: dict[str, HeaderValue] = msgspec.field(default_factory=dict)


NULL = Raw(b"null")


def body_of(key: bytes | None, value: bytes | None, headers: Sequence[Header], form: Form) -> dict[str, Any]:
    """The fields of a view that say what a message says."""
    fields: dict[str, Any] = {}
    if key is not None:
        text = _text(key)
        fields["key_base64" if text is None else "key"] = b64encode(key).decode() if text is None else text
    name, shown = _shown(value, form)
    fields[name] = shown
    if headers:
        fields["headers"] = _header_views(headers)
    return fields


def _shown(value: bytes | None, form: Form) -> tuple[str, Any]:
    if value is None:
        return "value", NULL
    if form == "base64":
        return "base64", b64encode(value).decode()
    text = _text(value)
    if text is None:
        return "base64", b64encode(value).decode()
    if form != "text" and (form == "json" or _may_be_json(value)):
        try:
            return "value", Raw(msgspec.json.decode(value, type=Raw))
        except UNREADABLE:
            return "text", text
    return "text", text


def _may_be_json(value: bytes) -> bool:
    """Whether it is worth a look: most text is not JSON by its first letter."""
    return value[:1] in b'{["-0123456789tfn \t\r\n' and value != b""


def _text(value: bytes) -> str | None:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _unbase64(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise InvalidInput(f"{text[:40]!r} is not base64") from None


def _headers(headers: dict[str, HeaderValue]) -> Iterable[Header]:
    for name, value in headers.items():
        for part in value if isinstance(value, list) else (value,):
            if part is None:
                yield name, None
            else:
                yield name, _unbase64(part.base64) if isinstance(part, Bytes) else part.encode()


def _header_views(headers: Sequence[Header]) -> dict[str, HeaderValue]:
    views: dict[str, list[HeaderPart]] = {}
    for name, value in headers:
        views.setdefault(name, []).append(None if value is None else _part(value))
    return {name: parts if len(parts) > 1 else parts[0] for name, parts in views.items()}


def _part(value: bytes) -> HeaderPart:
    text = _text(value)
    return Bytes(base64=b64encode(value).decode()) if text is None else text


def offset_of(text: str, high: int = INT64_MAX) -> int | None:
    """An offset, or a number of a partition, in an address; None if the text is none."""
    number = whole_number(text)
    return number if number is not None and 0 <= number <= high else None


def time_ms(instant: int | str) -> int:
    """Milliseconds since 1970 UTC."""
    if isinstance(instant, str):
        number = whole_number(instant)
        instant = _iso_ms(instant) if number is None else number
    if not 0 <= instant <= DUE_MS_MAX:
        raise InvalidInput(f"{instant} is not a time between 1970 and 9999 in milliseconds")
    return instant


def _iso_ms(text: str) -> int:
    try:
        when = datetime.fromisoformat(text)
    except ValueError:
        when = None
    if when is None or when.tzinfo is None:
        raise InvalidInput(f"{text[:40]!r} is not a time: use milliseconds, or ISO 8601 as 2030-01-31T12:00:00Z")
    return int(when.timestamp() * 1000)
