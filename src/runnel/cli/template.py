"""The format language of `consume -f`, as kcat's.

%t topic   %p partition   %o offset   %T timestamp in ms   %I timestamp in ISO 8601
%k key     %K bytes of the key (-1: none)   %s value   %S bytes of the value (-1: null)
%h headers (name=value, with commas)        %% a per cent sign
\\n \\t \\r \\0 \\\\ \\xHH   characters
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime

from runnel.client.consumer import Message

Write = Callable[[Message], bytes]

_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_TOKEN = re.compile(r"%(?P<field>.)|\\x(?P<hex>[0-9a-fA-F]{2})|\\(?P<escape>.)|(?P<text>[^%\\]+)|(?P<bad>.)", re.S)


def iso_of(timestamp_ms: int) -> str | None:
    """UTC with milliseconds; None if the message has no time, or one that no calendar has."""
    if timestamp_ms < 0:
        return None
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _headers(message: Message) -> bytes:
    return b",".join(
        name.encode() + b"=" + (value if value is not None else b"NULL") for name, value in message.headers
    )


_FIELDS: dict[str, Write] = {
    "t": lambda x: x.topic.encode(),
    "p": lambda x: b"%d" % x.partition,
    "o": lambda x: b"%d" % x.offset,
    "T": lambda x: b"%d" % x.timestamp_ms,
    "I": lambda x: (iso_of(x.timestamp_ms) or "").encode(),
    "k": lambda x: x.key or b"",
    "K": lambda x: b"%d" % (-1 if x.key is None else len(x.key)),
    "s": lambda x: x.value or b"",
    "S": lambda x: b"%d" % (-1 if x.value is None else len(x.value)),
    "h": _headers,
}


def compile_template(text: str) -> Write:
    """A function that writes one message; ValueError names what it does not know."""
    parts: list[bytes | Write] = []
    for token in _TOKEN.finditer(text):
        piece = _piece(token)
        if isinstance(piece, bytes) and parts and isinstance(parts[-1], bytes):
            parts[-1] += piece
        else:
            parts.append(piece)
    return _joined(parts)


def _piece(token: re.Match[str]) -> bytes | Write:
    if (field := token["field"]) is not None:
        if field == "%":
            return b"%"
        if field not in _FIELDS:
            raise ValueError(f"%{field} is not known: use {' '.join('%' + f for f in _FIELDS)} or %%")
        return _FIELDS[field]
    if token["hex"] is not None:
        return bytes.fromhex(token["hex"])
    if (escape := token["escape"]) is not None:
        if escape not in _ESCAPES:
            raise ValueError(f"\\{escape} is not known: use \\n \\t \\r \\0 \\\\ or \\xHH")
        return _ESCAPES[escape]
    if token["bad"] is not None:
        raise ValueError(f"a single {token['bad']} stands at the end: write {token['bad'] * 2}")
    return token["text"].encode()


def _joined(parts: list[bytes | Write]) -> Write:
    if len(parts) == 2 and parts[0] is _FIELDS["s"] and isinstance(parts[1], bytes):
        end = parts[1]
        return lambda x: (x.value or b"") + end
    writers: list[Write] = [_constant(p) if isinstance(p, bytes) else p for p in parts]
    return lambda x: b"".join([write(x) for write in writers])


def _constant(text: bytes) -> Write:
    return lambda _: text
