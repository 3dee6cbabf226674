"""Lines out of chunks, wherever the chunks end."""

import click
import pytest

from runnel.cli.source import _Cutter


def cut(cutter: _Cutter, *chunks: bytes) -> list[bytes]:
    return [line for chunk in chunks for line in cutter.feed(chunk)]


@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_a_delimiter_may_lie_across_chunks(size: int) -> None:
    text = b"one\r\ntwo\r\r\n\r\nthree\r\nrest\r"
    cutter = _Cutter(b"\r\n", 1000, "stdin")
    found = cut(cutter, *(text[at : at + size] for at in range(0, len(text), size)))
    assert (found, bytes(cutter.rest)) == ([b"one", b"two\r", b"", b"three"], b"rest\r")


def test_a_long_line_takes_time_in_proportion_to_its_length() -> None:
    """If each chunk had all before it copied, this would copy 800 GB."""
    cutter = _Cutter(b"\n", 2**30, "stdin")
    assert cut(cutter, *[b"x" * 4096] * 20_000, b"\n") == [b"x" * 4096 * 20_000]


def test_a_line_that_no_message_can_hold_is_refused_as_soon_as_that_is_known() -> None:
    cutter = _Cutter(b"\n", 10, "orders.txt")
    assert cut(cutter, b"short\n", b"1234567890") == [b"short"]
    with pytest.raises(click.ClickException, match=r"line 2 of orders\.txt is above 10 B"):
        cut(cutter, b"1")


def test_a_line_that_is_too_long_is_refused_after_those_before_it() -> None:
    lines = _Cutter(b"\n", 10, "stdin").feed(b"short\n12345678901\n")
    assert next(lines) == b"short"
    with pytest.raises(click.ClickException, match="line 2 of stdin"):
        next(lines)
