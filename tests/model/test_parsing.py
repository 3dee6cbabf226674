"""Texts that are numbers, and those that only look like it."""

import pytest

from runnel.model.parsing import INT32_MAX, INT64_MAX, digits


def test_plain_digits_are_a_number() -> None:
    assert [digits(text) for text in ("0", "17", "007", str(INT64_MAX))] == [0, 17, 7, INT64_MAX]
    assert digits(str(INT32_MAX), INT32_MAX) == INT32_MAX


@pytest.mark.parametrize("text", ["", " 1", "-1", "+1", "1_0", "²", "٣", "1.0", str(INT64_MAX + 1), "1" * 5_000])
def test_nothing_else_is(text: str) -> None:
    assert digits(text) is None
    assert digits(str(INT32_MAX + 1), INT32_MAX) is None
