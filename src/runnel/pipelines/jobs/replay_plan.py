"""Into which batches a replay is cut. Pure, but for keeping the plan in a file.

Rule 1: a plan is made once and kept: whoever goes on with a replay writes the same batches under the same numbers, so
        that the sink knows which are there.
Rule 2: the name of the sink has the plan in it: another plan is another sink, and never takes its batches for its own.
Rule 3: batches follow each other by time, roughly; in each partition exactly by offset.
"""

import hashlib
import heapq
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from runnel.pipelines.errors import BadOption

GRANULES_MAX = 200_000  # that a plan is made from
PER_BATCH = 16  # granules, so that a batch is as long as it should be to a sixteenth


class Granule(NamedTuple):
    """Some rows of one partition that stay together."""

    topic: str
    partition: int
    number: int
    rows: int
    at_ms: int  # of the earliest


class Piece(NamedTuple):
    """Offsets of one partition."""

    topic: str
    partition: int
    first: int
    end: int


@dataclass(frozen=True, slots=True)
class Batch:
    """What is published at once."""

    rows: int
    pieces: tuple[Piece, ...]


def granule_bits(rows_total: int, batch_rows: int) -> int:
    """How many offsets a granule has, as a power of two."""
    finest = max(1, rows_total // GRANULES_MAX)
    return max(finest - 1, batch_rows // PER_BATCH - 1).bit_length()


def cut(granules: Iterable[Granule], bits: int, batch_rows: int) -> list[Batch]:
    """Batches of so many rows, or of one granule if that has more."""
    batches: list[Batch] = []
    taken: list[Granule] = []
    rows = 0
    for granule in by_time(granules):
        if taken and rows + granule.rows > batch_rows:
            batches.append(_batch(taken, bits))
            taken, rows = [], 0
        taken.append(granule)
        rows += granule.rows
    return [*batches, _batch(taken, bits)] if taken else batches


def by_time(granules: Iterable[Granule]) -> Iterable[Granule]:
    """The granules of each partition in their order, those of different partitions by time."""
    lines: dict[tuple[str, int], list[Granule]] = {}
    for granule in sorted(granules, reverse=True):
        lines.setdefault((granule.topic, granule.partition), []).append(granule)
    heads = [(line[-1].at_ms, where) for where, line in lines.items()]
    heapq.heapify(heads)
    while heads:
        _, where = heapq.heappop(heads)
        yield lines[where].pop()
        if lines[where]:
            heapq.heappush(heads, (lines[where][-1].at_ms, where))


def _batch(taken: Sequence[Granule], bits: int) -> Batch:
    spans: dict[tuple[str, int], tuple[int, int]] = {}
    for granule in taken:
        first, end = granule.number << bits, granule.number + 1 << bits
        known = spans.get((granule.topic, granule.partition), (first, end))
        spans[granule.topic, granule.partition] = (min(known[0], first), max(known[1], end))
    pieces = tuple(Piece(*where, *span) for where, span in sorted(spans.items()))
    return Batch(sum(granule.rows for granule in taken), pieces)


# --- kept
@dataclass(frozen=True, slots=True)
class Plan:
    """A replay, from its first batch to its last."""

    id: str
    asked: Mapping[str, Any]  # what it was asked for
    version: int  # of the lake
    batches: tuple[Batch, ...]

    @property
    def sink(self) -> str:
        return f"replay-{self.id}-{_digest([self.asked, self.version, _plain(self.batches)])}"

    @property
    def rows(self) -> int:
        return sum(batch.rows for batch in self.batches)


def id_of(asked: Mapping[str, Any]) -> str:
    """A name for a replay that was given none: the same for the same question."""
    return _digest(dict(asked))


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _plain(batches: Sequence[Batch]) -> list[Any]:
    return [[batch.rows, [list(piece) for piece in batch.pieces]] for batch in batches]


class PlanFile:
    """A plan, and how many of its batches are known to be written."""

    def __init__(self, folder: str) -> None:
        self._plan, self._done = Path(folder, "plan.json"), Path(folder, "done")

    def load(self, asked: Mapping[str, Any], id_: str) -> Plan | None:
        """The plan that was kept; a BadOption if it is one of something else."""
        if not self._plan.exists():
            return None
        told = json.loads(self._plan.read_text())
        if told["asked"] != json.loads(json.dumps(dict(asked))) or told["id"] != id_:
            raise BadOption("id", id_, f"{self._plan.parent} has another replay: choose another id, or another folder")
        batches = tuple(Batch(rows, tuple(Piece(*piece) for piece in pieces)) for rows, pieces in told["batches"])
        return Plan(told["id"], told["asked"], told["version"], batches)

    def save(self, plan: Plan) -> None:
        told = {"id": plan.id, "asked": dict(plan.asked), "version": plan.version, "batches": _plain(plan.batches)}
        _write(self._plan, json.dumps(told))

    @property
    def done(self) -> int:
        """How many batches are surely there; the sink knows of those that came after."""
        return int(self._done.read_text()) if self._done.exists() else 0

    def note(self, done: int) -> None:
        _write(self._done, str(done))


def _write(path: Path, text: str) -> None:
    """Replace a file, so that it is the old one or the new one whenever the machine stops."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    with fresh.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)
