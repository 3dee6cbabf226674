"""Numbers and settings come as texts: functions that read one. Those of settings raise ValueError."""

from collections.abc import Callable
from typing import Final

INT32_MAX: Final = 2**31 - 1  # what Kafka numbers partitions with
INT64_MAX: Final = 2**63 - 1  # and offsets
DIGITS_MAX: Final = 19  # of those: more are not even read, and Python refuses to read thousands


def digits(text: str, high: int = INT64_MAX) -> int | None:
    """A whole number in plain digits, 0 to `high`; None if the text is none."""
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX):
        return None
    number = int(text)
    return number if number <= high else None


def whole(low: int, high: int) -> Callable[[str], int]:
    """A whole number within bounds."""

    def parse(text: str) -> int:
        number = int(text.strip())
        if not low <= number <= high:
            raise ValueError(text)
        return number

    return parse


def number(low: float, high: float) -> Callable[[str], float]:
    """A number within bounds."""

    def parse(text: str) -> float:
        value = float(text)
        if not low <= value <= high:
            raise ValueError(text)
        return value

    return parse


def truth(text: str) -> bool:
    """true or false, in any case."""
    if text.strip().lower() not in ("true", "false"):
        raise ValueError(text)
    return text.strip().lower() == "true"


def one_of(*values: str) -> Callable[[str], str]:
    """One of some words."""

    def parse(text: str) -> str:
        if text not in values:
            raise ValueError(text)
        return text

    return parse
