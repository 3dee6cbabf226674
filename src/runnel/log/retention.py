"""The segments that retention does not keep, and why, in words that need no look at the settings.

Rule 1: segments go as a whole, the oldest first: those that are too much for retention.bytes, and those whose newest
        message, by its timestamp, is older than retention.ms.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final, NamedTuple

from runnel.log.index import NO_TIMESTAMP
from runnel.model.limits import GIB, KIB, MIB
from runnel.model.topic_config import TopicConfig

TIMES: Final = {"d": 86_400_000, "h": 3_600_000, "min": 60_000, "s": 1_000}
SIZES: Final = {"GiB": GIB, "MiB": MIB, "KiB": KIB}


class Expired(NamedTuple):
    """How many of the oldest segments retention does not keep."""

    too_much: int = 0
    too_old: int = 0
    newest_ms: int = NO_TIMESTAMP  # the timestamp of the newest message in those that are too old

    @property
    def segments(self) -> int:
        return self.too_much + self.too_old

    def reasons(self, name: str, config: TopicConfig) -> Iterator[str]:
        """Tell what was removed of the partition of this name."""
        if self.too_old:
            newest = datetime.fromtimestamp(self.newest_ms / 1000, UTC)
            yield (
                f"removed {_segments(self.too_old)} of {name}: newest message is of {newest:%Y-%m-%d %H:%M} UTC,"
                f" retention.ms is {_in_units(config.retention_ms, TIMES, 'ms')}"
            )
        if self.too_much:
            yield (
                f"removed {_segments(self.too_much)} of {name}: there was more than retention.bytes,"
                f" {_in_units(config.retention_bytes, SIZES, 'bytes')}"
            )


def _segments(count: int) -> str:
    return "1 segment" if count == 1 else f"{count} segments"


def _in_units(amount: int, units: dict[str, int], smallest: str) -> str:
    """In the largest unit of which it is a whole number."""
    unit = next((unit for unit, size in units.items() if amount and amount % size == 0), smallest)
    return f"{amount // units.get(unit, 1)} {unit}"
