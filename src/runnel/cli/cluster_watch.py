"""Watching replicas move: how far each copy is, how fast it goes, how long it will take."""

import asyncio
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from runnel.cli.output import bytes_text, note, plural
from runnel.client.admin import Disk
from runnel.client.cluster import Cluster
from runnel.client.cluster_admin import ClusterAdmin, Reassignment
from runnel.client.metadata import ClusterView, TopicPartition

if TYPE_CHECKING:
    from rich.console import Group

LOOK_S = 1.0
LINE_EVERY_S = 5.0  # where there is no terminal
COPIES_SHOWN = 15


class Copy(NamedTuple):
    """One new replica on its way."""

    where: TopicPartition
    broker: int
    copied_bytes: int
    size_bytes: int  # at the leader
    in_sync: bool

    @property
    def share(self) -> float:
        if self.in_sync:
            return 1.0
        return min(1.0, self.copied_bytes / self.size_bytes) if self.size_bytes else 0.0


def copies_of(
    moving: Mapping[TopicPartition, Reassignment], view: ClusterView, disks: Mapping[int, Disk | None]
) -> Iterator[Copy]:
    """How far the new replicas are, as the sizes on the brokers' disks say."""

    def size(broker: int, where: TopicPartition) -> int:
        disk = disks.get(broker)
        return disk.sizes.get(where, 0) if disk is not None else 0

    for where, reassignment in moving.items():
        topic = view.topics.get(where.topic)
        partition = topic.partitions.get(where.partition) if topic else None
        if partition is None:
            continue
        for broker in reassignment.adding:
            yield Copy(where, broker, size(broker, where), size(partition.leader, where), broker in partition.in_sync)


@dataclass(slots=True)
class Progress:
    """All copies together, from the first look on."""

    began_s: float
    began_bytes: int | None = None
    partitions: int = 0  # those that were told to move, or the most that were seen moving
    moving: int = 0
    copied_bytes: int = 0
    size_bytes: int = 0
    now_s: float = 0.0

    def note(self, moving: int, copies: list[Copy], now_s: float) -> None:
        copied = sum(min(copy.copied_bytes, copy.size_bytes) for copy in copies)
        size = sum(copy.size_bytes for copy in copies)
        if self.began_bytes is None:
            self.began_bytes = copied
        if size < self.size_bytes:  # some are done: all of them counts as copied
            copied, size = max(copied + self.size_bytes - size, self.copied_bytes), self.size_bytes
        self.partitions = max(self.partitions, moving)
        self.moving, self.copied_bytes, self.size_bytes, self.now_s = moving, copied, size, now_s

    @property
    def rate(self) -> float:
        """Bytes a second since the first look."""
        return max(0, self.copied_bytes - (self.began_bytes or 0)) / max(self.now_s - self.began_s, 1e-9)

    def text(self) -> str:
        done = self.partitions - self.moving
        left = self.size_bytes - self.copied_bytes
        words = [f"{done:,} of {plural(self.partitions, 'partition')} done"]
        words.append(f"{bytes_text(self.copied_bytes)} of {bytes_text(self.size_bytes)} copied")
        if self.rate >= 1:
            words.append(f"{bytes_text(int(self.rate))}/s")
            words += [f"about {_duration(left / self.rate)} left"] if left else []
        return ", ".join(words)


def _duration(seconds: float) -> str:
    whole = max(1, round(seconds))
    hours, minutes = whole // 3600, whole % 3600 // 60
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {whole % 60} s" if minutes else f"{whole} s"


async def watch(cluster: Cluster, partitions: Collection[TopicPartition] | None) -> int:
    """Show how far these moves are (None: all that there are) until they are done; returns how many there were."""
    admin = ClusterAdmin(cluster)
    rates = await admin.copy_rates()
    progress = Progress(time.monotonic(), partitions=len(partitions or ()))  # some may be done at the first look
    with _display() as display:
        while moving := _of(await admin.reassignments(), partitions):
            view = await admin.admin.view({where.topic for where in moving})
            copies = list(copies_of(moving, view, await admin.disks()))
            progress.note(len(moving), copies, time.monotonic())
            display.show(progress, copies, rates)
            await asyncio.sleep(LOOK_S)
    return progress.partitions


def _of(
    moving: Mapping[TopicPartition, Reassignment], partitions: Collection[TopicPartition] | None
) -> dict[TopicPartition, Reassignment]:
    return {where: value for where, value in moving.items() if partitions is None or where in partitions}


# --- showing
class _Lines:
    """Where stderr is no terminal: a line now and then."""

    def __init__(self) -> None:
        self._next_s = 0.0

    def show(self, progress: Progress, copies: list[Copy], rates: Mapping[int, int]) -> None:
        if progress.now_s >= self._next_s:
            self._next_s = progress.now_s + LINE_EVERY_S
            note(progress.text())

    def __enter__(self) -> "_Lines":
        return self

    def __exit__(self, *_: object) -> None:
        pass


class _Live(_Lines):
    """On a terminal: every copy, drawn anew at each look."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live

        self._live = Live(console=Console(stderr=True), auto_refresh=False, transient=True)

    def show(self, progress: Progress, copies: list[Copy], rates: Mapping[int, int]) -> None:
        self._live.update(_drawing(progress, copies, rates), refresh=True)

    def __enter__(self) -> "_Live":
        self._live.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()


def _display() -> _Lines:
    return _Live() if sys.stderr.isatty() else _Lines()


def _drawing(progress: Progress, copies: list[Copy], rates: Mapping[int, int]) -> "Group":
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for title in ("PARTITION", "TO BROKER", "COPIED", "OF", "", ""):
        table.add_column(title, justify="right" if title in ("TO BROKER", "COPIED", "OF") else "left")
    for copy in sorted(copies, key=lambda copy: (copy.in_sync, -copy.share))[:COPIES_SHOWN]:
        table.add_row(
            Text(str(copy.where)),
            Text(str(copy.broker)),
            Text(bytes_text(copy.copied_bytes)),
            Text(bytes_text(copy.size_bytes)),
            ProgressBar(total=1.0, completed=copy.share, width=24),
            Text("in sync" if copy.in_sync else f"{copy.share:.0%}"),
        )
    rest = len(copies) - COPIES_SHOWN
    lines = [Text(f"... and {rest:,} more", style="dim")] if rest > 0 else []
    throttled = ", ".join(f"broker {number} {bytes_text(rate)}/s" for number, rate in rates.items())
    lines += [Text(f"throttled: {throttled}", style="yellow")] if throttled else []
    return Group(table, *lines, Text(progress.text()), Text("Ctrl-C ends the watching; the moves go on.", style="dim"))
