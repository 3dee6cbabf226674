"""When a message is due, by its headers.

Rule 1: `runnel-deliver-at` says it as milliseconds since 1970 UTC or in ISO 8601 with an offset, `runnel-delay-ms` as
        milliseconds from now; the first one counts if there are both, and the last header of a name.
Rule 2: a time that can't be read is an error of the producer's: it is never taken for "at once".
Rule 3: a message that waited carries the time itself, not the delay: whoever sends it on does not delay it again.
"""

from datetime import datetime
from typing import Final

from runnel.model.errors import InvalidRecord
from runnel.model.headers import DELAY_MS, DELIVER_AT
from runnel.model.numbers import whole_number
from runnel.model.schedule import DUE_MS_MAX
from runnel.record.records import Headers

NEEDLES: Final = (DELIVER_AT.encode(), DELAY_MS.encode())


def due_of(headers: Headers, now_ms: int) -> int | None:
    """When a message with these headers is due; None if that is now, or was before."""
    at, delay = _last(headers, DELIVER_AT), _last(headers, DELAY_MS)
    if at is None and delay is None:
        return None
    due_ms = _time(at) if at is not None else now_ms + _number(DELAY_MS, delay or b"")
    if due_ms > DUE_MS_MAX:
        raise InvalidRecord(f"a message can't wait until {due_ms}: the last time is the end of the year 9999")
    return due_ms if due_ms > now_ms else None


def waiting_headers(headers: Headers, due_ms: int) -> Headers:
    """The headers of a message that waits until then."""
    kept = tuple((name, value) for name, value in headers if name not in (DELAY_MS, DELIVER_AT))
    return (*kept, (DELIVER_AT, str(due_ms).encode()))


def _last(headers: Headers, wanted: str) -> bytes | None:
    return next((value for name, value in reversed(headers) if name == wanted), None)


def _number(name: str, text: bytes) -> int:
    number = whole_number(text.strip())
    if number is None or number < 0:
        raise InvalidRecord(f"the header {name} is {_shown(text)}: give a whole number of milliseconds")
    return number


def _time(text: bytes) -> int:
    if text.strip().isdigit():
        return _number(DELIVER_AT, text)
    try:
        moment = datetime.fromisoformat(text.decode("ascii"))
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise InvalidRecord(
            f"the header {DELIVER_AT} is {_shown(text)}: give milliseconds since 1970, or ISO 8601 with an offset,"
            " as 2030-01-31T12:00:00Z"
        )
    return int(moment.timestamp() * 1000)


def _shown(text: bytes) -> str:
    return repr(text[:60].decode("utf-8", "replace"))
