"""What commands print."""

import click
import pytest

from runnel.cli.output import bytes_text, left, note, plural, print_table, right, say


def test_tables_are_plain_columns_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([*left("NAME"), *right("COUNT"), *left("NOTE")], [("a", 1, None), ("long", 1000, "x")])
    assert capsys.readouterr().out == "NAME  COUNT  NOTE\na         1  -\nlong   1000  x\n"


ROWS = [
    ("AZ9xQ2pLkT5mVb8nWc3rYd7s", "2026-11-17T21:36:55.123Z", "orders/0", "some words that can go over lines", "x" * 60),
    ("BZ9xQ2pLkT5mVb8nWc3rYd7s", "2026-11-17T21:36:55.123Z", "orders/1", "k", "short"),
]


def drawn(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    print_table([*left("ID", "DUE", "TOPIC", "KEY", "VALUE")], ROWS)
    return click.unstyle(capsys.readouterr().out).splitlines()


@pytest.mark.parametrize("width", [160, 100, 80, 60, 20])
def test_no_word_is_broken_on_a_narrow_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = " ".join(drawn(width, monkeypatch, capsys)).split()
    assert {"ID", "DUE", "TOPIC", "KEY", "VALUE", *(cell for row in ROWS for cell in row[:3])} <= set(words)


def test_a_table_that_does_not_fit_becomes_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(drawn(160, monkeypatch, capsys)) == 3
    lines = drawn(60, monkeypatch, capsys)
    assert lines[:2] == ["ID     AZ9xQ2pLkT5mVb8nWc3rYd7s", "DUE    2026-11-17T21:36:55.123Z"]
    assert lines[4:7] == ["VALUE  " + "x" * 60, "", "ID     BZ9xQ2pLkT5mVb8nWc3rYd7s"]


def test_an_empty_table_says_so_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(left("NAME"), [], none="There are none.")
    assert capsys.readouterr() == ("", "There are none.\n")


def test_nothing_that_others_wrote_does_anything_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    title = "\x1b]0;mine\x07"
    print_table(left("REASON", "FROM"), [(f"{title}\nno", "\x9b2J\u202eübung")])
    say(f"died: {title}\r\n")
    note(f"one: {title}\ntwo")
    told = capsys.readouterr()
    assert told.out == "REASON        FROM\n·]0;mine··no  ·2J·übung\ndied: ·]0;mine···\n"
    assert told.err == "one: ·]0;mine·\ntwo\n"


@pytest.mark.parametrize(
    ("size", "text"),
    [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (2**30, "1.0 GiB"), (2**51, "2048.0 TiB")],
)
def test_sizes(size: int | None, text: str) -> None:
    assert bytes_text(size) == text


def test_plurals() -> None:
    assert (plural(1, "message"), plural(1_000, "message")) == ("1 message", "1,000 messages")
