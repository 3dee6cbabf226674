"""Ranges cut into tasks."""

from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from runnel.client.metadata import TopicPartition as TP
from runnel.pipelines.connector.reading.options import Splitting
from runnel.pipelines.connector.reading.ranges import Range
from runnel.pipelines.connector.reading.splits import split

A, B = TP("t", 0), TP("t", 1)
EACH = 100  # bytes of a message


def sizes(wanted: Mapping[TP, Sequence[int]]) -> dict[TP, list[int]]:
    return {where: [offset * EACH for offset in offsets] for where, offsets in wanted.items()}


def unasked(wanted: Mapping[TP, Sequence[int]]) -> dict[TP, list[int]]:
    raise AssertionError("sizes are asked for without need")


def test_a_task_for_each_partition_without_options() -> None:
    assert split([Range(A, 0, 5), Range(B, 3, 4)], Splitting(), unasked) == [Range(A, 0, 5), Range(B, 3, 4)]


def test_large_ranges_are_cut_for_more_tasks() -> None:
    pieces = split([Range(A, 0, 90), Range(B, 0, 10)], Splitting(tasks_min=5), unasked)
    assert [(p.where, p.size) for p in pieces] == [(A, 22), (A, 23), (A, 22), (A, 23), (B, 10)]


def test_no_more_tasks_than_messages() -> None:
    assert len(split([Range(A, 0, 3)], Splitting(tasks_min=5), unasked)) == 3


def test_tasks_have_no_more_messages_than_allowed() -> None:
    assert [p.size for p in split([Range(A, 0, 10)], Splitting(rows_max=4), unasked)] == [3, 3, 4]


def test_tasks_have_about_as_many_bytes_as_allowed() -> None:
    pieces = split([Range(A, 50, 1_050)], Splitting(bytes_max=25_000), sizes)
    assert all(p.size * EACH <= 25_000 for p in pieces)
    assert len(pieces) <= 6


@given(
    st.dictionaries(st.sampled_from([A, B]), st.integers(1, 10**6)),
    st.none() | st.integers(1, 40),
    st.none() | st.integers(10**4, 10**7),
    st.none() | st.integers(10**6, 10**9),
)
def test_pieces_follow_each_other_and_keep_every_limit(
    lengths: dict[TP, int], tasks_min: int | None, rows_max: int | None, bytes_max: int | None
) -> None:
    ranges = [Range(where, 7, 7 + size) for where, size in lengths.items()]
    pieces = split(ranges, Splitting(tasks_min, rows_max, bytes_max), sizes)
    for span in ranges:
        mine = [piece for piece in pieces if piece.where == span.where]
        assert [mine[0].first, *(p.end for p in mine)] == [*(p.first for p in mine), span.end]
        assert mine[0].first == span.first
        assert all(p.size > 0 for p in mine)
        assert rows_max is None or all(p.size <= rows_max for p in mine)
        assert bytes_max is None or all(p.size * EACH <= bytes_max + EACH for p in mine)
    assert tasks_min is None or len(pieces) >= min(tasks_min, sum(lengths.values()))
