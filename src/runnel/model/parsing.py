"""Settings come as texts: functions that read one, or raise ValueError."""

from collections.abc import Callable


def whole(low: int, high: int) -> Callable[[str], int]:
    """A whole number within bounds."""

    def parse(text: str) -> int:
        number = int(text.strip())
        if not low <= number <= high:
            raise ValueError(text)
        return number

    return parse


def whole_or(special: int, low: int, high: int) -> Callable[[str], int]:
    """A whole number within bounds, or one more that means something else."""

    def parse(text: str) -> int:
        return special if text.strip() == str(special) else whole(low, high)(text)

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
