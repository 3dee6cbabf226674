"""A number that others wrote is read, or is none; nothing is raised."""

import pytest

from runnel.model.numbers import whole_number

NO_NUMBERS = ("", "-", "--5", "-5-", "+5", " 5", "5 ", "5\n", "1_000", "1.5", "0x1", "five", "²", "٣", "9" * 5_000)


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("-0", 0), ("007", 7), ("-5", -5), (str(2**63 - 1), 2**63 - 1), (str(-(2**63)), -(2**63))],
)
def test_digits_with_one_minus_or_none_are_a_number(text: str, number: int) -> None:
    assert (whole_number(text), whole_number(text.encode())) == (number, number)


@pytest.mark.parametrize("text", [*NO_NUMBERS, str(2**63), str(-(2**63) - 1), "0" * 20])
def test_what_64_bits_do_not_hold_and_what_is_written_otherwise_is_none(text: str) -> None:
    assert (whole_number(text), whole_number(text.encode())) == (None, None)


def test_bytes_that_are_no_text_are_no_number() -> None:
    assert whole_number(b"\xff5") is None
