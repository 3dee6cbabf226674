"""What is appended together, cut into loads that a batch can carry."""

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def loads(items: Iterable[T], size: Callable[[T], int], bytes_max: int) -> list[list[T]]:
    """In order, each load as large as it may be; an item that is larger than that goes alone."""
    found: list[list[T]] = []
    room = 0
    for item in items:
        taken = size(item)
        if not found or taken > room:
            found.append([])
            room = bytes_max
        found[-1].append(item)
        room -= taken
    return found
