"""What programs hand in, as it is stored."""

from datetime import UTC, datetime, timedelta
from math import inf, nan

import pytest

from runnel.client.values import Message, bytes_of, due_ms, headers_of, milliseconds
from runnel.model.errors import InvalidConfig, InvalidRecord
from runnel.model.ids import Millis


class At:
    def wall_ms(self) -> Millis:
        return Millis(1_000_000)

    def monotonic_ms(self) -> Millis:
        return Millis(0)


@pytest.mark.parametrize(
    ("value", "stored"),
    [(b"x", b"x"), ("é", "é".encode()), (None, None), ({"a": [1]}, b'{"a":[1]}'), (7, b"7"), (bytearray(b"y"), b"y")],
)
def test_bytes_and_text_stay_what_they_are_and_all_else_is_json(value: object, stored: bytes | None) -> None:
    assert bytes_of(value) == stored


def test_headers_keep_their_order() -> None:
    assert headers_of({"b": "1", "a": b"\x00", "c": None}) == [("b", b"1"), ("a", b"\x00"), ("c", None)]


def test_a_header_that_is_neither_text_nor_bytes_is_refused() -> None:
    with pytest.raises(InvalidConfig, match="header 'tries' can't be 3: use text or bytes"):
        headers_of({"tries": 3})  # type: ignore[arg-type]


def test_a_time_is_never_rounded_to_an_earlier_one() -> None:
    assert milliseconds(0.0101) == 11
    assert milliseconds(timedelta(seconds=2)) == 2_000
    assert due_ms(At(), 1.5, None) == 1_001_500
    assert due_ms(At(), None, datetime(2030, 1, 1, tzinfo=UTC)) == 1_893_456_000_000
    assert due_ms(At(), None, None) is None


@pytest.mark.parametrize(
    ("delay", "at"),
    [(1.0, datetime(2030, 1, 1, tzinfo=UTC)), (None, datetime(2030, 1, 1)), (-1.0, None), (nan, None), (inf, None)],
)
def test_a_time_that_is_not_clear_is_refused(delay: float | None, at: datetime | None) -> None:
    with pytest.raises(InvalidConfig):
        due_ms(At(), delay, at)


@pytest.mark.parametrize("value", [b"hello", b"\xff", b"{"])
def test_a_value_that_is_not_json_is_refused_with_the_place_of_its_message(value: bytes) -> None:
    with pytest.raises(InvalidRecord, match="orders/3@7 is not JSON"):
        Message("orders", 3, 7, 0, None, value).json()
