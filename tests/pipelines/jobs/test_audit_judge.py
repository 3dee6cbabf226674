"""The arithmetic of an audit: every kind of damage is found where it is, and what is legal is not taken for damage."""

from collections.abc import Iterable, Mapping

import pytest

from runnel.pipelines.jobs.audit.gaps import Owner, Seen, reasons, stretches
from runnel.pipelines.jobs.audit.judge import (
    LOOKS_MAX,
    Account,
    Archived,
    Detail,
    Judge,
    Kind,
    Pair,
    Reason,
    Scope,
    judge_alone,
    minus,
)
from runnel.pipelines.jobs.audit.offsets import BITS, SIZE, Bucket, Run, bucket_of, joined, runs_of

Rows = list[tuple[int, bytes]]


def rows(offsets: Iterable[int], what: bytes = b"v") -> Rows:
    return [(offset, what) for offset in offsets]


def digest(row: tuple[int, bytes]) -> int:
    return hash((row[0], row[1], "salt"))


def bucket(content: Rows, number: int) -> Bucket:
    here = [row for row in content if row[0] >> BITS == number]
    whole = 0
    for row in here:
        whole ^= digest(row)
    return bucket_of((offset for offset, _ in here), whole)


def details(content: Rows, number: int) -> list[Detail]:
    return [Detail(row[0], digest(row)) for row in content if row[0] >> BITS == number]


def judged(
    left: Rows, right: Rows, *, first: int = 0, end: int | None = None, log: Mapping[Reason, list[Run]] | None = None
) -> Account:
    """`log`: what the log says of its gaps, if the left is a log."""
    last = max(offset for offset, _ in [*left, *right])
    account = Account(Scope("t", 0, first, last + 1 if end is None else end))
    numbers = sorted({offset >> BITS for offset, _ in [*left, *right]})
    pairs = [Pair(number, bucket(left, number), bucket(right, number)) for number in numbers]
    gaps = None if log is None else (lambda _: log)
    return Judge(account, lambda n: details(left, n), lambda n: details(right, n), gaps).judge(pairs)


def test_equal_sides_are_clean() -> None:
    account = judged(rows(range(10)), rows(range(10)), log={})
    assert (account.found, account.left, account.right) == ({}, 10, 10)


def test_what_is_lost_is_told_with_its_offsets() -> None:
    assert judged(rows(range(100)), rows([*range(40), *range(60, 100)])).found == {Kind.LOST: [Run(40, 59)]}


def test_a_loss_over_the_edge_of_a_bucket_is_one_run() -> None:
    found = judged(rows(range(SIZE - 50, SIZE + 50)), rows([*range(SIZE - 50, SIZE - 3), *range(SIZE + 3, SIZE + 50)]))
    assert found.found == {Kind.LOST: [Run(SIZE - 3, SIZE + 2)]}


def test_a_whole_bucket_may_be_lost() -> None:
    found = judged(rows(range(3 * SIZE)), rows([*range(SIZE), *range(2 * SIZE, 3 * SIZE)]))
    assert found.found == {Kind.LOST: [Run(SIZE, 2 * SIZE - 1)]}


def test_what_is_doubled_is_found() -> None:
    found = judged(rows(range(100)), rows([*range(100), *range(7, 10)]))
    assert found.found == {Kind.DOUBLED: [Run(7, 9)]}


def test_doubled_twice_is_found_although_digests_cancel() -> None:
    assert judged(rows(range(5)), rows([0, 1, 2, 3, 3, 3, 4])).found == {Kind.DOUBLED: [Run(3, 3)]}


def test_what_was_changed_is_found() -> None:
    right = rows(range(100))
    right[42] = (42, b"other")
    assert judged(rows(range(100)), right).found == {Kind.CHANGED: [Run(42, 42)]}


def test_lost_doubled_and_changed_at_once() -> None:
    right = [*rows(range(1, 10)), (5, b"v"), (9, b"other")]
    right.remove((9, b"v"))
    assert judged(rows(range(10)), right).found == {
        Kind.LOST: [Run(0, 0)],
        Kind.DOUBLED: [Run(5, 5)],
        Kind.CHANGED: [Run(9, 9)],
    }


def test_what_only_the_right_has_is_strange() -> None:
    assert judged(rows([0, 2]), rows([0, 1, 2])).found == {Kind.STRANGE: [Run(1, 1)]}


def test_outside_of_the_range_nothing_is_judged() -> None:
    found = judged(rows(range(10)), rows([*range(5), *range(12, 20)]), first=2, end=5)
    assert (found.found, found.left, found.right) == ({}, 3, 3)


def test_markers_and_aborted_records_are_legal_gaps() -> None:
    log = {Reason.MARKER: [Run(3, 3)], Reason.ABORTED: [Run(4, 5)]}
    account = judged(rows([0, 1, 2, 6]), rows([0, 1, 2, 6]), log=log)
    assert account.found == {}
    assert account.gaps == {Reason.MARKER: 1, Reason.ABORTED: 2}


def test_an_aborted_record_in_the_lake_is_strange() -> None:
    account = judged(rows([0, 2]), rows([0, 1, 2]), log={Reason.ABORTED: [Run(1, 1)]})
    assert account.found == {Kind.STRANGE: [Run(1, 1)]}


def test_the_lake_may_have_what_compaction_removed_since() -> None:
    account = judged(rows([0, 2]), rows([0, 1, 2]), log={Reason.COMPACTED: [Run(1, 1)]})
    assert account.found == {}
    assert account.gaps == {Reason.COMPACTED: 1}


def test_holes_and_what_a_reader_left_out_are_findings() -> None:
    log = {Reason.HOLE: [Run(1, 1)], Reason.UNREAD: [Run(3, 3)]}
    account = judged(rows([0, 2, 4]), rows([0, 2, 4]), log=log)
    assert account.found == {Kind.HOLE: [Run(1, 1)], Kind.UNREAD: [Run(3, 3)]}


def test_a_range_of_which_neither_side_has_anything_is_asked_about() -> None:
    asked: list[Run] = []

    def gaps(absent: list[Run]) -> Mapping[Reason, list[Run]]:
        asked.extend(absent)
        return {Reason.HOLE: absent}

    account = Account(Scope("t", 0, 10, 2 * SIZE + 5))
    left = rows([10])
    Judge(account, lambda n: [], lambda n: [], gaps).judge([Pair(0, bucket(left, 0), bucket(left, 0))])
    assert joined(asked) == [Run(11, 2 * SIZE + 4)]
    assert account.found == {Kind.HOLE: [Run(11, 2 * SIZE + 4)]}


def many(left: Bucket, right: Bucket) -> tuple[Account, int]:
    """The same bucket, more often than buckets are gone through; and how often they were."""
    account = Account(Scope("t", 0, 0, 1 << 40))
    looked: list[int] = []

    def look(number: int) -> list[Detail]:
        looked.append(number)
        return []

    Judge(account, look, lambda n: []).judge(Pair(n, left, right) for n in range(LOOKS_MAX + 2))
    return account, len(looked)


@pytest.mark.parametrize(
    ("left", "right", "kind"),
    [
        (bucket_of([1], 1), bucket_of([1], 2), Kind.CHANGED),
        (bucket_of([1], 1), bucket_of([1, 1], 1), Kind.DOUBLED),
        (bucket_of([1], 1), bucket_of([1, 2], 3), Kind.UNPROVEN),  # compaction may have removed 2 since
    ],
)
def test_not_more_buckets_than_that_are_gone_through(left: Bucket, right: Bucket, kind: Kind) -> None:
    account, looked = many(left, right)
    assert looked == LOOKS_MAX
    assert account.found[kind] == [Run(LOOKS_MAX << BITS, (LOOKS_MAX + 2 << BITS) - 1)]
    assert len(account.notes) == 1


# --- a lake alone
def alone(content: Rows, *told: Archived) -> Account:
    numbers = sorted({offset >> BITS for offset, _ in content})
    account = Account(Scope("t", 0, 0, 1 << 40))
    found = [(number, bucket(content, number)) for number in numbers]
    return judge_alone(account, found, lambda n: details(content, n), list(told))


def test_a_lake_that_has_what_its_commits_say_is_clean() -> None:
    """Offset 3 was a marker: the commit never had it."""
    assert alone(rows([0, 1, 2, 4, 5]), Archived(5, 0, 5, "batch 0")).found == {}


def test_a_lake_that_has_less_than_its_commits_say_lost_it() -> None:
    account = alone(rows([0, 1, 4, 5]), Archived(4, 0, 3, "batch 0"), Archived(2, 4, 5, "batch 1"))
    assert account.found == {Kind.LOST: [Run(2, 3)]}
    assert account.notes == ["batch 0 put 4 rows into 0-3, 2 are there"]


def test_the_last_rows_of_a_lake_are_missed_too() -> None:
    account = alone(rows([0, 1]), Archived(2, 0, 1, "batch 0"), Archived(2, 2, 3, "batch 1"))
    assert account.found == {Kind.LOST: [Run(2, 3)]}


def test_gaps_that_no_commit_tells_of_are_not_proven() -> None:
    assert alone(rows([0, 1, 5, 6, 3 * SIZE]), Archived(2, 5, 6, "b")).found == {
        Kind.UNPROVEN: [Run(2, 4), Run(7, 3 * SIZE - 1)]
    }


def test_doubled_rows_of_a_lake() -> None:
    assert alone(rows([0, 1, 1]), Archived(2, 0, 1, "b")).found == {Kind.DOUBLED: [Run(1, 1)]}


# --- gaps
def test_why_offsets_are_absent() -> None:
    batches = [
        Seen(Run(0, 4), Owner.MESSAGES, (0, 1, 3)),
        Seen(Run(5, 7), Owner.ABORTED),
        Seen(Run(8, 8), Owner.MARKER),
        Seen(Run(12, 13), Owner.MESSAGES, (12, 13)),
    ]
    absent = [Run(2, 2), Run(4, 11), Run(13, 13)]
    assert reasons(absent, batches, compacted=True) == {
        Reason.COMPACTED: [Run(2, 2), Run(4, 4), Run(9, 11)],
        Reason.ABORTED: [Run(5, 7)],
        Reason.MARKER: [Run(8, 8)],
        Reason.UNREAD: [Run(13, 13)],
    }
    assert reasons(absent, batches, compacted=False)[Reason.HOLE] == [Run(2, 2), Run(4, 4), Run(9, 11)]


def test_near_gaps_are_read_together() -> None:
    assert stretches([Run(0, 0), Run(100, 110), Run(1_000_000, 1_000_001)]) == [Run(0, 110), Run(1_000_000, 1_000_001)]


@pytest.mark.parametrize(
    ("found", "taken", "rest"),
    [
        ([Run(0, 9)], [Run(3, 4), Run(8, 20)], [Run(0, 2), Run(5, 7)]),
        ([Run(0, 9)], [Run(0, 9)], []),
        ([Run(0, 3), Run(5, 9)], [Run(2, 6)], [Run(0, 1), Run(7, 9)]),
        ([Run(5, 5)], [], [Run(5, 5)]),
    ],
)
def test_minus(found: list[Run], taken: list[Run], rest: list[Run]) -> None:
    assert minus(found, taken) == rest


def test_runs_of_offsets() -> None:
    assert runs_of([5, 1, 2, 3, 9]) == [Run(1, 3), Run(5, 5), Run(9, 9)]
