"""What a job that streams shows while it runs: one live line for each query on a terminal, plain lines elsewhere.

With --json, each step is a JSON line on stdout.
"""

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from runnel.cli.output import note, plural, print_json

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

    from runnel.pipelines.progress import Step

COLUMNS = ("QUERY", "BATCH", "ROWS", "ALL ROWS", "ROWS/S", "TOOK", "BEHIND")


class Screen:
    """A line for each step, on stderr."""

    def __init__(self, job: str) -> None:
        self.job = job
        self.last: dict[str, Step] = {}

    def tell(self, step: "Step") -> None:
        self.last[step.query] = step
        self.show(step)

    def show(self, step: "Step") -> None:
        note(line_of(self.job, step))

    def end(self) -> None:
        """Say what all of it was."""
        rows = sum(step.rows_total for step in self.last.values())
        note(f"{self.job}: done, {plural(rows, 'row')} in this run")


class JsonScreen(Screen):
    def show(self, step: "Step") -> None:
        print_json({"job": self.job} | dataclasses.asdict(step))
        sys.stdout.flush()


class LiveScreen(Screen):
    """On a terminal: the last step of each query, drawn anew."""

    def __init__(self, job: str, live: "Live") -> None:
        super().__init__(job)
        self._live = live

    def show(self, step: "Step") -> None:
        self._live.update(self._table(), refresh=True)

    def _table(self) -> "Table":
        from rich.table import Table

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for title in COLUMNS:
            table.add_column(title, justify="left" if title == "QUERY" else "right")
        for step in self.last.values():
            table.add_row(*cells(step))
        return table


def cells(step: "Step") -> tuple[str, ...]:
    return (
        step.query,
        f"{step.batch:,}",
        f"{step.rows:,}",
        f"{step.rows_total:,}",
        f"{step.rows_per_s:,.0f}",
        f"{step.took_ms / 1000:.1f} s",
        "-" if step.behind is None else f"{step.behind:,}",
    )


def line_of(job: str, step: "Step") -> str:
    behind = "" if step.behind is None else f", {plural(step.behind, 'message')} behind"
    return (
        f"{job}: {step.query} batch {step.batch}: {plural(step.rows, 'row')} in {step.took_ms / 1000:.1f} s "
        f"({step.rows_per_s:,.0f}/s), {step.rows_total:,} in all{behind}"
    )


@contextmanager
def screen(job: str, *, as_json: bool) -> Iterator[Screen]:
    """The view that fits where its lines go."""
    if as_json or not sys.stderr.isatty():
        yield JsonScreen(job) if as_json else Screen(job)
        return
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), auto_refresh=False) as live:
        yield LiveScreen(job, live)
