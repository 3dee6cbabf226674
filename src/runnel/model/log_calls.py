"""How many bytes of a log lie before an offset: the call that any broker answers (broker/log_sizes.py).

The law of model/calls.py holds here too.
"""

from typing import Final

from runnel.model.calls import Value, Verb

OFFSETS_MAX: Final = 100_000  # in one call


class SizesAsked(Value, frozen=True):
    """Offsets of one partition."""

    topic: str
    partition: int
    offsets: list[int]


class SizesOf(Value, frozen=True):
    places: list[SizesAsked]


class Sizes(Value, frozen=True):
    """For each place, and each of its offsets: the bytes from the start of the log up to the offset."""

    places: list[list[int]]


LOG_SIZES: Final = Verb("log.sizes", SizesOf, Sizes)
LOG_SIZES_HERE: Final = Verb("log.sizes.here", SizesOf, Sizes)  # for the leader of all these partitions
