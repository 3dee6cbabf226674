"""The names of messages that one leader knows of its partition: a part of what the log says, in bounded memory.

Rule 1: it is complete from `covered` on: a name that is not in here is not in the log at or above that offset. Below,
        only the log knows.
Rule 2: who appends notes the names before anybody else can ask for them.
Rule 3: the oldest are forgotten first, and `covered` moves behind them.
"""

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple


class Place(NamedTuple):
    """Where a message of a name lies."""

    offset: int
    timestamp_ms: int


class Names:
    """Of one partition, in one leader epoch."""

    __slots__ = ("_places", "covered")

    def __init__(self, covered: int) -> None:
        self.covered = covered
        self._places: OrderedDict[str, Place] = OrderedDict()  # in the order of their offsets

    def __len__(self) -> int:
        return len(self._places)

    def find(self, name: str, floor: int) -> Place | None:
        """Where it lies at or above `floor`, as far as is known."""
        place = self._places.get(name)
        return place if place is not None and place.offset >= floor else None

    def knows(self, floor: int) -> bool:
        """Whether nothing at or above `floor` is unknown."""
        return floor >= self.covered

    def note(self, name: str, place: Place) -> None:
        """It lies at the end of the log now."""
        self._places.pop(name, None)
        self._places[name] = place

    def extend(self, start: int, found: Iterable[tuple[str, Place]]) -> None:
        """These are all that lie between `start` and what was covered; the last of each name counts."""
        if start < self.covered:
            places = OrderedDict(found)
            for name in self._places:
                places.pop(name, None)
            places.update(self._places)
            self._places = places
            self.covered = start

    def trim(self, count: int, oldest_ms: int) -> None:
        """Forget the first ones, as long as there are more than `count`, or they are older than that."""
        places = self._places
        while places:
            name, place = next(iter(places.items()))
            if len(places) <= count and place.timestamp_ms >= oldest_ms:
                return
            del places[name]
            self.covered = max(self.covered, place.offset + 1)
