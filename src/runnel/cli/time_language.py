"""The words for spans and moments, the same in every command.

250ms  30s  5m  2h  7d  1h30m      a span
2026-11-20T09:00:00Z  1763629200000   a moment: ISO 8601 (local if it names no zone), or ms since 1970
"""

import re

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)")


def parse_span_ms(text: str) -> int:
    """Milliseconds of a span; ValueError says what is allowed."""
    word = text.strip().lower()
    parts = _PART.findall(word)
    if not parts or "".join(number + unit for number, unit in parts) != word:
        raise ValueError(f"{text!r} is no span of time: use e.g. 250ms, 30s, 5m, 2h, 7d or 1h30m")
    return round(sum(float(number) * UNITS_MS[unit] for number, unit in parts))


def span_text(span_ms: int) -> str:
    """A span as it is written, in the units that people use for it."""
    if span_ms <= 0:
        return "0s"
    if span_ms < 1_000:
        return f"{span_ms}ms"
    left_s, words = span_ms // 1_000, []
    for unit, size_s in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left_s = divmod(left_s, size_s)
        if count:
            words.append(f"{count}{unit}")
    return "".join(words[:2])
