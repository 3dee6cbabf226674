"""Spans of time, as they are written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.cli.time_language import parse_span_ms, span_text


@pytest.mark.parametrize(
    ("text", "ms"),
    [("250ms", 250), ("30s", 30_000), ("5m", 300_000), ("2h", 7_200_000), ("7d", 604_800_000), ("1h30m", 5_400_000),
     ("1.5s", 1_500), (" 2H ", 7_200_000), ("0s", 0)],
)  # fmt: skip
def test_spans(text: str, ms: int) -> None:
    assert parse_span_ms(text) == ms


@pytest.mark.parametrize("text", ["", "5", "soon", "5 m", "-5s", "5m!", "s", "5mm"])
def test_what_is_no_span_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no span of time"):
        parse_span_ms(text)


@given(st.integers(0, 10_000))
def test_whole_seconds_below_an_hour_are_read_as_they_are_shown(seconds: int) -> None:
    shown = span_text(seconds * 1_000)
    assert parse_span_ms(shown) == seconds * 1_000 or seconds >= 3_600
