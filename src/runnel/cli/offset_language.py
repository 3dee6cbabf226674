"""The words for places in a partition, the same in every command.

start  end   the first message kept; behind the last
+N  -N       N messages after the start; N before the end
@TIME        the first message at or after a time: ISO 8601 (local if it names no zone), or ms since 1970
N            this offset
stored       what the group committed; stored+N and stored-N move from there
"""

import re
from datetime import datetime

from runnel.client.positions import From, Position

_STORED = re.compile(r"stored(?:([+-])(\d+))?")


def parse(text: str) -> Position:
    """The position a word means; ValueError says what is allowed."""
    word = text.strip()
    if word in ("start", "earliest", "beginning"):
        return Position(From.START)
    if word in ("end", "latest"):
        return Position(From.END)
    if found := _STORED.fullmatch(word):
        number = int(found[2] or 0)
        return Position(From.STORED, -number if found[1] == "-" else number)
    if word.startswith("@"):
        return Position(From.TIME, parse_time_ms(word[1:]))
    if word[:1] in ("+", "-") and word[1:].isdecimal():
        return Position(From.START if word[0] == "+" else From.END, int(word[1:]))
    if word.isdecimal():
        return Position(From.OFFSET, int(word))
    raise ValueError(
        f"{text!r} is no place in a partition: use start, end, +N, -N, @TIME, an offset, stored, stored+N or stored-N"
    )


def parse_time_ms(text: str) -> int:
    """Milliseconds since 1970 of an ISO 8601 time or a number."""
    if text.isdecimal() and len(text) > 8:
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"{text!r} is no time: use ISO 8601, e.g. 2026-11-15T09:30:00Z, or milliseconds since 1970"
        ) from None


def shown(position: Position) -> str:
    """A position as it is written."""
    match position.anchor:
        case From.START:
            return f"+{position.number}" if position.number else "start"
        case From.END:
            return f"-{position.number}" if position.number else "end"
        case From.STORED:
            return f"stored{position.number:+}" if position.number else "stored"
        case From.TIME:
            return f"@{position.number}"
        case From.OFFSET:
            return str(position.number)
