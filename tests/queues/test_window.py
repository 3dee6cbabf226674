"""The exact state of every offset, in runs: beside a plain list, and in what it costs."""

from hypothesis import given
from hypothesis import strategies as st

from runnel.queues.records import Mark
from runnel.queues.status import DONE_STATUS, LEASED, READY, WAIT, Status
from runnel.queues.values import Counters
from runnel.queues.window import CHUNK, Window

STATUSES = [Status(READY, 1), Status(LEASED, 1, 50, "a"), Status(LEASED, 2, 0, "b"), Status(WAIT, 1, 70), DONE_STATUS]
Puts = list[tuple[int, int, Status]]


def flush(window: Window) -> list[tuple[bytes, bytes | None]]:
    records: list[tuple[bytes, bytes | None]] = []
    window.flush(Mark(window.done, window.next, 0, "", Counters()), records)
    return records


def begun(first: int) -> Window:
    window = Window()
    window.reset(first)
    flush(window)
    return window


@given(
    st.lists(st.tuples(st.integers(0, 3_000), st.integers(0, 1_500), st.sampled_from(STATUSES)), max_size=30),
    st.integers(0, 1_500),
)
def test_it_says_what_a_list_says(puts: Puts, first: int) -> None:
    window, rows = begun(first), [DONE_STATUS] * first
    for at, length, status in puts:
        open_ones = [at for at in range(at, at + length) if at >= len(rows) or rows[at] != DONE_STATUS]
        if not open_ones:
            continue
        low = high = open_ones[0]
        while high + 1 in open_ones[high - low : high - low + 2]:
            high += 1
        rows += [Status(READY)] * (low - len(rows))
        rows[low : high + 1] = [status] * (high + 1 - low)
        window.put(low, high, status)
        said = [piece.status for piece in window.pieces(0, len(rows) - 1) for _ in range(piece.first, piece.last + 1)]
        assert said == rows
        assert window.next == len(rows)
        assert window.done == next((at for at, row in enumerate(rows) if row != DONE_STATUS), len(rows))
        assert window.open == sum(row != DONE_STATUS for row in rows)
        assert window.counts[LEASED] == sum(row.kind == LEASED for row in rows)


def test_runs_that_touch_and_are_the_same_are_one() -> None:
    window = begun(0)
    for at in (2, 0, 1, 5, 4, 3):
        window.put(at, at, Status(LEASED, 1, 9, "a"))
    assert [tuple(piece[:2]) for piece in window.pieces(0, 5)] == [(0, 5)]


def test_done_chunks_are_forgotten_wherever_they_lie() -> None:
    window = begun(0)
    window.put(0, 0, Status(LEASED, 1, 9))
    window.put(1, 10 * CHUNK - 1, DONE_STATUS)
    assert len(list(window.chunks)) == 1
    window.put(10 * CHUNK, 10 * CHUNK, Status(LEASED, 1, 9))
    assert len(list(window.chunks)) == 2
    assert window.at(5 * CHUNK) == DONE_STATUS
    window.put(0, 0, DONE_STATUS)
    assert window.done == 10 * CHUNK


def test_passing_over_a_hundred_million_costs_nothing() -> None:
    window = begun(0)
    window.put(0, 5, Status(LEASED, 1, 9))
    flush(window)
    window.pass_done(100_000_000)
    assert len(list(window.chunks)) == 1
    assert len(flush(window)) == 2
    window.put(0, 5, DONE_STATUS)
    assert window.done == 100_000_000
    assert len(flush(window)) == 2  # a tombstone and the mark


def test_waits_end_without_a_record() -> None:
    window = begun(0)
    window.put(0, 9, Status(WAIT, 1, 70))
    flush(window)
    assert window.ripen(69) == []
    assert [tuple(piece[:2]) for piece in window.ripen(70)] == [(0, 9)]
    assert window.counts[READY] == 10
    assert flush(window) == []


def test_the_next_moment_is_exact_once_something_was_due() -> None:
    window = begun(0)
    window.put(0, 0, Status(LEASED, 1, 10))
    window.put(2_000, 2_000, Status(LEASED, 1, 20))
    window.put(3_000, 3_000, Status(WAIT, 1, 30))
    window.put(0, 0, DONE_STATUS)
    assert window.due == 10
    assert window.overdue(15) == []
    window.ripen(15)
    assert window.due == 20
    assert [piece.first for piece in window.overdue(25)] == [2_000]
