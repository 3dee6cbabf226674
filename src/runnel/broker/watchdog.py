"""Tells when the loop was held: whoever holds it lets all others wait, and a broker that is mute is taken for dead.

Rule 1: a stall is how late a short nap ends. The cause may be work that was done in one go, or a machine that had no
        time for this process: the log tells, and a profiler names the culprit.
Rule 2: however often the loop is held, there is a line at once, then at most one in `QUIET_MS` for all that came since.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from runnel.broker.standing import stand
from runnel.model.seams import Clock

NAP_MS: Final = 100
STALL_MS: Final = 200  # a third of the shortest session is far more: it is told long before it hurts
QUIET_MS: Final = 10_000
NAPS_KEPT: Final = 600  # a minute's

logger = logging.getLogger("runnel.watchdog")


class Watchdog:
    """Looks whether the loop comes round."""

    def __init__(self, clock: Clock, on_fatal: Callable[[BaseException], None]) -> None:
        self._clock = clock
        self._on_fatal = on_fatal
        self._task: asyncio.Task[None] | None = None
        self._untold: list[int] = []
        self._told_ms = clock.monotonic_ms() - QUIET_MS
        self.stalls = 0  # since the start
        self._late: deque[int] = deque(maxlen=NAPS_KEPT)

    def start(self) -> None:
        self._task = stand(self._run(), self._on_fatal)

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        while True:
            due_ms = self._clock.monotonic_ms() + NAP_MS
            await asyncio.sleep(NAP_MS / 1000)
            self._awoke(self._clock.monotonic_ms() - due_ms)

    @property
    def late_ms_max(self) -> int:
        """The longest that the loop was late in the last minute."""
        return max(self._late, default=0)

    def _awoke(self, late_ms: int) -> None:
        self._late.append(late_ms)
        if late_ms > STALL_MS:
            self.stalls += 1
            self._untold.append(late_ms)
        now_ms = self._clock.monotonic_ms()
        if self._untold and now_ms - self._told_ms >= QUIET_MS:
            self._tell()
            self._told_ms = now_ms

    def _tell(self) -> None:
        """Rule 2."""
        held, self._untold = self._untold, []
        how_often = "" if len(held) == 1 else f"{len(held)} times, at the longest "
        logger.warning(
            "the loop was held %sfor %d ms: nobody was served meanwhile; the machine has too little time for this"
            " broker, or something took too long",
            how_often, max(held),
        )  # fmt: skip
