"""Bytes of requests in flight over all connections, bounded.

A connection reserves the size of a frame before it reads the frame, and gives it back when the answer is on its way.
When nothing is left, connections stop reading and wait in line: a flood of requests costs time, never memory.
"""

from collections import deque
from collections.abc import Callable


class ByteBudget:
    """A pool of bytes with a queue of those who wait for some."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def reserve(self, size: int, granted: Callable[[], None]) -> bool:
        """Take `size` bytes now and return True, or return False and call `granted` once they have been taken."""
        if not self._waiting and self._fits(size):
            self.used += size
            return True
        self._waiting.append((size, granted))
        return False

    def withdraw(self, granted: Callable[[], None]) -> bool:
        """Leave the line; False if the bytes had been granted already."""
        for entry in self._waiting:
            if entry[1] == granted:
                self._waiting.remove(entry)
                self._serve()
                return True
        return False

    def release(self, size: int) -> None:
        self.used -= size
        self._serve()

    def _fits(self, size: int) -> bool:
        # One frame above the whole limit still passes alone, or it would wait for ever.
        return self.used + size <= self.limit or self.used == 0

    def _serve(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, granted = self._waiting.popleft()
            self.used += size
            granted()
