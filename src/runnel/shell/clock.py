"""The machine's clocks."""

import time

from runnel.model.ids import Millis


class SystemClock:
    """Time as the machine has it."""

    def monotonic_ms(self) -> Millis:
        return Millis(time.monotonic_ns() // 1_000_000)

    def wall_ms(self) -> Millis:
        return Millis(time.time_ns() // 1_000_000)
