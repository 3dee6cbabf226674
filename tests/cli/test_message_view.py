"""One message as people and programs see it."""

import io
import sys

import pytest

from runnel.cli.message_view import preview, print_content

TITLE = b"\x1b]0;mine\x07"


class Stdout(io.TextIOWrapper):
    """A stdout that is a terminal, or is none."""

    def __init__(self, terminal: bool) -> None:
        super().__init__(io.BytesIO(), "utf-8")
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    @property
    def written(self) -> bytes:
        self.flush()
        held = self.buffer
        assert isinstance(held, io.BytesIO)
        return held.getvalue()


@pytest.mark.parametrize("terminal", [True, False])
def test_what_a_message_holds_does_nothing_to_a_terminal(monkeypatch: pytest.MonkeyPatch, terminal: bool) -> None:
    out = Stdout(terminal)
    monkeypatch.setattr(sys, "stdout", out)
    print_content(b"k" + TITLE, b"one\n\ttwo" + TITLE, [("h" + TITLE.decode(), b"v" + TITLE)])
    head, _, value = out.written.rpartition(b"one\n")
    assert TITLE not in head
    if terminal:
        assert value == "        two·]0;mine·\n".encode()
    else:
        assert value == b"\ttwo" + TITLE + b"\n"  # programs get it as it is


def test_a_preview_is_one_line_of_letters() -> None:
    assert preview(b"a\n" + TITLE) == "a··]0;mine·"
    assert preview(b"x" * 100) == "x" * 47 + "…"
