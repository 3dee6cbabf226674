"""The format language."""

import pytest

from runnel.cli.template import compile_template, iso_of
from runnel.client.consumer import Message

MESSAGE = Message("orders", 3, 42, 1_700_000_000_123, b"key", b"value", (("a", b"1"), ("b", None)))
BARE = Message("t", 0, 0, -1, None, None, ())


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("%s\\n", b"value\n"),
        ("%t/%p@%o", b"orders/3@42"),
        ("%k:%K %s:%S", b"key:3 value:5"),
        ("%T %I", b"1700000000123 2023-11-14T22:13:20.123Z"),
        ("%h", b"a=1,b=NULL"),
        ("100%% \\t\\\\\\x41", b"100% \t\\A"),
        ("plain", b"plain"),
        ("", b""),
    ],
)
def test_fields_and_characters(template: str, text: bytes) -> None:
    assert compile_template(template)(MESSAGE) == text


def test_what_is_null_is_empty_with_length_minus_1() -> None:
    assert compile_template("[%k][%K][%s][%S][%h][%I]")(BARE) == b"[][-1][][-1][][]"


@pytest.mark.parametrize(
    ("template", "problem"), [("%q", "%q is not known"), ("\\q", "is not known"), ("%", "single %")]
)
def test_what_is_not_known_is_named(template: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        compile_template(template)


def test_times_no_calendar_has() -> None:
    assert (iso_of(-1), iso_of(2**62)) == (None, None)
