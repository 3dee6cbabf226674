"""What follows from what both sides of an audit hold. Pure: buckets in, findings out.

    lost       the left has it, the right does not
    doubled    the right has it more than once (so does the left, if it is a lake)
    strange    the right has it, the left does not, and nothing explains that
    changed    both have it, and it is not the same
    disorder   the right has it in another order
    hole       offsets that the log does not have, although nothing takes messages out of its middle
    unread     the log has it, and reading it as a table did not bring it
    unproven   offsets that the lake does not have, and nothing is left to tell whether anybody had them

Rule 1: every offset of the range is accounted for: a message on both sides, a finding, or a gap that has a reason.
Rule 2: reasons for a gap are read from the log itself: a marker, an aborted transaction, or compaction where the topic
        has it. Nothing is legal because it is usual.
Rule 3: `unproven` says that a proof is not possible; it does not say that anything is wrong. All others do.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from runnel.pipelines.jobs.audit import offsets
from runnel.pipelines.jobs.audit.offsets import BITS, EMPTY, Bits, Bucket, Run, joined, runs, runs_of, total, window

RUNS_TOLD = 20  # of each finding; the count is always whole
LOOKS_MAX = 100  # buckets of a partition that are gone through row by row


class Kind(StrEnum):
    LOST = "lost"
    DOUBLED = "doubled"
    STRANGE = "strange"
    CHANGED = "changed"
    DISORDER = "disorder"
    HOLE = "hole"
    UNREAD = "unread"
    UNPROVEN = "unproven"


class Reason(StrEnum):
    """Why the log has no message at an offset."""

    MARKER = "marker"
    ABORTED = "aborted"
    COMPACTED = "compacted"
    HOLE = "hole"
    UNREAD = "unread"


LEGAL = (Reason.MARKER, Reason.ABORTED, Reason.COMPACTED)


class Detail(NamedTuple):
    """One row: where it was, and what it is."""

    offset: int
    digest: int


@dataclass(frozen=True, slots=True)
class Pair:
    """What both sides hold of one bucket."""

    number: int
    left: Bucket = EMPTY
    right: Bucket = EMPTY


@dataclass(frozen=True, slots=True)
class Scope:
    """A partition, and which of its offsets are looked at."""

    topic: str
    partition: int
    first: int
    end: int

    @property
    def run(self) -> Run:
        return Run(self.first, self.end - 1)

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(slots=True)
class Account:
    """What was found in one partition."""

    scope: Scope
    left: int = 0
    right: int = 0
    gaps: dict[Reason, int] = field(default_factory=dict)
    found: dict[Kind, list[Run]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    looks: int = 0  # how many buckets were gone through

    def add(self, kind: Kind, told: Iterable[Run]) -> None:
        listed = list(told)
        if listed:
            self.found[kind] = joined([*self.found.get(kind, ()), *listed])

    def add_gap(self, reason: Reason, count: int) -> None:
        if count:
            self.gaps[reason] = self.gaps.get(reason, 0) + count

    def as_json(self) -> dict[str, Any]:
        scope = self.scope
        return {
            "topic": scope.topic, "partition": scope.partition, "first": scope.first, "end": scope.end,
            "left": self.left, "right": self.right, "gaps": {str(k): n for k, n in sorted(self.gaps.items())},
            "findings": [_finding(kind, told) for kind, told in sorted(self.found.items())], "notes": self.notes,
        }  # fmt: skip


def _finding(kind: Kind, told: list[Run]) -> dict[str, Any]:
    shown = [[run.first, run.last] for run in told[:RUNS_TOLD]]
    return {"kind": str(kind), "count": total(told), "runs": shown, "runs_total": len(told)}


# --- one side's rows, one by one
def doubled(rows: Iterable[Detail]) -> list[Run]:
    """Offsets that come more than once."""
    seen: set[int] = set()
    again: set[int] = set()
    for offset, _ in rows:
        (again if offset in seen else seen).add(offset)
    return runs_of(again)


def changed(left: Iterable[Detail], right: Iterable[Detail]) -> list[Run]:
    """Offsets that both have, with another content."""
    ought: dict[int, set[int]] = {}
    for offset, digest in left:
        ought.setdefault(offset, set()).add(digest)
    return runs_of({offset for offset, digest in right if offset in ought and digest not in ought[offset]})


# --- two sides
Details = Callable[[int], list[Detail]]  # the rows of one side in a bucket
Gaps = Callable[[list[Run]], Mapping[Reason, list[Run]]]  # why the log has nothing there


@dataclass(frozen=True, slots=True)
class Judge:
    """Compares the two sides of one partition."""

    account: Account
    left_rows: Details
    right_rows: Details
    gaps: Gaps | None = None  # None: the left is no log

    def judge(self, pairs: Iterable[Pair]) -> Account:
        scope = self.account.scope
        for pair in whole(pairs, scope) if self.gaps is not None else pairs:
            self._judge(pair, window(pair.number, scope.first, scope.end))
        return self.account

    def _judge(self, pair: Pair, inside: Bits) -> None:
        account = self.account
        left, right = pair.left.bits & inside, pair.right.bits & inside
        account.left += int(np.count_nonzero(left))
        account.right += int(np.count_nonzero(right))
        account.add(Kind.LOST, runs(left & ~right, pair.number))
        legal = self._explain(pair.number, inside & ~left)
        account.add(Kind.STRANGE, runs(right & ~left & ~legal, pair.number))
        self._look_closer(pair, left, right)

    def _explain(self, number: int, absent: Bits) -> Bits:
        """Find the reason of every gap of the log; which offsets may be on the right all the same."""
        if self.gaps is None or not absent.any():
            return np.zeros_like(absent)
        told = self.gaps(runs(absent, number))
        for reason, found in told.items():
            if reason in LEGAL:
                self.account.add_gap(reason, total(found))
            else:
                self.account.add(Kind(str(reason)), found)
        return offsets.bits_of([*told.get(Reason.COMPACTED, ()), *told.get(Reason.UNREAD, ())], number) & absent

    def _look_closer(self, pair: Pair, left: Bits, right: Bits) -> None:
        """Go through rows only where their number or their digest says that there is something to find."""
        doubles = any(side.count > side.distinct for side in (pair.left, pair.right))
        differs = pair.left.digest != pair.right.digest and bool((left & right).any())
        account = self.account
        if not doubles and not differs:
            return
        account.looks += 1
        if account.looks > LOOKS_MAX:
            self._tell_without_looking(pair.number, doubles=doubles, same_offsets=bool((left == right).all()))
            return
        ought, have = self.left_rows(pair.number), self.right_rows(pair.number)
        account.add(Kind.DOUBLED, _clipped([*doubled(have), *doubled(ought)], account.scope.run))
        account.add(Kind.CHANGED, _clipped(changed(ought, have), account.scope.run))

    def _tell_without_looking(self, number: int, *, doubles: bool, same_offsets: bool) -> None:
        """What is sure of a bucket: another digest of the same offsets is a change; of others it may be none."""
        account = self.account
        kind = Kind.DOUBLED if doubles else Kind.CHANGED if same_offsets else Kind.UNPROVEN
        account.add(kind, runs(window(number, account.scope.first, account.scope.end), number))
        if account.looks == LOOKS_MAX + 1:
            account.notes.append(
                f"from offset {number << BITS} on, findings are told in steps of {offsets.SIZE} offsets"
            )


def _clipped(found: Iterable[Run], bound: Run) -> list[Run]:
    cut = [Run(max(run.first, bound.first), min(run.last, bound.last)) for run in found]
    return [run for run in cut if run.first <= run.last]


def whole(pairs: Iterable[Pair], scope: Scope) -> Iterator[Pair]:
    """Every bucket of the range, those too of which neither side has anything."""
    number = scope.first >> BITS
    for pair in pairs:
        while number < pair.number:
            yield Pair(number)
            number += 1
        yield pair
        number = pair.number + 1
    while number << BITS < scope.end:
        yield Pair(number)
        number += 1


# --- a lake alone
class Archived(NamedTuple):
    """What a commit says that it put into the table of one partition."""

    rows: int
    first: int
    last: int
    batch: str


def judge_alone(
    account: Account, buckets: Iterable[tuple[int, Bucket]], rows: Details, told: list[Archived]
) -> Account:
    """Hold a lake against what its own commits say."""
    present: dict[Archived, int] = dict.fromkeys(told, 0)
    absent: list[Run] = []
    last: int | None = None
    for number, bucket in buckets:
        bits = bucket.bits
        here = runs(bits, number)
        account.right += int(np.count_nonzero(bits))
        absent += [Run(a.last + 1, b.first - 1) for a, b in _neighbours(last, here)]
        last = here[-1].last if here else last
        for each in told:
            if each.first >> BITS <= number <= each.last >> BITS:
                present[each] += int(np.count_nonzero(bits & window(number, each.first, each.last + 1)))
        if bucket.count > bucket.distinct:
            account.add(Kind.DOUBLED, doubled(rows(number)))
    _judge_commits(account, present, absent)
    return account


def _neighbours(last: int | None, here: list[Run]) -> Iterator[tuple[Run, Run]]:
    before = [] if last is None else [Run(last, last)]
    line = [*before, *here]
    return ((a, b) for a, b in pairwise(line) if b.first > a.last + 1)


def _judge_commits(account: Account, present: Mapping[Archived, int], absent: list[Run]) -> None:
    """Gaps inside of a commit that has all its rows were gaps of the log; others can't be told."""
    explained = []
    for told, count in present.items():
        if count < told.rows:
            missing = _clipped(absent, Run(told.first, told.last)) or [Run(told.first, told.last)]
            account.add(Kind.LOST, missing)
            account.notes.append(f"{told.batch} put {told.rows} rows into {told.first}-{told.last}, {count} are there")
        explained.append(Run(told.first, told.last))
    rest = minus(absent, [*explained, *account.found.get(Kind.LOST, ())])
    account.add(Kind.UNPROVEN, rest)


def minus(found: Iterable[Run], taken: Iterable[Run]) -> list[Run]:
    """The offsets of the first that are not among the second."""
    cuts = joined(taken)
    out: list[Run] = []
    for run in joined(found):
        at = run.first
        for cut in cuts:
            if cut.last < at or cut.first > run.last:
                continue
            if cut.first > at:
                out.append(Run(at, cut.first - 1))
            at = cut.last + 1
        if at <= run.last:
            out.append(Run(at, run.last))
    return out
