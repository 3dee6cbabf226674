"""What a filter sees of a message, whichever door or part holds it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

from runnel.record.records import Record


class Message(Protocol):
    """Where a message lies, and what it says."""

    @property
    def topic(self) -> str: ...

    @property
    def partition(self) -> int: ...

    @property
    def offset(self) -> int: ...

    @property
    def timestamp_ms(self) -> int: ...  # since 1970 UTC; -1: it has none

    @property
    def key(self) -> bytes | None: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def headers(self) -> Sequence[tuple[str, bytes | None]]: ...


class View(NamedTuple):
    """A message of a partition, for a filter."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]] = ()


# C throughout: the constructor written in Python would cost more than most filters.
_view: Callable[[tuple[Any, ...]], View] = partial(tuple.__new__, View)


def view_of(record: Record, topic: str, partition: int) -> View:
    """A record with its place. The fields of both are in the same order."""
    return _view((topic, partition, *record))
