"""The page about the protocol says what the door does."""

from tools import protocol_reference as tool


def test_the_page_is_up_to_date() -> None:
    assert tool.PAGE.read_text() == tool.page(), "run python tools/protocol_reference.py"
