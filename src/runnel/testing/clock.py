"""A clock that a test moves by hand, and chance that a seed repeats."""

from collections.abc import Sequence
from random import Random  # noqa: TID251  (a seeded body of the seam)
from typing import TypeVar

from runnel.model.ids import Millis

T = TypeVar("T")

BEGIN_WALL_MS = 1_700_000_000_000  # any moment will do; the same in every run


class ManualClock:
    """Stands still until it is moved."""

    def __init__(self, *, monotonic_ms: int = 0, wall_ms: int = BEGIN_WALL_MS) -> None:
        self._monotonic_ms = monotonic_ms
        self._wall_ms = wall_ms

    def monotonic_ms(self) -> Millis:
        return Millis(self._monotonic_ms)

    def wall_ms(self) -> Millis:
        return Millis(self._wall_ms)

    def advance(self, by_ms: int) -> None:
        """Let time pass on both clocks."""
        if by_ms < 0:
            raise ValueError(f"time does not go back by {-by_ms} ms: use jump_wall for the wall clock")
        self._monotonic_ms += by_ms
        self._wall_ms += by_ms

    def jump_wall(self, by_ms: int) -> None:
        """Set the wall clock forward or back, as an operator or NTP would."""
        self._wall_ms += by_ms


class SeededRng:
    """The same numbers for the same seed: the seam, and what simulations draw besides."""

    def __init__(self, seed: int | str = 0) -> None:
        self._random = Random(seed)

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)

    def token(self, size: int) -> bytes:
        return self._random.randbytes(size)

    def uniform(self, low: float, high: float) -> float:
        return low + (high - low) * self._random.random()

    def fraction(self) -> float:
        """Any number from 0 to 1."""
        return self._random.random()

    def chance(self, probability: float) -> bool:
        return self._random.random() < probability

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self._random.randrange(len(choices))]

    def shuffle(self, items: list[T]) -> None:
        self._random.shuffle(items)
