"""Values that others wrote, as JSON.

Rule 1: a value is JSON if all of it is UTF-8 and well-formed (RFC 8259), and no text in it has half of a surrogate
        pair. That does not depend on who reads it, nor on which part of it is wanted.
Rule 2: numbers of any size are JSON. One that no float holds is infinite, as for Python's own json.
"""

import json
import math
from typing import Any, Final

from msgspec import Raw, ValidationError
from msgspec.json import Decoder

DIGITS_MAX: Final = 400  # no float has more before its point
_anything = Decoder[Any]()
_well_formed = Decoder(Raw)


def must_be_utf8(value: bytes) -> None:
    """Raise UnicodeDecodeError for what is not: decoders do not look at what they skip, or keep as it came."""
    if not value.isascii():
        value.decode()


def parse(value: bytes) -> Any:
    """Parse a JSON value; raises UNREADABLE (model/unreadable.py) if it is none."""
    must_be_utf8(value)
    try:
        return _anything.decode(value)
    except ValidationError:
        _well_formed.decode(value)  # the same, with a number that is too large; all else is refused here
        return json.loads(value, parse_int=_whole, parse_float=float)


def _whole(digits: str) -> int | float:
    """A whole number, which may have more digits than Python reads."""
    if len(digits) <= DIGITS_MAX:
        return int(digits)
    return -math.inf if digits.startswith("-") else math.inf
