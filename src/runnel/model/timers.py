"""The deadlines of one state machine.

Most deadlines are sessions, and are moved on long before they are due. So moving one later costs a dictionary write:
its old entry stays in the heap and finds out, when its time comes, that the deadline has moved.
"""

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

from runnel.model.ids import Millis

T = TypeVar("T", bound=Hashable)


class Timers(Generic[T]):
    """Which timer is due next."""

    def __init__(self) -> None:
        self._deadlines: dict[T, Millis] = {}
        self._heap: list[tuple[Millis, T]] = []
        self._earliest: dict[T, Millis] = {}  # the one entry of each timer in the heap that counts

    def set(self, timer: T, deadline_ms: int) -> None:
        deadline = Millis(deadline_ms)
        self._deadlines[timer] = deadline
        queued = self._earliest.get(timer)
        if queued is None or deadline < queued:
            self._push(timer, deadline)

    def cancel(self, timer: T) -> None:
        self._deadlines.pop(timer, None)

    def deadline(self, timer: T) -> Millis | None:
        return self._deadlines.get(timer)

    def next_ms(self) -> Millis | None:
        self._settle()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> T | None:
        """Take out one timer whose time has come; the earliest first."""
        self._settle()
        if not self._heap or self._heap[0][0] > now_ms:
            return None
        timer = self._heap[0][1]
        del self._deadlines[timer]
        self._settle()
        return timer

    def _settle(self) -> None:
        """Bring the heap to a state where its first entry is a true deadline."""
        while self._heap:
            queued, timer = self._heap[0]
            deadline = self._deadlines.get(timer)
            if queued == deadline and self._earliest.get(timer) == queued:
                return
            heapq.heappop(self._heap)
            if self._earliest.get(timer) != queued:
                continue  # an earlier entry took its place
            del self._earliest[timer]
            if deadline is not None:
                self._push(timer, deadline)

    def _push(self, timer: T, deadline: Millis) -> None:
        self._earliest[timer] = deadline
        heapq.heappush(self._heap, (deadline, timer))
