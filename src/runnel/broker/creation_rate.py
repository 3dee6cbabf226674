"""How many topics may be created automatically: a bucket that fills with time.

Rule 1: a client that asks for more gets some of them, and the others when it asks again: clients do.
"""

from typing import Final

BURST_S: Final = 10  # as many as in so many seconds may come at once: a program that starts has its topics together


class CreationRate:
    def __init__(self, per_second: int) -> None:
        self._per_second = per_second
        self._room = float(per_second * BURST_S)
        self._looked_s: float | None = None

    def take(self, wanted: int, now_s: float) -> int:
        """How many of so many may be created now."""
        passed_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        self._room = min(self._per_second * BURST_S, self._room + passed_s * self._per_second)
        taken = min(wanted, int(self._room))
        self._room -= taken
        return taken
