"""The names that a leader knows: complete from some offset on, whatever was forgotten, in bounded memory."""

from hypothesis import given
from hypothesis import strategies as st

from runnel.replica.names import BITS_EACH, PAGE_NAMES_MIN, Names, Place


def filled(count: int, start: int = 0) -> Names:
    names = Names(start)
    for offset in range(start, start + count):
        names.note(f"n{offset}", Place(offset, offset))
    return names


def test_the_last_ones_are_found_and_those_before_suspected_where_they_lie() -> None:
    names = filled(1_000)
    names.trim(100, 1 << 20, -1)
    assert len(names) == 100
    assert names.covered == 0
    assert names.find("n950", 0) == Place(950, 950)
    assert names.find("n950", 951) is None
    assert names.find("n50", 0) is None
    assert names.suspects("n50", 0) == [(0, 900)]
    assert names.suspects("n50", 900) == []
    assert sum(bool(names.suspects(f"x{number}", 0)) for number in range(10_000)) < 5


def test_pages_grow_and_the_oldest_go_first() -> None:
    names = filled(5 * PAGE_NAMES_MIN)
    names.trim(0, 1 << 30, -1)
    first, second = PAGE_NAMES_MIN, 3 * PAGE_NAMES_MIN
    assert [names.suspects(f"n{at}", 0)[0] for at in (0, first, second)] == [
        (0, first), (first, second), (second, 5 * PAGE_NAMES_MIN),
    ]  # fmt: skip
    assert names.page_bytes == (1 + 2 + 4) * PAGE_NAMES_MIN * BITS_EACH // 8
    names.trim(0, names.page_bytes - 1, -1)
    assert names.covered == first
    assert not names.knows(first - 1)
    assert names.knows(first)
    names.trim(0, 1 << 30, second)
    assert names.covered == second, "its names were all too old"


def test_one_that_comes_again_is_the_last() -> None:
    names = filled(10)
    names.note("n3", Place(10, 10))
    names.trim(5, 0, -1)
    assert names.find("n3", 0) == Place(10, 10)
    assert names.covered == 6


@given(st.integers(0, 40), st.integers(0, 40), st.integers(0, 50), st.integers(0, 50))
def test_what_another_knows_of_before_is_taken_over(older: int, newer: int, kept_older: int, kept_newer: int) -> None:
    before, names = filled(older), filled(newer, older)
    before.trim(kept_older, 1 << 20, -1)
    names.trim(kept_newer, 1 << 20, -1)
    names.extend(before)
    assert names.covered == 0
    for offset in range(older + newer):
        name = f"n{offset}"
        found = names.find(name, 0)
        assert found == Place(offset, offset) or any(a <= offset < b for a, b in names.suspects(name, 0))
