"""When a message expires: queues do not deliver it from then on.

Rule 1: `runnel-expires-at` is a moment, `runnel-ttl-ms` a time from the message's own timestamp; the earlier counts.
Rule 2: a copy for a later attempt has a later timestamp, and lives no longer: it says when the message itself expires.
Rule 3: what can't be read says nothing: a message is rather delivered late than lost to a typing error.
"""

from datetime import UTC, datetime

from runnel.model import headers as h
from runnel.queues.letters import header, number
from runnel.record.records import Headers

NEVER = 0


def expires_ms(headers: Headers, timestamp_ms: int) -> int:
    """By the wall clock; NEVER if it does not."""
    moments = (_at(headers), _ttl(headers, timestamp_ms), _of_copy(headers))
    return min((moment for moment in moments if moment is not None), default=NEVER)


def _at(headers: Headers) -> int | None:
    text = header(headers, h.EXPIRES_AT)
    if text is None:
        return None
    if (moment := number(headers, h.EXPIRES_AT)) is not None:
        return max(moment, 1)
    try:
        read = datetime.fromisoformat(text)
        aware = read if read.tzinfo is not None else read.replace(tzinfo=UTC)
        return max(int(aware.timestamp() * 1000), 1)
    except (ValueError, OverflowError):
        return None


def _ttl(headers: Headers, timestamp_ms: int) -> int | None:
    ttl = number(headers, h.TTL_MS)
    return None if ttl is None or ttl < 0 or timestamp_ms < 0 else timestamp_ms + ttl


def _of_copy(headers: Headers) -> int | None:
    moment = number(headers, h.COPY_EXPIRES_AT)
    return None if moment is None else max(moment, 1)
