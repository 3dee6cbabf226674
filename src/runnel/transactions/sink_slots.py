"""Numbers that are given out, the lowest first, and come back: the transactional ids of a sink stay few."""

import heapq
from collections.abc import Iterable


class Slots:
    """Those of one sink."""

    def __init__(self) -> None:
        self._free: list[int] = []
        self._next = 0

    def take(self) -> int:
        if self._free:
            return heapq.heappop(self._free)
        self._next += 1
        return self._next - 1

    def give(self, slot: int) -> None:
        heapq.heappush(self._free, slot)

    def load(self, taken: Iterable[int]) -> None:
        used = set(taken)
        self._next = max(used, default=-1) + 1
        self._free = [slot for slot in range(self._next) if slot not in used]
