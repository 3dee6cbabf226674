"""The transactions of one partition: those that are open, those that ended lately, and those that were aborted.

Rule 1: the state is a function of the log. Everything stands in the order of offsets, so what a failed write left here
        is cut off at the end of the log.
Rule 2: a transaction is unstable from its first batch until its marker is committed: until then a new leader may not
        know how it ended. What is told to be committed once stays so.
Rule 3: what each fetch asks costs the same however many transactions there are.
Rule 4: memory is bounded. If nobody says what is committed, the oldest of those that ended become one: unstable from
        the first offset of any of them to the last marker, which is longer than they are, and never shorter.

    begin --> unstable, open --end--> unstable, ended --(marker below the high watermark)--> forgotten
                                 |
                                 +--(abort)--> aborted: kept for as long as the segment of its marker is written to
"""

from array import array
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

NEVER = 2**63 - 1  # an offset that no batch has
ENDED_MAX = 10_000  # that may not be committed yet, about 3 MB; a follower that hears of none has as many
ABORTED_MAX = 50_000  # in one segment, 1.6 MB: the segment is rolled when it has as many

FIELDS = 4  # of an aborted transaction


class AbortedTransaction(NamedTuple):
    """As a consumer is told of it: what this producer wrote from this offset up to its next marker does not count."""

    producer_id: int
    first_offset: int


class Aborted:
    """Aborted transactions in the order of their markers.

    Of each: producer id, first offset, offset of the marker, and what was stable after it: all that ended later began
    there or behind. So whoever looks for those in a part of the log knows when to stop.
    """

    __slots__ = ("_numbers",)

    def __init__(self, numbers: Iterable[int] = ()) -> None:
        self._numbers = array("q", numbers)

    def __len__(self) -> int:
        return len(self._numbers) // FIELDS

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Producer id, first offset and offset of the marker of each."""
        numbers = self._numbers
        return zip(numbers[::FIELDS], numbers[1::FIELDS], numbers[2::FIELDS], strict=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Aborted) and self._numbers == other._numbers

    __hash__ = None  # type: ignore[assignment]  # it grows

    @property
    def numbers(self) -> Sequence[int]:
        return self._numbers

    def copy(self) -> "Aborted":
        return Aborted(self._numbers)

    def add(self, producer_id: int, first_offset: int, marker_offset: int, stable: int) -> None:
        self._numbers.extend((producer_id, first_offset, marker_offset, stable))

    def cut(self, end_offset: int) -> None:
        """Forget those whose marker is not below `end_offset`."""
        del self._numbers[self._place(end_offset) * FIELDS :]

    def overlapping(self, start: int, end: int) -> list[AbortedTransaction]:
        """Those that may have something in [start, end)."""
        numbers, found = self._numbers, []
        for at in range(self._place(start) * FIELDS, len(numbers), FIELDS):
            if numbers[at + 1] < end:
                found.append(AbortedTransaction(numbers[at], numbers[at + 1]))
            if numbers[at + 3] >= end:
                break
        return found

    def _place(self, offset: int) -> int:
        """How many have their marker below an offset."""
        return bisect_left(range(len(self)), offset, key=lambda number: self._numbers[number * FIELDS + 2])


class Open:
    """Transactions that are open, in the order of their first offsets."""

    __slots__ = ("_firsts",)

    def __init__(self, opened: Iterable[tuple[int, int]] = ()) -> None:
        self._firsts = OrderedDict(opened)  # producer id -> first offset

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter(self._firsts.items())

    def begin(self, producer_id: int, first_offset: int) -> None:
        """Go on, or begin if it is not open."""
        self._firsts.setdefault(producer_id, first_offset)

    def end(self, producer_id: int) -> int | None:
        """Where it began; None if it was not open."""
        return self._firsts.pop(producer_id, None)

    def stable(self, marker_offset: int) -> int:
        """All that ends behind this marker begins here or later."""
        return next(iter(self._firsts.values()), marker_offset + 1)

    def copy(self) -> "Open":
        return Open(self._firsts.items())


class Transactions:
    """What the log says of transactions up to its end."""

    __slots__ = ("_ended", "_open", "_unstable", "aborted", "since")

    def __init__(self) -> None:
        self._open = Open()
        self._unstable: OrderedDict[int, int] = OrderedDict()  # open or ended: first offset -> producer id
        self._ended: deque[tuple[int, int]] = deque()  # offset of the marker, first offset; not known to be committed
        self.aborted = Aborted()  # those whose marker is in the segment that is written to
        self.since = NEVER  # no transaction has anything below

    def copy(self) -> "Transactions":
        twin = Transactions()
        twin._open, twin._unstable, twin._ended = self._open.copy(), self._unstable.copy(), self._ended.copy()
        twin.aborted, twin.since = self.aborted.copy(), self.since
        return twin

    # --- following the log
    def begin(self, producer_id: int, first_offset: int) -> None:
        self._open.begin(producer_id, first_offset)
        self._unstable[first_offset] = producer_id
        self.since = min(self.since, first_offset)

    def end(self, producer_id: int, first_offset: int, marker_offset: int, *, commit: bool) -> None:
        self._open.end(producer_id)
        self._ended.append((marker_offset, first_offset))
        if not commit:
            self.aborted.add(producer_id, first_offset, marker_offset, self._open.stable(marker_offset))

    def cut(self, end_offset: int) -> None:
        """What was told of the offsets from here on was not written."""
        while self._ended and self._ended[-1][0] >= end_offset:
            self._ended.pop()
        while self._unstable and next(reversed(self._unstable)) >= end_offset:
            self._unstable.popitem()
        ended = {first for _, first in self._ended}
        self._open = Open((producer_id, first) for first, producer_id in self._unstable.items() if first not in ended)
        self.aborted.cut(end_offset)

    def merge(self) -> None:
        """Let the older half of those that ended be one, if they are too many. Only if all that was told is written."""
        if len(self._ended) >= ENDED_MAX:
            old = [self._ended.popleft() for _ in range(len(self._ended) // 2)]
            first = min(first for _, first in old)
            for _, other in old:
                if other != first:
                    del self._unstable[other]
            self._ended.appendleft((old[-1][0], first))

    # --- asking
    def first_unstable(self, upto: int) -> int | None:
        """Where the first transaction begins that is open, or whose marker is not below `upto`: what is committed."""
        ended, unstable = self._ended, self._unstable
        while ended and ended[0][0] < upto:
            del unstable[ended.popleft()[1]]
        return next(iter(unstable), None)

    @property
    def empty(self) -> bool:
        """There never was one."""
        return self.since == NEVER

    @property
    def ended(self) -> Sequence[tuple[int, int]]:
        """Marker and first offset of those that may not be committed yet."""
        return self._ended

    def opened(self) -> list[tuple[int, int]]:
        """Producer id and first offset of those that are open, in the order of offsets."""
        return list(self._open)

    def restore(self, since: int, opened: Iterable[tuple[int, int]], ended: Iterable[tuple[int, int]]) -> None:
        """Become what a snapshot says."""
        self.since = since
        self._ended = deque(ended)
        self._open = Open(sorted(opened, key=lambda one: one[1]))
        unstable = {first: producer_id for producer_id, first in self._open} | {first: -1 for _, first in self._ended}
        self._unstable = OrderedDict(sorted(unstable.items()))
