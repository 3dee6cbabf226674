"""How fast replicas that are not in sync may be fetched, where somebody limited it (a reassignment, say).

Rule 1: what is in sync is never held back: acknowledgements wait for it.
Rule 2: a bucket that was overdrawn by one answer is refilled by time alone; until it is, who is throttled is left out.
"""

from collections.abc import Callable
from typing import Final

from runnel.cluster.config_rules import RATE_DEFAULT, copy_rate, is_throttled
from runnel.cluster.image import Image
from runnel.model.ids import BrokerId
from runnel.model.seams import Clock
from runnel.replica.partition import Partition

BURST_MS: Final = 1_000  # what was not used for so long may be used at once


class Throttle:
    """One bucket for all that this broker follows."""

    def __init__(self, me: BrokerId, image: Callable[[], Image], clock: Clock) -> None:
        self._me = me
        self._image = image
        self._clock = clock
        self._left = 0.0  # bytes
        self._filled_ms = clock.monotonic_ms()
        self._known: tuple[object, int] = (None, RATE_DEFAULT)  # the rate, and the settings that say so

    def pause_s(self, partition: Partition) -> float:
        """How long this partition must not be fetched; 0 if it may be now."""
        rate = self._rate()
        if rate == RATE_DEFAULT or not self._limits(partition):
            return 0.0
        self._fill(rate)
        return 0.0 if self._left >= 0 else -self._left / rate

    def took(self, partition: Partition, size_bytes: int) -> None:
        rate = self._rate()
        if rate != RATE_DEFAULT and size_bytes and self._limits(partition):
            self._fill(rate)
            self._left -= size_bytes

    def _fill(self, rate: int) -> None:
        now = self._clock.monotonic_ms()
        self._left = min(self._left + rate * (now - self._filled_ms) / 1000, rate * BURST_MS / 1000)
        self._filled_ms = now

    def _rate(self) -> int:
        """Asked for with every fetch of every partition: worked out when settings have changed."""
        image = self._image()
        if self._known[0] is not image.configs:
            self._known = image.configs, max(1, copy_rate(image, self._me))
        return self._known[1]

    def _limits(self, partition: Partition) -> bool:
        image = partition.image
        if image is None or self._me in image.isr:
            return False
        return is_throttled(partition.config, partition.key.number, self._me)
