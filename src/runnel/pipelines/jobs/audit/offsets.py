"""Sets of offsets, exactly: a bit for each, in buckets of 32,768. Pure.

Rule 1: a bucket is what Spark's `bitmap_construct_agg` makes of `offset & MASK`, for one `offset >> BITS`.
Rule 2: what goes to people is runs: from the first to the last, both among them; runs that touch are one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

BITS = 15
SIZE = 1 << BITS
MASK = SIZE - 1

Bits: TypeAlias = NDArray[np.bool_]


class Run(NamedTuple):
    """Offsets that follow each other, from `first` to `last`."""

    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


@dataclass(frozen=True, slots=True)
class Bucket:
    """What one side holds of one bucket."""

    count: int = 0  # rows: more than bits if an offset came twice
    bitmap: bytes | None = b""  # None: every offset is there
    digest: int = 0  # of all that the rows are, in any order

    @property
    def bits(self) -> Bits:
        if self.bitmap is None:
            return np.ones(SIZE, np.bool_)
        told = np.frombuffer(self.bitmap.ljust(SIZE // 8, b"\0"), np.uint8)
        return np.unpackbits(told, bitorder="little").view(np.bool_)

    @property
    def distinct(self) -> int:
        return int(np.count_nonzero(self.bits))


EMPTY = Bucket()


def window(number: int, first: int, end: int) -> Bits:
    """Which offsets of a bucket lie in [first, end)."""
    base = number << BITS
    bits = np.zeros(SIZE, np.bool_)
    bits[min(max(first - base, 0), SIZE) : min(max(end - base, 0), SIZE)] = True
    return bits


def runs(bits: Bits, number: int) -> list[Run]:
    """The offsets of these bits of a bucket."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], bits, [False])).view(np.int8)))
    base = number << BITS
    return [Run(base + low, base + high - 1) for low, high in edges.reshape(-1, 2).tolist()]


def bits_of(found: Iterable[Run], number: int) -> Bits:
    """The bits of a bucket that these runs have."""
    bits = np.zeros(SIZE, np.bool_)
    for run in found:
        bits |= window(number, run.first, run.last + 1)
    return bits


def joined(found: Iterable[Run]) -> list[Run]:
    """The same offsets, in as few runs as can be."""
    out: list[Run] = []
    for run in sorted(found):
        if out and run.first <= out[-1].last + 1:
            out[-1] = Run(out[-1].first, max(out[-1].last, run.last))
        else:
            out.append(run)
    return out


def runs_of(offsets: Iterable[int]) -> list[Run]:
    """Runs of single offsets."""
    return joined(Run(offset, offset) for offset in offsets)


def total(found: Iterable[Run]) -> int:
    return sum(run.size for run in found)


def bucket_of(offsets: Iterable[int], digest: int = 0) -> Bucket:
    """The bucket of these offsets, which are in it all."""
    listed = list(offsets)
    bits = np.zeros(SIZE, np.bool_)
    bits[[offset & MASK for offset in listed]] = True
    return Bucket(len(listed), np.packbits(bits, bitorder="little").tobytes(), digest)
