"""The deadlines of one shard.

Most deadlines are sessions, and are moved on long before they are due. So moving one later costs a dictionary write:
its old entry stays in the heap and finds out, when its time comes, that the deadline has moved.
"""

import heapq
from enum import IntEnum
from typing import NamedTuple

from runnel.model.ids import Millis


class Alarm(IntEnum):
    """What a deadline is about."""

    SESSION = 1  # a member was not heard of
    JOIN = 2  # classic: the others have had their time to rejoin
    SYNC = 3  # classic: members that never fetched their assignment
    REVOKE = 4  # KIP-848: a member does not give its partitions up
    ASSIGN = 5  # KIP-848: a large group may be assigned again
    EXPIRE = 6  # the shard: look for offsets that are too old


class Timer(NamedTuple):
    alarm: Alarm
    group_id: str = ""
    member_id: str = ""


class Timers:
    def __init__(self) -> None:
        self._deadlines: dict[Timer, Millis] = {}
        self._heap: list[tuple[Millis, Timer]] = []
        self._earliest: dict[Timer, Millis] = {}  # the one entry of each timer in the heap that counts

    def set(self, timer: Timer, deadline_ms: int) -> None:
        deadline = Millis(deadline_ms)
        self._deadlines[timer] = deadline
        queued = self._earliest.get(timer)
        if queued is None or deadline < queued:
            self._push(timer, deadline)

    def cancel(self, timer: Timer) -> None:
        self._deadlines.pop(timer, None)

    def deadline(self, timer: Timer) -> Millis | None:
        return self._deadlines.get(timer)

    def next_ms(self) -> Millis | None:
        self._settle()
        return self._heap[0][0] if self._heap else None

    def pop_due(self, now_ms: int) -> Timer | None:
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

    def _push(self, timer: Timer, deadline: Millis) -> None:
        self._earliest[timer] = deadline
        heapq.heappush(self._heap, (deadline, timer))
