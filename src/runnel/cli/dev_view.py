"""What `runnel dev` shows: one live view on a terminal, plain lines elsewhere."""

import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from runnel.cli.output import plural
from runnel.dev.children import State
from runnel.dev.cluster import DevCluster
from runnel.dev.events import Sight, notable
from runnel.dev.zookeeper import mode_of

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.live import Live
    from rich.table import Table

LINES_SHOWN = 12  # of what happened last
COLUMNS = ("", "BROKER", "PID", "ADDRESS", "STATE", "LEADS", "HOLDS", "BEHIND")


class Screen:
    """What is known of the cluster, and how it is shown: here, a line for everything that happens."""

    def __init__(self) -> None:
        self.cluster: DevCluster | None = None
        self.zookeeper = "starting"
        self._sight: Sight | None = None
        self._silent = False
        self._again: set[int] = set()  # brokers that somebody else started again
        self._left: set[int] = set()  # brokers whose process ended, and whom the cluster has missed since

    def tell(self, line: str) -> None:
        click.echo(f"{time.strftime('%H:%M:%S')} {line}")
        sys.stdout.flush()

    def see(self, sight: Sight | None) -> None:
        """Take note of a look at the cluster; None: nobody answered."""
        if sight is None:
            if not self._silent:
                self.tell("no broker answers")
            self._silent = True
            return
        for line in notable(self._sight, sight):
            self.tell(line)
        self._sight, self._silent = sight, False
        ended = {c.number for c in self.cluster.brokers if c.state is State.ENDED} if self.cluster else set()
        self._left |= ended - set(sight.view.brokers)

    def forget(self) -> None:
        """What was seen of the cluster holds no longer."""
        self._sight = None

    def ask_zookeeper(self) -> str:
        """How each ZooKeeper server is; it may take a moment."""
        addresses = self._zookeeper_addresses()
        states = []
        for address in addresses:
            host, _, port = address.rpartition(":")
            mode = mode_of(host, int(port)) if port.isdigit() else None
            states.append(f"{address} {mode or 'does not answer'}")
        return ", ".join(states)

    def _zookeeper_addresses(self) -> list[str]:
        if self.cluster is None:
            return []
        if self.cluster.zookeeper is not None:
            return [self.cluster.zookeeper.address]
        return (self.cluster.plan.zookeeper or "").partition("/")[0].split(",")

    def draw(self) -> None:
        """Show how things are now."""

    # --- rows
    def rows(self) -> list[tuple[str, ...]]:
        """One for each broker, also for those that somebody else started."""
        children = {child.number: child for child in self.cluster.brokers} if self.cluster else {}
        self._again = {child.number for child in children.values() if child.successor()}
        seen = self._sight.view.brokers if self._sight else {}
        return [self._row(number) for number in sorted({*children, *seen})]

    def _row(self, number: int) -> tuple[str, ...]:
        child = next((c for c in self.cluster.brokers if c.number == number), None) if self.cluster else None
        registered = self._sight.view.brokers.get(number) if self._sight else None
        share = self._sight.health.shares.get(number) if self._sight else None
        controller = self._sight is not None and self._sight.view.controller_id == number
        return (
            "*" if controller else "",
            str(number),
            str(child.pid or "-") if child else "-",
            str(registered) if registered else child.address if child else "-",
            self._state(number, child.state if child else None, registered is not None),
            f"{share.leads:,}" if share else "-",
            f"{share.holds:,}" if share else "-",
            f"{share.behind:,}" if share else "-",
        )

    def _state(self, number: int, state: State | None, registered: bool) -> str:
        """The process's state, and whether the cluster agrees."""
        if state is State.ENDED and number in self._again:
            return "serving, not ours" if registered else "starting, not ours"
        if state is State.ENDED and registered and number not in self._left:
            return "ended, not missed yet"
        if state is None or state is State.ENDED:
            return "serving, not ours" if registered else "ended"
        if state is State.SERVING and self._sight is not None and not registered:
            return "out of the cluster"
        return state

    def summary(self) -> str:
        if self._sight is None:
            return "no broker answers"
        health = self._sight.health
        parts = [plural(health.partitions, "partition")]
        parts += [f"{len(health.under_replicated):,} under-replicated"]
        parts += [f"{len(health.offline):,} without a leader"] if health.offline else []
        return ", ".join(parts)


class LiveScreen(Screen):
    """On a terminal: everything in one place, drawn anew when it changes."""

    def __init__(self, live: "Live") -> None:
        super().__init__()
        self._live = live
        self._lines: deque[str] = deque(maxlen=LINES_SHOWN)

    def tell(self, line: str) -> None:
        self._lines.append(f"{time.strftime('%H:%M:%S')} {line}")
        self.draw()

    def draw(self) -> None:
        self._live.update(self._drawing(), refresh=True)

    def _drawing(self) -> "Group":
        from rich.console import Group
        from rich.text import Text

        cluster_id = self._sight.view.cluster_id if self._sight else None
        parts: list[RenderableType] = [
            Text(f"Runnel cluster {cluster_id or ''}".strip(), style="bold"),
            Text(f"ZooKeeper  {self.zookeeper}"),
            Text(f"Cluster    {self.summary()}"),
            Text(""),
            self._table(),
            Text("* controller", style="dim"),
            Text(""),
            *(Text(line, overflow="fold") for line in self._lines),
        ]
        return Group(*parts)

    def _table(self) -> "Table":
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for title in COLUMNS:
            table.add_column(title, justify="right" if title in COLUMNS[1:3] + COLUMNS[5:] else "left")
        for row in self.rows():
            table.add_row(*(Text(cell, style=_style(row, n)) for n, cell in enumerate(row)))
        return table


def _style(row: tuple[str, ...], column: int) -> str:
    title = COLUMNS[column]
    if title == "STATE":
        return {"serving": "green", "starting": "yellow", "stopping": "yellow"}.get(row[column], "red")
    return "red" if title == "BEHIND" and row[column] not in ("0", "-") else ""


@contextmanager
def screen() -> "Iterator[Screen]":
    """The view that fits where stdout goes."""
    if not sys.stdout.isatty():
        yield Screen()
        return
    from rich.live import Live

    with Live(auto_refresh=False, vertical_overflow="visible") as live:
        yield LiveScreen(live)
