"""Stop delivering when most deliveries fail: what they need is down, and the dead letters are for what is wrong itself.

Rule 1: closed: everything passes. It opens when at least `SAMPLE` deliveries of the window ended, and the share of them
        that failed is `breaker.percent` or more.
Rule 2: open: nothing passes for `breaker.pause.ms`.
Rule 3: half-open: `PROBES` deliveries pass. When all of them ended, the same share decides: closed, or open again.
Rule 4: it is not kept: a new leader begins with a closed one, and finds out for itself.
"""

from collections import deque
from enum import Enum
from typing import Final

from runnel.model.queue_config import QueueConfig

SAMPLE: Final = 20  # fewer say nothing of a share
PROBES: Final = 5
SLICES: Final = 10  # the window moves on by a tenth of it
UNLIMITED: Final = 1 << 62


class State(Enum):
    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class Breaker:
    """Counts how deliveries end, and says how many may begin."""

    def __init__(self) -> None:
        self.state = State.CLOSED
        self.until = 0  # open until then
        self._slices: deque[list[int]] = deque()  # when it began, how many ended, how many of those failed
        self._begun = 0  # probes that were delivered

    def allowed(self, config: QueueConfig, now: int) -> int:
        """How many deliveries may begin now."""
        if not config.breaker_percent:
            return UNLIMITED
        if self.state is State.OPEN and now >= self.until:
            self.state = State.HALF_OPEN
            self._begun = 0
            self._slices.clear()
        if self.state is State.OPEN:
            return 0
        return UNLIMITED if self.state is State.CLOSED else max(0, PROBES - self._begun)

    def began(self, count: int) -> None:
        if self.state is State.HALF_OPEN:
            self._begun += count

    def forgotten(self, count: int) -> None:
        """So many deliveries ended without a verdict: with their connection."""
        if self.state is State.HALF_OPEN:
            self._begun = max(0, self._begun - count)

    def ended(self, config: QueueConfig, count: int, failed: bool, now: int) -> None:
        """So many deliveries ended."""
        if not config.breaker_percent or self.state is State.OPEN:
            return
        width = max(1, config.breaker_window_ms // SLICES)
        if not self._slices or now >= self._slices[-1][0] + width:
            self._slices.append([now - now % width, 0, 0])
        while self.state is State.CLOSED and self._slices[0][0] + config.breaker_window_ms <= now:
            self._slices.popleft()
        self._slices[-1][1] += count
        self._slices[-1][2] += count if failed else 0
        self._judge(config, now)

    def _judge(self, config: QueueConfig, now: int) -> None:
        ended = sum(one[1] for one in self._slices)
        failed = sum(one[2] for one in self._slices)
        if ended < (SAMPLE if self.state is State.CLOSED else PROBES):
            return
        if 100 * failed >= config.breaker_percent * ended:
            self.state = State.OPEN
            self.until = now + config.breaker_pause_ms
            self._slices.clear()
        elif self.state is State.HALF_OPEN:
            self.state = State.CLOSED
            self._slices.clear()
