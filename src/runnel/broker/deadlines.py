"""When waits end by themselves: one timer of the loop for all of them.

Rule 1: nobody is ended before its time, and no later than a tick behind it.
Rule 2: beginning and leaving cost the same however many wait: a timer of the loop for each costs as much as all else
        that a wait needs.
"""

import asyncio
from heapq import heappop, heappush
from math import ceil
from typing import Final

from runnel.broker.fetch import Waiter

TICKS_PER_S: Final = 50


class Deadlines:
    """Who waits, by the tick in which it is ended."""

    __slots__ = ("_at", "_ticks", "_timer")

    def __init__(self) -> None:
        self._at: dict[int, dict[Waiter, None]] = {}
        self._ticks: list[int] = []  # a heap of those in `_at`
        self._timer: asyncio.TimerHandle | None = None  # for the first of them

    def begin(self, waiter: Waiter, deadline: float) -> int:
        """End it then, by the loop's clock; returns the tick, to leave with."""
        tick = ceil(deadline * TICKS_PER_S)
        those = self._at.get(tick)
        if those is None:
            self._at[tick] = those = {}
            heappush(self._ticks, tick)
            if self._ticks[0] == tick:
                self._set_timer()
        those[waiter] = None
        return tick

    def done(self, waiter: Waiter, tick: int) -> None:
        """It waits no longer."""
        those = self._at.get(tick)
        if those is not None:
            those.pop(waiter, None)

    def end_all(self) -> None:
        for those in list(self._at.values()):
            for waiter in list(those):
                waiter.end()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(self._ticks[0] / TICKS_PER_S, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        over: list[Waiter] = []
        while self._ticks and self._ticks[0] <= now * TICKS_PER_S:
            over += self._at.pop(heappop(self._ticks))
        if self._ticks:
            self._set_timer()
        for waiter in over:
            waiter.end()
