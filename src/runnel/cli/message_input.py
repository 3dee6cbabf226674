"""Messages as lines of JSON, as `runnel consume --json` prints them.

Rule 1: no typing error is taken for nothing: a field that no command prints is refused.
Rule 2: a message without a value is a tombstone, which deletes: so that is said, with `"value": null`.
Rule 3: what only tells where a message was, and what became of it there, is passed over: it goes elsewhere now.
"""

import json
from base64 import b64decode
from collections.abc import Set
from difflib import get_close_matches
from typing import Any, NamedTuple

import click

CONTENT = frozenset(
    ["value", "value_base64", "key", "key_base64", "headers", "partition", "timestamp_ms"]
)  # fmt: skip
HEADER = frozenset(["key", "value", "value_base64"])
TOLD = frozenset(
    [
        "topic", "offset", "timestamp",  # consume
        "attempt", "receipt", "leased_until_ms",  # queue receive
        "attempts", "state",  # queue peek
        "reason", "died", "died_ms", "origin",  # dlq ls
        "id", "due", "due_ms",  # schedule ls
    ]
)  # fmt: skip


class Read(NamedTuple):
    """The fields of a message that a line has."""

    value: bytes | None
    key: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    partition: int | None
    timestamp_ms: int | None


def read_json(line: bytes) -> Read:
    try:
        row = json.loads(line)
        if not isinstance(row, dict):
            raise TypeError("it is no object")
        _check(row, CONTENT, TOLD)
        listed = row.get("headers")
        if not isinstance(listed, list | None):
            raise TypeError("headers must be a list")
        return Read(
            _bytes(row, "value"), _bytes(row, "key"), tuple(map(_header, listed or ())), _number(row, "partition"),
            _number(row, "timestamp_ms"),
        )  # fmt: skip
    except (ValueError, TypeError) as problem:
        start = line[:60].decode(errors="replace")
        raise click.ClickException(
            f"the line {start!r} is not a message in JSON ({problem}): use the fields of 'runnel consume --json'"
        ) from None


def _check(row: dict[str, Any], read: Set[str], passed_over: Set[str] = frozenset()) -> None:
    """Rules 1 and 2."""
    for name in row.keys() - read - passed_over:
        close = get_close_matches(name, read, n=1)
        raise ValueError(f"there is no field {name!r}" + (f", did you mean {close[0]!r}?" if close else ""))
    if "value" not in row and "value_base64" not in row:
        raise ValueError('it has no value: say "value": null if it is to have none')


def _header(row: Any) -> tuple[str, bytes | None]:
    if not isinstance(row, dict) or not isinstance(row.get("key"), str):
        raise TypeError("a header is an object with a key and a value")
    _check(row, HEADER)
    return row["key"], _bytes(row, "value")


def _bytes(row: dict[str, Any], name: str) -> bytes | None:
    """A text, or the bytes behind NAME_base64."""
    value, coded = row.get(name), row.get(f"{name}_base64")
    for each in (value, coded):
        if not isinstance(each, str | None):
            raise TypeError(f"{name} must be a string or null")
    if value is not None and coded is not None:
        raise ValueError(f"it has {name} and {name}_base64: choose one")
    if coded is not None:
        return b64decode(coded, validate=True)
    return None if value is None else value.encode()


def _number(row: dict[str, Any], name: str) -> int | None:
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int | None):
        raise TypeError(f"{name} must be a whole number or null")
    return value
