"""The reference page says what the code does."""

from tools import settings_reference as tool


def test_the_page_is_up_to_date() -> None:
    assert tool.PAGE.read_text() == tool.page(), "run python tools/settings_reference.py"
