"""Key order: of the messages of one key, only the first that is not done may be leased.

Rule 1: keys are learned in the order of offsets, each once; nothing is leased beyond what is learned. What was kept
        says nothing of keys: who takes over a queue learns those of all messages that are not done.
Rule 2: a message without a key is in nobody's way.
Rule 3: a key is its hash here: two keys that share one share a line, which costs waiting, and never order.
"""

import heapq
from collections import deque

from runnel.queues.status import READY
from runnel.queues.window import Window


class Keys:
    """The lines of messages that wait for each other."""

    def __init__(self, window: Window) -> None:
        self._window = window
        self._lines: dict[int, deque[int]] = {}
        self._key_of: dict[int, int] = {}
        self._free: list[int] = []  # heap: messages that may be had; some may not any more
        self.known_to = window.done  # keys of all messages below are known

    @property
    def blocked(self) -> int:
        return len(self._key_of) - len(self._lines)

    @property
    def next_unknown(self) -> int:
        """The first message that is not done, and whose key is not known; it may be a fresh one."""
        return self._window.open_from(self.known_to) if self.known_to < self._window.next else self.known_to

    def learn(self, first: int, last: int, key: bytes | None) -> bool:
        """Take in the key of messages that were read; False if one before them has to be read first."""
        if last < self.known_to:
            return True
        if first > self.next_unknown:
            return False
        unknown = max(first, self.next_unknown)
        self.known_to = last + 1
        if key is not None:
            self._line_up(range(unknown, last + 1), hash(key))
        self.check(unknown, last)
        return True

    def _line_up(self, offsets: range, key: int) -> None:
        line = self._lines.setdefault(key, deque())
        line.extend(offsets)
        for offset in offsets:
            self._key_of[offset] = key

    def is_first(self, offset: int) -> bool:
        """Whether nobody is before it in its line."""
        key = self._key_of.get(offset)
        return key is None or self._lines[key][0] == offset

    def check(self, first: int, last: int) -> None:
        """These may have become ready: those who are first in their lines may be had."""
        for piece in self._window.pieces(first, min(last, self.known_to - 1)):
            if piece.status.kind == READY:
                for offset in filter(self.is_first, range(piece.first, piece.last + 1)):
                    heapq.heappush(self._free, offset)

    def finish(self, first: int, last: int) -> None:
        """These are done: those behind them move up."""
        if last - first > len(self._key_of):
            found = sorted(offset for offset in self._key_of if first <= offset <= last)
        else:
            found = [offset for offset in range(first, last + 1) if offset in self._key_of]
        for offset in found:
            line = self._lines[key := self._key_of.pop(offset)]
            if line[0] != offset:
                line.remove(offset)
                continue
            line.popleft()
            if not line:
                del self._lines[key]
            elif self._window.at(line[0]).kind == READY:
                heapq.heappush(self._free, line[0])

    def free(self, messages_max: int) -> list[int]:
        """The first messages that may be had, and were looked at before."""
        found: list[int] = []
        while self._free and len(found) < messages_max:
            offset = heapq.heappop(self._free)
            if (not found or offset != found[-1]) and self._window.at(offset).kind == READY and self.is_first(offset):
                found.append(offset)
        for offset in found:
            heapq.heappush(self._free, offset)
        return found

    @property
    def any_free(self) -> bool:
        return bool(self.free(1))
