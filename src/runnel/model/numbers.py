"""Whole numbers that others wrote as text: in headers of messages, in names, in what they ask for.

Rule 1: a number is ASCII digits, with one minus before them or none, that 64 bits hold. Nothing else is: Python's own
        reader takes more than that (`1_000`, digits of other scripts), and raises at more than 4,300 digits.
Rule 2: what is no number is None, and no error: what that means, only the reader of it knows.
"""

import re
from typing import Final

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
_TEXT: Final = re.compile(r"-?[0-9]{1,19}")
_BYTES: Final = re.compile(rb"-?[0-9]{1,19}")


def whole_number(text: str | bytes) -> int | None:
    """The number that a text is; None if it is none."""
    written = _TEXT.fullmatch(text) if isinstance(text, str) else _BYTES.fullmatch(text)
    if written is None:
        return None
    number = int(text)
    return number if INT64_MIN <= number <= INT64_MAX else None
