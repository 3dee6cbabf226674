"""What commands print: tables for people, JSON for programs, progress on stderr, and questions before harm.

A table is drawn by rich on a terminal, and is plain columns elsewhere: `runnel topic ls | awk '{print $1}'` works.
What is printed for people may come from anybody: nothing of it is more than letters to a terminal.
"""

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

LAST_CHARS_MIN = 16  # of the last column, which holds values: they may go over several lines


class Column(NamedTuple):
    title: str
    right: bool = False  # numbers


def left(*titles: str) -> list[Column]:
    return [Column(title) for title in titles]


def right(*titles: str) -> list[Column]:
    return [Column(title, True) for title in titles]


def plain(text: str) -> str:
    """A text on one line, of letters alone."""
    return text if text.isprintable() else "".join(letter if letter.isprintable() else "·" for letter in text)


def say(text: str) -> None:
    """One line for people, which holds names or words of others."""
    click.echo(plain(text))


def print_json(value: Any) -> None:
    """One JSON value on one line."""
    import json

    click.echo(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def print_table(columns: Sequence[Column], rows: Iterable[Sequence[object]], *, none: str | None = None) -> None:
    """Rows under their titles; where there are none, `none` is said on stderr instead."""
    texts = [[_text(cell) for cell in row] for row in rows]
    if not texts and none is not None:
        note(none)
        return
    if sys.stdout.isatty():
        _draw(columns, texts)
        return
    widths = [max([len(c.title), *(len(row[n]) for row in texts)]) for n, c in enumerate(columns)]
    for row in [[c.title for c in columns], *texts]:
        cells = [t.rjust(w) if c.right else t.ljust(w) for t, w, c in zip(row, widths, columns, strict=True)]
        click.echo("  ".join(cells).rstrip())


def print_changes(
    what: dict[str, str], changes: Sequence[tuple[str, str | None, str | None]], *, dry_run: bool, as_json: bool
) -> None:
    """Settings of something as they were and as they are."""
    if as_json:
        rows = [{"setting": name, "before": before, "after": after} for name, before, after in changes]
        print_json(what | {"changed": not dry_run, "settings": rows})
        return
    print_table(left("SETTING", "BEFORE", "AFTER"), changes)
    if dry_run:
        click.echo("Nothing was changed (--dry-run).")


def _text(cell: object) -> str:
    return "-" if cell is None or cell == "" else plain(str(cell))


def _draw(columns: Sequence[Column], rows: list[list[str]]) -> None:
    """On a terminal: as a table if no word has to be broken, which nobody could copy; else line by line."""
    from rich.console import Console

    console = Console()
    for gap in (2, 1):
        widths = _widths(columns, rows, console.width - gap * (len(columns) - 1))
        if widths is not None:
            _draw_table(console, columns, rows, widths, gap)
            return
    _draw_lines(columns, rows)


def _widths(columns: Sequence[Column], rows: list[list[str]], room: int) -> list[int] | None:
    """How wide columns are, if they fit. Those with room to spare give way; only the last may break a word."""
    from rich.cells import cell_len

    cells = [[column.title, *(row[n] for row in rows)] for n, column in enumerate(columns)]
    widths = [max(map(cell_len, column)) for column in cells]
    least = [
        width if column.right else max(cell_len(word) for cell in texts for word in cell.split() or [""])
        for column, texts, width in zip(columns, cells, widths, strict=True)
    ]
    least[-1] = min(least[-1], max(LAST_CHARS_MIN, cell_len(columns[-1].title)))
    while (excess := sum(widths) - room) > 0:
        slack, n = max((width - low, n) for n, (width, low) in enumerate(zip(widths, least, strict=True)))
        if slack == 0:
            return None
        widths[n] -= min(slack, excess)
    return widths


def _draw_table(
    console: "Console", columns: Sequence[Column], rows: list[list[str]], widths: list[int], gap: int
) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")
    for column, width in zip(columns, widths, strict=True):
        table.add_column(column.title, justify="right" if column.right else "left", overflow="fold", width=width)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console.print(table)


def _draw_lines(columns: Sequence[Column], rows: list[list[str]]) -> None:
    """Each cell behind its title, a paragraph for each row."""
    width = max(len(column.title) for column in columns)
    for number, row in enumerate(rows):
        if number:
            click.echo()
        for column, cell in zip(columns, row, strict=True):
            click.echo(f"{column.title.ljust(width)}  {cell}")


def bytes_text(size: int | None) -> str:
    """A size as people read it."""
    if size is None:
        return "-"
    if size < 1024:
        return f"{size} B"
    amount = float(size)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        amount /= 1024
        if amount < 1024 or unit == "TiB":
            break
    return f"{amount:.1f} {unit}"


def note(text: str) -> None:
    """A remark for people, on stderr: stdout holds results alone."""
    click.echo("\n".join(map(plain, text.split("\n"))), err=True)


def note_silent(brokers: Sequence[int]) -> None:
    """Say that a list lacks what these brokers would have told."""
    for number in brokers:
        note(f"Broker {number} did not answer: what it coordinates is not listed.")


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


class Refusal(click.ClickException):
    """The command was right, but not here and now."""

    exit_code = 2


def confirm(question: str, *, yes: bool) -> None:
    """Ask before harm. Where nobody can answer, refuse."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refusal(f"{question} Nobody can be asked, since stdin is no terminal: repeat it with --yes.")
    if not click.confirm(f"{question} Go on?", err=True):
        note("Nothing was changed.")
        raise click.exceptions.Exit(1)


def progress() -> "Progress":
    """A progress display on stderr; shows nothing where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=not sys.stderr.isatty(),
        transient=True,
    )
