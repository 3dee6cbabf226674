"""Bytes that requests may take over all connections, bounded.

Small requests pay when they start, large ones for their buffer while they still arrive. Large ones can't take the last
quarter: so whoever merely promises much never keeps the small requests of others waiting. Where nothing is left,
connections wait in line and stop reading: a flood costs time, never memory.

Large requests that have arrived in part could all wait for each other. So one of them at a time, the first in line, may
overdraw: the bound is the limit and one request.
"""

from collections import deque
from collections.abc import Callable
from typing import TypeAlias

Granted: TypeAlias = Callable[[], None]


class ByteBudget:
    """A pool of bytes, with a line of small askers and a line of large ones."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.large_limit = limit - limit // 4
        self.used = 0
        self._small: deque[tuple[int, Granted]] = deque()
        self._large: deque[tuple[int, Granted]] = deque()
        self._overdrawing: Granted | None = None

    def reserve(self, size: int, granted: Granted) -> bool:
        """Take bytes of a small request and return True, or return False and call `granted` once they are taken."""
        if not self._small and self._fits(size, self.limit):
            self.used += size
            return True
        self._small.append((size, granted))
        return False

    def reserve_large(self, size: int, granted: Granted) -> bool:
        """The same for a large one; it says `arrived` when it needs no more."""
        # Who overdraws does not stand in line: those in it may be waiting for its end.
        if self._overdrawing == granted or (not self._large and self._may_grow(size, granted)):
            self.used += size
            return True
        self._large.append((size, granted))
        return False

    def take_large(self, size: int) -> bool:
        """Take bytes for a large one if they are there at once."""
        if self._large or not self._fits(size, self.large_limit):
            return False
        self.used += size
        return True

    def try_take(self, size: int) -> bool:
        """Take bytes if they are there at once, and nobody waits for some."""
        if self._small or not self._fits(size, self.limit):
            return False
        self.used += size
        return True

    def charge(self, size: int) -> None:
        """Take bytes that are there already, whatever is left."""
        self.used += size

    @property
    def left(self) -> int:
        return max(0, self.limit - self.used)

    def arrived(self, granted: Granted) -> None:
        """This asker's request has arrived, or will not: the next may overdraw."""
        if self._overdrawing == granted:
            self._overdrawing = None
            self._serve()

    def withdraw(self, granted: Granted) -> None:
        """Leave the line."""
        for line in (self._small, self._large):
            for entry in line:
                if entry[1] == granted:
                    line.remove(entry)
                    self._serve()
                    return

    def release(self, size: int) -> None:
        self.used -= size
        self._serve()

    def _fits(self, size: int, limit: int) -> bool:
        # What is above the whole limit still passes alone, or it would wait for ever.
        return self.used + size <= limit or self.used == 0

    def _may_grow(self, size: int, granted: Granted) -> bool:
        if self._fits(size, self.large_limit):
            return True
        if self._overdrawing is None:
            self._overdrawing = granted
        return self._overdrawing == granted

    def _serve(self) -> None:
        while self._small and self._fits(self._small[0][0], self.limit):
            self._grant(self._small)
        while self._large and self._may_grow(*self._large[0]):
            self._grant(self._large)

    def _grant(self, line: deque[tuple[int, Granted]]) -> None:
        size, granted = line.popleft()
        self.used += size
        granted()
