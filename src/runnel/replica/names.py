"""The names of messages that one leader knows of its partition: a part of what the log says, in bounded memory.

Rule 1: it is complete from `covered` on: a name that is neither found nor suspected is not in the log at or above that
        offset. Below, only the log knows.
Rule 2: the last names are known with their places. Of those before them a page knows four bytes each: that a name is
        not in its stretch of the log for certain, or that it may be. Then the log has to be asked; that is so for
        one name in 100,000 that is not there, and for every one that is.
Rule 3: who appends notes the names before anybody else can ask for them.
Rule 4: the oldest are forgotten first, and `covered` moves behind them.
"""

from collections import OrderedDict, deque
from hashlib import blake2b
from typing import Final, NamedTuple

PROBES: Final = 8
BITS_EACH: Final = 32  # with 8 probes: one name in 170,000 is suspected in vain
PAGE_NAMES_MIN, PAGE_NAMES_MAX = 4_096, 65_536  # a first page is small: most partitions have few names


class Place(NamedTuple):
    """Where a message of a name lies."""

    offset: int
    timestamp_ms: int


class Page:
    """Which names may lie in the stretch [first, end) of the log: a Bloom filter."""

    __slots__ = ("_bits", "_mask", "capacity", "count", "end", "first", "newest_ms")

    def __init__(self, first: int, capacity: int) -> None:
        self.first = self.end = first
        self.capacity = capacity  # a power of two
        self.count = 0
        self.newest_ms = -1
        self._bits = bytearray(capacity * BITS_EACH // 8)
        self._mask = capacity * BITS_EACH - 1

    def __len__(self) -> int:
        return len(self._bits)

    def add(self, name: str, place: Place) -> None:
        base, step = _digest(name)
        for number in range(PROBES):
            at = (base + number * step) & self._mask
            self._bits[at >> 3] |= 1 << (at & 7)
        self.count += 1
        self.end = place.offset + 1
        self.newest_ms = max(self.newest_ms, place.timestamp_ms)

    def may_have(self, base: int, step: int) -> bool:
        bits, mask = self._bits, self._mask
        for number in range(PROBES):
            at = (base + number * step) & mask
            if not bits[at >> 3] & (1 << (at & 7)):
                return False
        return True


def _digest(name: str) -> tuple[int, int]:
    digest = blake2b(name.encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8], "big"), int.from_bytes(digest[8:], "big") | 1


class Names:
    """Of one partition, in one leader epoch."""

    __slots__ = ("_pages", "_places", "covered")

    def __init__(self, covered: int) -> None:
        self.covered = covered
        self._pages: deque[Page] = deque()
        self._places: OrderedDict[str, Place] = OrderedDict()  # the last ones, in the order of their offsets

    def __len__(self) -> int:
        """How many are known with their places."""
        return len(self._places)

    @property
    def page_bytes(self) -> int:
        return sum(len(page) for page in self._pages)

    def find(self, name: str, floor: int) -> Place | None:
        """Where it lies at or above `floor`, if it is one of the last."""
        place = self._places.get(name)
        return place if place is not None and place.offset >= floor else None

    def suspects(self, name: str, floor: int) -> list[tuple[int, int]]:
        """The stretches above `floor` in which one that was not found may lie all the same."""
        if not self._pages:
            return []
        base, step = _digest(name)
        return [(page.first, page.end) for page in self._pages if page.end > floor and page.may_have(base, step)]

    def knows(self, floor: int) -> bool:
        """Whether nothing at or above `floor` is unknown."""
        return floor >= self.covered

    def note(self, name: str, place: Place) -> None:
        """It lies at the end of the log now."""
        self._places.pop(name, None)
        self._places[name] = place

    def extend(self, older: "Names") -> None:
        """Take over what another knows, which ends where this one begins."""
        if older.covered >= self.covered:
            return
        if self._pages:
            older.shrink(0)
            self._pages.extendleft(reversed(older._pages))
        else:
            self._pages = older._pages
            for name in self._places:
                older._places.pop(name, None)
            older._places.update(self._places)
            self._places = older._places
        self.covered = older.covered

    def trim(self, count: int, page_bytes: int, oldest_ms: int) -> None:
        """Forget what is older than that; know only so many with their places, and the rest in so many bytes."""
        self.shrink(count)
        while self._pages and (self._pages[0].newest_ms < oldest_ms or self.page_bytes > page_bytes):
            self.covered = max(self.covered, self._pages.popleft().end)
        while not self._pages and self._places:
            name, place = next(iter(self._places.items()))
            if place.timestamp_ms >= oldest_ms:
                return
            del self._places[name]
            self.covered = max(self.covered, place.offset + 1)

    def shrink(self, count: int) -> None:
        """Know only so many with their places: those before them go to pages."""
        while len(self._places) > count:
            name, place = self._places.popitem(last=False)
            self._page().add(name, place)

    def _page(self) -> Page:
        """The one that takes the next name."""
        if not self._pages:
            self._pages.append(Page(self.covered, PAGE_NAMES_MIN))
        last = self._pages[-1]
        if last.count >= last.capacity:
            last = Page(last.end, min(2 * last.capacity, PAGE_NAMES_MAX))
            self._pages.append(last)
        return last
