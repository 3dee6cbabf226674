"""Filters of a query that narrow what is fetched: by topic, partition, offset and time.

Rule 1: what is left out can't pass. So a time has a lower bound only: a later message may well be older.
Rule 2: a filter that is wholly done here is not done again by Spark; one that only narrows is, and all others.
Rule 3: Spark hands over filters only where `spark.sql.python.filterPushdown.enabled` is true, and fails queries whose
        reader takes filters where it is not: so such a reader is made only if the option `pushFilters` asks for it.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeAlias

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from runnel.client.metadata import TopicPartition
from runnel.pipelines.connector.reading.ranges import Range
from runnel.pipelines.connector.reading.reader import RunnelReader
from runnel.pipelines.connector.reading.survey import Survey

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

    from runnel.pipelines.connector.reading.options import ReadOptions

OFFSET_MAX = 2**63 - 1
PLACES: dict[str, type] = {"topic": str, "partition": int}  # known before anything is read
ALWAYS_THERE = (*PLACES, "offset", "timestamp", "timestampType")

Compares: TypeAlias = EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual


@dataclass(frozen=True)
class Narrowing:
    """What is left to be read: filters of places, offsets in [first, end), and nothing before a time."""

    places: tuple[Filter, ...] = ()
    first: int = 0
    end: int = OFFSET_MAX
    since_ms: int | None = None

    def includes(self, where: TopicPartition) -> bool:
        return all(_holds(each, getattr(where, _column(each))) for each in self.places)

    def cut(self, span: Range, since: int | None = None) -> Range | None:
        """What is left of a range; `since` is the first offset at the time or after it, None if that is not known."""
        first, end = max(span.first, self.first, since or 0), min(span.end, self.end)
        return Range(span.where, first, end) if self.includes(span.where) and first < end else None


def narrowed(by: Narrowing, filter: Filter) -> tuple[Narrowing, bool]:
    """With one filter more, and whether that is wholly done."""
    column = _column(filter)
    if isinstance(filter, IsNotNull) and column in ALWAYS_THERE:
        return by, True
    if column in PLACES and _compares(filter, PLACES[column]):
        return replace(by, places=(*by.places, filter)), True
    if column == "offset" and _compares(filter, int):
        return _by_offset(by, filter)
    if column == "timestamp" and isinstance(filter, EqualTo | EqualNullSafe | GreaterThan | GreaterThanOrEqual):
        return _by_time(by, filter), False
    return by, False


def _by_offset(by: Narrowing, filter: Filter) -> tuple[Narrowing, bool]:
    match filter:
        case EqualTo(value=value) | EqualNullSafe(value=value):
            return replace(by, first=max(by.first, value), end=min(by.end, value + 1)), True
        case GreaterThan(value=value):
            return replace(by, first=max(by.first, value + 1)), True
        case GreaterThanOrEqual(value=value):
            return replace(by, first=max(by.first, value)), True
        case LessThan(value=value):
            return replace(by, end=min(by.end, value)), True
        case LessThanOrEqual(value=value):
            return replace(by, end=min(by.end, value + 1)), True
        case In(value=some) if some:
            return replace(by, first=max(by.first, min(some)), end=min(by.end, max(some) + 1)), False
        case _:
            return by, False


def _by_time(by: Narrowing, filter: Compares) -> Narrowing:
    when = filter.value
    if not isinstance(when, datetime) or when.tzinfo is None:
        return by
    since_ms = max(0, math.floor(when.timestamp() * 1000))
    return replace(by, since_ms=since_ms if by.since_ms is None else max(by.since_ms, since_ms))


# --- filters
def _column(filter: Filter) -> str:
    """The name of what is compared; none, if that is inside of something."""
    inner: Any = filter.child if isinstance(filter, Not) else filter
    return str(inner.attribute[0]) if len(inner.attribute) == 1 else ""


def _compares(filter: Filter, kind: type) -> bool:
    """Whether it compares with values of this type: comparing with null has a logic of its own, which Spark knows."""
    inner: Any = filter.child if isinstance(filter, Not) else filter
    if isinstance(inner, IsNull | IsNotNull):
        return True
    return not isinstance(inner, Not) and all(
        type(value) is kind for value in (inner.value if isinstance(inner, In) else (inner.value,))
    )


def _holds(filter: Filter, here: Any) -> bool:
    """Whether a value that is there passes."""
    match filter:
        case Not(child=child):
            return not _holds(child, here)
        case EqualTo(value=value) | EqualNullSafe(value=value):
            return bool(here == value)
        case In(value=some):
            return here in some
        case GreaterThan(value=value):
            return bool(here > value)
        case GreaterThanOrEqual(value=value):
            return bool(here >= value)
        case LessThan(value=value):
            return bool(here < value)
        case LessThanOrEqual(value=value):
            return bool(here <= value)
        case StringStartsWith(value=value):
            return bool(here.startswith(value))
        case StringEndsWith(value=value):
            return bool(here.endswith(value))
        case StringContains(value=value):
            return value in here
        case _:
            return isinstance(filter, IsNotNull)


class FilteringReader(RunnelReader):
    """Reads no more than the query's filters let pass, as far as that is known beforehand."""

    def __init__(self, options: "ReadOptions", schema: "StructType") -> None:
        super().__init__(options, schema)
        self._narrowing = Narrowing()

    def pushFilters(self, filters: Sequence[Filter]) -> Iterator[Filter]:
        for each in filters:
            self._narrowing, done = narrowed(self._narrowing, each)
            if not done:
                yield each

    def narrowed(self, survey: Survey, wanted: Iterable[Range]) -> list[Range]:
        by = self._narrowing
        left = [cut for span in wanted if (cut := by.cut(span)) is not None]
        if by.since_ms is None:
            return left
        begins = survey.gate.by_time({span.where: by.since_ms for span in left}, self.options.isolation)
        late = [(span, begins[span.where]) for span in left if begins[span.where] >= 0]  # -1: nothing is as late
        return [cut for span, since in late if (cut := by.cut(span, since)) is not None]
