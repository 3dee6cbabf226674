"""Where batches begin and end: proportions, limits, losses."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.client.metadata import TopicPartition as TP
from runnel.client.positions import Bounds
from runnel.pipelines.connector.reading import plan
from runnel.pipelines.connector.reading.edges import offsets_edge, time_edge
from runnel.pipelines.connector.reading.ranges import Lost, Range
from runnel.pipelines.errors import BadOption, NothingThere

A, B, C = TP("a", 0), TP("a", 1), TP("b", 0)
backlogs = st.dictionaries(st.integers(0, 30), st.integers(1, 10**12), min_size=1, max_size=20)
limits = st.integers(1, 10**12)


# --- limits
@given(backlogs, limits)
def test_a_share_is_the_whole_limit_and_nobody_gets_nothing_or_too_much(backlog: dict[int, int], limit: int) -> None:
    shares = plan.share(backlog, limit)
    assert shares.keys() == backlog.keys()
    assert all(1 <= shares[key] <= backlog[key] for key in backlog)
    assert sum(shares.values()) == min(sum(backlog.values()), max(limit, len(backlog)))


@given(backlogs, limits)
def test_shares_are_in_proportion_to_backlogs(backlog: dict[int, int], limit: int) -> None:
    total, shares = sum(backlog.values()), plan.share(backlog, limit)
    if len(backlog) <= limit < total:
        for key, size in backlog.items():
            assert abs(shares[key] - size * limit / total) <= 1 + len(backlog) + limit * 1e-9


def test_a_small_backlog_moves_beside_a_huge_one() -> None:
    ends = plan.within_rows({A: 0, B: 100}, {A: 1_000_000, B: 103}, 10)
    assert ends == {A: 9, B: 101}


def test_a_limit_leaves_alone_what_has_no_backlog() -> None:
    assert plan.within_rows({A: 5, B: 7}, {A: 5, B: 9}, 1) == {A: 5, B: 8}
    assert plan.within_rows({A: 5}, {A: 5}, 1) == {A: 5}


def steady(bytes_each: int) -> plan.Sizes:
    return lambda wanted: {where: [offset * bytes_each for offset in offsets] for where, offsets in wanted.items()}


@given(
    st.dictionaries(st.sampled_from([A, B, C]), st.integers(0, 10**6), min_size=1),
    st.integers(1, 10**4),
    st.integers(1, 10**9),
)
def test_a_limit_of_bytes_is_kept_and_used(backlog: dict[TP, int], each: int, limit: int) -> None:
    starts = dict.fromkeys(backlog, 50)
    ends = {where: 50 + size for where, size in backlog.items()}
    found = plan.within_bytes(starts, ends, limit, steady(each))
    moved = {where: found[where] - starts[where] for where in ends}
    assert all(0 <= moved[where] <= backlog[where] for where in ends)
    assert all(moved[where] >= 1 for where in ends if backlog[where])
    taken = sum(moved.values()) * each
    assert taken <= limit + each * len(ends)  # each moves by one message, however large
    if sum(backlog.values()) * each > limit:
        slack = len(ends) * each + sum(backlog.values()) * each / 2_000
        assert taken >= limit - slack


def test_a_limit_of_bytes_sees_where_messages_are_large() -> None:
    def sizes(wanted: "object") -> dict[TP, list[int]]:  # a thousand small ones, then large ones
        assert isinstance(wanted, dict)
        return {w: [o if o <= 1_000 else 1_000 + (o - 1_000) * 1_000 for o in offsets] for w, offsets in wanted.items()}

    assert plan.within_bytes({A: 0}, {A: 2_000}, 11_000, sizes) == {A: 1_010}
    assert plan.within_bytes({A: 0}, {A: 2_000}, 10**9, sizes) == {A: 2_000}


# --- as Spark keeps them
def test_offsets_are_written_as_kafkas_source_writes_them_in_one_order() -> None:
    told = plan.to_json({C: 1, B: 2, A: 3, TP("a", 10): 4})
    assert str(told) == "{'a': {'0': 3, '1': 2, '10': 4}, 'b': {'0': 1}}"
    assert plan.from_json(told) == {A: 3, B: 2, TP("a", 10): 4, C: 1}


# --- edges
HELD = {A: Bounds(10, 100), B: Bounds(0, 50)}


@pytest.mark.parametrize(
    ("text", "offsets"),
    [
        ("earliest", {A: 10, B: 0}),
        ("latest", {A: 100, B: 50}),
        ("-70", {A: 30, B: 0}),
        ("committed", {A: 3, B: 0}),  # 3 is gone: it is for `expired` to say so
        ('{"a": {"0": 5, "1": "-1"}}', {A: 5, B: 49}),
    ],
)
def test_an_edge_means_an_offset_in_each_partition(text: str, offsets: dict[TP, int]) -> None:
    assert plan.placed(offsets_edge("startingOffsets", text), HELD, {}, {A: 3}) == offsets


def test_a_time_after_the_last_message_is_an_error_or_the_end() -> None:
    edge = time_edge("startingTimestamp", "7", strict=False)
    assert plan.placed(edge, HELD, {A: 20, B: -1}, {}) == {A: 20, B: 50}
    with pytest.raises(NothingThere, match="a/1 has no message at or after 7 ms"):
        plan.placed(time_edge("startingTimestamp", "7", strict=True), HELD, {A: 20, B: -1}, {})


def test_an_end_that_is_not_there_yet_is_refused() -> None:
    edge = offsets_edge("endingOffsets", '{"a": {"0": 101}}')
    with pytest.raises(BadOption, match="it ends at 100"):
        plan.check_end(edge, {A: 101}, HELD)
    plan.check_end(edge, {A: 100}, HELD)


# --- from batch to batch
def test_a_new_partition_is_named_before_it_is_read() -> None:
    first = plan.reachable({A: 5}, {A: 8, B: 90}, {B: 40})
    assert first == {A: 8, B: 40}
    assert plan.ranges({A: 5}, first) == [Range(A, 5, 8)]
    assert plan.ranges(first, plan.reachable(first, {A: 8, B: 90}, {})) == [Range(B, 40, 90)]


def test_nothing_goes_back() -> None:
    assert plan.reachable({A: 5}, {A: 3}, {}) == {A: 5}
    assert plan.ranges({A: 5}, {A: 3}) == []


def test_lost_is_what_lies_before_the_first_offset_kept_and_nothing_else() -> None:
    wanted = [Range(A, 5, 9), Range(B, 5, 9), Range(C, 5, 9)]
    kept = {A: 5, B: 7, C: 20}
    assert plan.expired(wanted, kept) == [Lost(B, 5, 7), Lost(C, 5, 9)]
    assert plan.left(wanted, kept) == [Range(A, 5, 9), Range(B, 7, 9)]
