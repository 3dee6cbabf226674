"""One message as people and programs see it, whatever it was read from."""

import sys
from collections.abc import Sequence
from typing import Any, Protocol

from runnel.cli.output import left, plain, print_table, say

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
    line = plain(text[: PREVIEW_CHARS + 1])
    return line if len(line) <= PREVIEW_CHARS else line[: PREVIEW_CHARS - 1] + "…"


def print_content(key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> None:
    """All of a message: its value as it is for programs, and as text that does nothing to a terminal."""
    rows = [(name, (content or b"").decode(errors="replace")) for name, content in headers]
    print_table(left("HEADER", "VALUE"), rows, none="It has no headers.")
    say("")
    if key is not None:
        say(f"key     {key.decode(errors='replace')}")
    if sys.stdout.isatty():
        for line in (value or b"").decode(errors="replace").split("\n"):
            say(line.expandtabs())
        return
    sys.stdout.flush()
    sys.stdout.buffer.write((value or b"") + b"\n")
