"""Filters that narrow what is fetched: nothing that could pass is left out, and Spark does what is not done."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
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
from runnel.client.sync import connect
from runnel.pipelines.connector.arrow.columns import default_schema
from runnel.pipelines.connector.reading.options import ReadOptions
from runnel.pipelines.connector.reading.pushdown import FilteringReader, Narrowing, narrowed
from runnel.pipelines.connector.reading.ranges import Range
from runnel.pipelines.connector.reading.reader import Task
from runnel.testing.process import BrokerProcess

COMPARISONS: list[Any] = [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]
TRUTH: dict[Any, Any] = {
    EqualTo: lambda here, value: here == value,
    EqualNullSafe: lambda here, value: here == value,
    GreaterThan: lambda here, value: here > value,
    GreaterThanOrEqual: lambda here, value: here >= value,
    LessThan: lambda here, value: here < value,
    LessThanOrEqual: lambda here, value: here <= value,
    In: lambda here, value: here in value,
    StringStartsWith: lambda here, value: here.startswith(value),
    StringEndsWith: lambda here, value: here.endswith(value),
    StringContains: lambda here, value: value in here,
}
OFFSETS = range(12)
WHERE = [TopicPartition(topic, number) for topic in ("ab", "b") for number in range(3)]

NUMBERS = st.integers(-1, 12)
BY_NUMBER = st.tuples(st.sampled_from(COMPARISONS), NUMBERS) | st.tuples(st.just(In), st.lists(NUMBERS).map(tuple))
BY_TEXT = st.tuples(
    st.sampled_from([*COMPARISONS, StringStartsWith, StringEndsWith, StringContains]),
    st.sampled_from(["a", "b", "ab", "c"]),
)


@st.composite
def filters(draw: st.DrawFn) -> tuple[Filter, Any]:
    """A filter, and whether a message of this topic, partition and offset passes it."""
    column = draw(st.sampled_from(["topic", "partition", "offset"]))
    drawn: tuple[Any, Any] = draw(BY_TEXT if column == "topic" else BY_NUMBER)
    kind, value = drawn
    place = ["topic", "partition", "offset"].index(column)
    plain = kind((column,), value)
    if draw(st.booleans()):
        return Not(plain), lambda *message: not TRUTH[kind](message[place], value)
    return plain, lambda *message: TRUTH[kind](message[place], value)


@given(st.lists(filters(), max_size=4))
def test_what_is_done_is_done_exactly_and_nothing_that_passes_is_left_out(some: list[tuple[Filter, Any]]) -> None:
    by, todo = Narrowing(), []
    for each, passes in some:
        by, done = narrowed(by, each)
        if not done:
            todo.append(passes)
    spans = [cut for where in WHERE if (cut := by.cut(Range(where, OFFSETS.start, OFFSETS.stop))) is not None]
    read = [
        (span.where.topic, span.where.partition, offset) for span in spans for offset in range(span.first, span.end)
    ]
    found = [message for message in read if all(passes(*message) for passes in todo)]
    every = [(*where, offset) for where in WHERE for offset in OFFSETS]
    assert found == [message for message in every if all(passes(*message) for _, passes in some)]


@pytest.mark.parametrize(
    "each",
    [
        EqualTo(("key",), b"k"),
        IsNull(("key",)),
        EqualTo(("value", "topic"), "a"),
        EqualTo(("topic",), None),
        Not(In(("topic",), ("a", None))),
        EqualTo(("offset",), "5"),
        EqualTo(("partition",), True),
        Not(EqualTo(("offset",), 5)),
    ],
)
def test_what_is_not_known_beforehand_is_left_to_spark(each: Filter) -> None:
    assert narrowed(Narrowing(), each) == (Narrowing(), False)


@pytest.mark.parametrize("column", ["topic", "partition", "offset", "timestamp", "timestampType"])
def test_what_is_always_there_need_not_be_asked(column: str) -> None:
    assert narrowed(Narrowing(), IsNotNull((column,))) == (Narrowing(), True)
    assert not narrowed(Narrowing(), IsNotNull(("key",)))[1]


def test_a_time_has_a_lower_bound_only_and_spark_looks_again() -> None:
    when = datetime(2024, 1, 1, 0, 0, 0, 500, tzinfo=UTC)
    since_ms = int(datetime(2024, 1, 1, tzinfo=UTC).timestamp() * 1000)
    for kind in (EqualTo, GreaterThan, GreaterThanOrEqual):
        assert narrowed(Narrowing(), kind(("timestamp",), when)) == (Narrowing(since_ms=since_ms), False)
    assert narrowed(Narrowing(since_ms=since_ms + 5), EqualTo(("timestamp",), when))[0].since_ms == since_ms + 5
    for upper in (LessThan, LessThanOrEqual):
        assert narrowed(Narrowing(), upper(("timestamp",), when)) == (Narrowing(), False)
    assert narrowed(Narrowing(), EqualTo(("timestamp",), datetime(2024, 1, 1))) == (Narrowing(), False)


def test_a_reader_fetches_no_more_than_filters_let_pass(broker: BrokerProcess, name: str, gateways: None) -> None:
    with connect(broker.kafka) as runnel:
        queue = runnel.queue(name)
        queue.create(partitions=2)
        sent = [runnel.send(name, str(number), partition=number % 2) for number in range(20)]
    options = {"runnel.brokers": broker.kafka, "subscribe": name, "pushFilters": "true"}

    def read(*asked: Filter) -> tuple[list[Range], list[Filter], list[str]]:
        reader = FilteringReader(ReadOptions.batch(options), default_schema())
        left = list(reader.pushFilters(asked))
        tasks = [task for task in reader.partitions() if isinstance(task, Task)]
        rows = [row["value"].decode() for task in tasks for batch in reader.read(task) for row in batch.to_pylist()]
        return [task.span for task in tasks], left, rows

    assert len(read()[2]) == 20
    spans, left, rows = read(EqualTo(("partition",), 1), GreaterThan(("offset",), 6), LessThan(("offset",), 9))
    assert spans == [Range(TopicPartition(name, 1), 7, 9)]
    assert (left, rows) == ([], ["15", "17"])
    since = datetime.fromtimestamp(sent[14].timestamp_ms / 1000, UTC)
    spans, left, rows = read(by_time := GreaterThanOrEqual(("timestamp",), since), EqualTo(("partition",), 0))
    assert left == [by_time]
    assert set(rows) >= {"14", "16", "18"}
    assert spans[0].first <= 7
    late = datetime.fromtimestamp(sent[-1].timestamp_ms / 1000 + 60, UTC)
    assert read(GreaterThan(("timestamp",), late))[0] == []
    assert read(EqualTo(("topic",), "another"))[0] == []
