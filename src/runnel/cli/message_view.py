"""One message as people and programs see it, whatever it was read from."""

from collections.abc import Sequence
from typing import Any, Protocol

PREVIEW_CHARS = 48


class Shown(Protocol):
    """A message of a topic, a queue or a dead letter."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def timestamp_ms(self) -> int: ...
    @property
    def key(self) -> bytes | None: ...
    @property
    def value(self) -> bytes | None: ...
    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...


def message_row(message: Shown) -> dict[str, Any]:
    """A message as JSON; bytes that are no text stand in base64 under another name."""
    from runnel.cli.template import iso_of

    row: dict[str, Any] = {"topic": message.topic, "partition": message.partition, "offset": message.offset}
    row |= {"timestamp": iso_of(message.timestamp_ms), "timestamp_ms": message.timestamp_ms}
    return row | content_row(message.key, message.value, message.headers)


def content_row(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> dict[str, Any]:
    row: dict[str, Any] = _text("key", key) | _text("value", value)
    row["headers"] = [{"key": name} | _text("value", content) for name, content in headers]
    return row


def _text(name: str, content: bytes | None) -> dict[str, str | None]:
    from base64 import b64encode

    try:
        return {name: None if content is None else content.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": b64encode(content or b"").decode()}


def preview(content: bytes | None) -> str | None:
    """The beginning of a key or value, on one line."""
    if content is None:
        return None
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return f"{len(content)} bytes"
    line = "".join(letter if letter.isprintable() else "·" for letter in text[: PREVIEW_CHARS + 1])
    return line if len(line) <= PREVIEW_CHARS else line[: PREVIEW_CHARS - 1] + "…"
