"""Where reading begins and ends, as users write it."""

import pytest

from runnel.client.metadata import TopicPartition as TP
from runnel.client.positions import END, START, STORED, From, Position
from runnel.pipelines.connector.reading.edges import offsets_edge, partitions_of, time_edge, times_edge
from runnel.pipelines.errors import BadOption


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", START),
        ("Latest", END),
        ("committed", STORED),
        ("-100", Position(From.END, 100)),
        ("-1", Position(From.END, 1)),  # a text counts from the end; a number in JSON has Spark's meaning
    ],
)
def test_one_word_for_all_partitions(text: str, position: Position) -> None:
    assert offsets_edge("startingOffsets", text).of([TP("t", 0), TP("t", 1)]) == {
        TP("t", 0): position,
        TP("t", 1): position,
    }


def test_one_for_each_partition_with_sparks_numbers_and_our_words() -> None:
    edge = offsets_edge("startingOffsets", '{"a": {"0": 23, "1": -2, "2": -1}, "b": {"0": "-100", "1": "committed"}}')
    assert edge.of([TP("a", 0), TP("a", 1), TP("a", 2), TP("b", 0), TP("b", 1)]) == {
        TP("a", 0): Position(From.OFFSET, 23),
        TP("a", 1): START,
        TP("a", 2): END,
        TP("b", 0): Position(From.END, 100),
        TP("b", 1): STORED,
    }
    assert edge.uses(From.STORED)
    assert not edge.uses(From.TIME)


@pytest.mark.parametrize(
    "text",
    ["", "first", "-", "100", "{}", "{", '{"t": 3}', '{"t": {"x": 3}}', '{"t": {"0": -3}}', '{"t": {"0": true}}'],
)
def test_what_is_no_offset_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match="startingOffsets"):
        offsets_edge("startingOffsets", text)


def test_partitions_named_one_by_one_are_all_that_are_read() -> None:
    edge = offsets_edge("startingOffsets", '{"t": {"0": 5, "1": 6}}')
    with pytest.raises(BadOption, match="missing: t/2"):
        edge.of([TP("t", 0), TP("t", 1), TP("t", 2)])
    with pytest.raises(BadOption, match="not read: t/1"):
        edge.of([TP("t", 0)])


@pytest.mark.parametrize("text", ["1700000000000", "2023-11-14T22:13:20Z", "2023-11-14T23:13:20+01:00"])
def test_times_are_milliseconds_or_iso(text: str) -> None:
    edge = time_edge("startingTimestamp", text, strict=True)
    assert edge.of([TP("t", 0)]) == {TP("t", 0): Position(From.TIME, 1_700_000_000_000)}
    assert edge.strict


@pytest.mark.parametrize("text", ["yesterday", "2023-11-14T22:13:20", "-5"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match="startingTimestamp"):
        time_edge("startingTimestamp", text, strict=True)


def test_a_time_for_each_partition() -> None:
    edge = times_edge("startingOffsetsByTimestamp", '{"t": {"0": 7, "1": "1970-01-01T00:00:01Z"}}', strict=False)
    assert edge.of([TP("t", 0), TP("t", 1)]) == {
        TP("t", 0): Position(From.TIME, 7),
        TP("t", 1): Position(From.TIME, 1000),
    }


def test_assigned_partitions() -> None:
    assert partitions_of("assign", '{"b": [2, 0, 2], "a": [1]}') == (TP("a", 1), TP("b", 0), TP("b", 2))
    for text in ('{"a": []}', '{"a": [-1]}', '{"a": 1}', "a"):
        with pytest.raises(BadOption, match="assign"):
            partitions_of("assign", text)
