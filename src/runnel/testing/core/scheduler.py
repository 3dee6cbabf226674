"""Virtual time: a heap of what is due, and one source of chance.

Rule 1: whatever happens, happens in order of (time, turn); nothing else decides.
Rule 2: all chance comes from one generator, so a seed is a run.
"""

from collections.abc import Callable
from hashlib import blake2b
from heapq import heappop, heappush
from random import Random  # noqa: TID251  (a seeded body of the seam)
from typing import Any, TypeAlias

Tracer: TypeAlias = Callable[[str], None]

_PRIME = 1_000_003
_MASK = 2**61 - 1
TURNS_MAX = 300_000  # many times more than any run needs: beyond, something goes round in circles


class Endless(Exception):
    """Time does not get on."""


class Scheduler:
    """Runs callables at their virtual time, in milliseconds."""

    __slots__ = ("_heap", "_lines", "_mix", "_tracer", "_turn", "now", "rng", "uniform")

    def __init__(self, seed: int, tracer: Tracer | None = None) -> None:
        self.rng = Random(seed)
        self.uniform = self.rng.uniform
        self.now = 0.0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._turn = 0
        self._mix = 0
        self._lines = blake2b(digest_size=8)
        self._tracer = tracer

    @property
    def turns(self) -> int:
        return self._turn

    def after(self, delay_ms: float, what: Callable[..., None], *args: Any) -> None:
        self._turn += 1
        heappush(self._heap, (self.now + delay_ms, self._turn, what, args))

    def run(self, until_ms: float) -> None:
        """Let everything happen that is due by then."""
        heap = self._heap
        while heap and heap[0][0] <= until_ms:
            self.now, turn, what, args = heappop(heap)
            self._mix = (self._mix * _PRIME + turn) & _MASK
            what(*args)
            if turn > TURNS_MAX:
                raise Endless(f"{turn} turns, and it is only {self.now / 1000:.1f} s: {what.__qualname__}")
        self.now = until_ms

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def note(self, line: str) -> None:
        """Something worth telling: part of the trace."""
        told = f"{self.now:10.3f}  {line}"
        self._lines.update(told.encode())
        if self._tracer is not None:
            self._tracer(told)

    def trace_hash(self) -> str:
        """Equal for equal runs, whatever the interpreter's hashes are."""
        whole = self._lines.copy()
        whole.update(f"{self._turn} {self._mix} {self.rng.random()}".encode())
        return whole.hexdigest()
