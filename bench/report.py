"""Numbers into tables: medians with their spread, and ratios taken round by round.

Rule 1: a ratio compares the two values of one round, so that what slowed both falls out; then the median is taken.
Rule 2: a value that is missing is shown as missing.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

OURS = "runnel"
MISSING = "-"


@dataclass(frozen=True, slots=True)
class Sample:
    """One measured value: of one contender, in one round."""

    scenario: str
    case: str
    metric: str
    unit: str
    contender: str
    round: int
    value: float


@dataclass(frozen=True, slots=True)
class Line:
    """All that was measured for one metric of one case: contender -> round -> value."""

    scenario: str
    case: str
    metric: str
    unit: str
    values: dict[str, dict[int, float]]

    def median(self, contender: str) -> float | None:
        found = self.values.get(contender)
        return median(found.values()) if found else None

    def spread(self, contender: str) -> float | None:
        """Half the distance between the extremes, as a share of the median."""
        found = self.values.get(contender)
        middle = self.median(contender)
        return (max(found.values()) - min(found.values())) / 2 / middle if found and middle else None

    def ratio(self, other: str) -> float | None:
        """Ours to theirs: the median over the rounds both took part in."""
        ours, theirs = self.values.get(OURS, {}), self.values.get(other, {})
        pairs = [ours[number] / theirs[number] for number in ours if theirs.get(number)]
        return median(pairs) if pairs else None


def lines_of(samples: Iterable[Sample]) -> list[Line]:
    """Group samples by what they measure, in the order in which they first appeared."""
    found: dict[tuple[str, str, str, str], Line] = {}
    for sample in samples:
        key = (sample.scenario, sample.case, sample.metric, sample.unit)
        line = found.setdefault(key, Line(*key, {}))
        line.values.setdefault(sample.contender, {})[sample.round] = sample.value
    return list(found.values())


def table(lines: Sequence[Line], contenders: Sequence[str]) -> str:
    """One scenario side by side: a column for each contender, and one for each ratio."""
    if not lines:
        return "nothing was measured"
    present = [name for name in contenders if any(name in line.values for line in lines)]
    others = [name for name in present if name != OURS] if OURS in present else []
    head = ["case", "metric", *present, *(f"{OURS}/{name}" for name in others)]
    rows = [head]
    for line in lines:
        cells = [shown(line.median(name), line.spread(name)) for name in present]
        ratios = [shown(line.ratio(name), None) for name in others]
        rows.append([line.case, f"{line.metric} {line.unit}".strip(), *cells, *ratios])
    return aligned(rows)


def complete(lines: Sequence[Line], contenders: Sequence[str]) -> bool:
    """Whether there is a table, and each of its lines has a value of each of these contenders."""
    return bool(lines) and all(name in line.values for line in lines for name in contenders)


def shown(value: float | None, spread: float | None) -> str:
    """Three digits that count, and the spread in percent."""
    if value is None:
        return MISSING
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    text = f"{value:,.{digits}f}"
    return text if spread is None else f"{text} ±{spread:.0%}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(_row(row, widths) for row in rows)


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    words = [cell.ljust(width) for cell, width in zip(cells[:2], widths[:2], strict=True)]
    numbers = [cell.rjust(width) for cell, width in zip(cells[2:], widths[2:], strict=True)]
    return "  ".join(words + numbers).rstrip()


def write_json(path: Path, facts: dict[str, object], samples: Sequence[Sample]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**facts, "samples": [asdict(sample) for sample in samples]}, indent=1) + "\n")
