"""The words for places in a partition."""

from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.cli.offset_language import parse, parse_time_ms, shown
from runnel.client.positions import From, Position


@pytest.mark.parametrize(
    ("word", "position"),
    [
        ("start", Position(From.START)),
        ("end", Position(From.END)),
        ("+3", Position(From.START, 3)),
        ("-3", Position(From.END, 3)),
        ("42", Position(From.OFFSET, 42)),
        ("stored", Position(From.STORED)),
        ("stored+5", Position(From.STORED, 5)),
        ("stored-5", Position(From.STORED, -5)),
        ("@1700000000123", Position(From.TIME, 1_700_000_000_123)),
        ("@2023-11-14T22:13:20Z", Position(From.TIME, 1_700_000_000_000)),
        ("@2023-11-14T22:13:20.123+00:00", Position(From.TIME, 1_700_000_000_123)),
    ],
)
def test_parse(word: str, position: Position) -> None:
    assert parse(word) == position


@pytest.mark.parametrize("word", ["", "begin", "+", "-", "+x", "1.5", "@", "@yesterday", "stored5", "--3"])
def test_what_is_no_place(word: str) -> None:
    with pytest.raises(ValueError, match=r"is no place in a partition|is no time"):
        parse(word)


def test_a_day_is_a_time_in_the_local_zone() -> None:
    assert parse_time_ms("20231114") == parse_time_ms("2023-11-14")
    assert parse_time_ms("2023-11-14") == int(datetime(2023, 11, 14).timestamp() * 1000)


@given(
    st.builds(Position, st.sampled_from([From.START, From.END, From.OFFSET]), st.integers(0, 2**62))
    | st.builds(Position, st.just(From.STORED), st.integers(-(2**40), 2**40))
    | st.builds(Position, st.just(From.TIME), st.integers(10**9, 2**62))
)
def test_what_is_shown_can_be_typed(position: Position) -> None:
    assert parse(shown(position)) == position
