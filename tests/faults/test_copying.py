"""The judgement of copying in transactions: what must not happen is found."""

import json
from pathlib import Path

import pytest
from tests.faults.copying import history_of, transactions_of

from runnel.testing.checker import check
from runnel.testing.history import History, Records, Send, Status

GROUP = "copiers"
SOURCE = {"in-0": [(0, "0/0"), (1, "4/0"), (2, "0/1")]}
TARGET = {"out-0": [(0, "0/0>w.1:1"), (4, "0/1>w.2:1")], "out-1": [(0, "4/0>w.1:1")]}


def note(step: str, worker: str = "w.1", *outputs: tuple[int, str, str]) -> str:
    more = {"outputs": outputs} if outputs else {}
    return json.dumps({"at": 1.0, "worker": worker, "transaction": 1, "step": step, **more}) + "\n"


NOTES = [
    note("begun", "w.1", (0, "0/0>w.1:1", "0/0"), (1, "4/0>w.1:1", "4/0")),
    note("committing", "w.1"),  # it died meanwhile
    note("begun", "w.2", (0, "0/1>w.2:1", "0/1")),
    note("committing", "w.2"),
    note("committed", "w.2"),
    note("begun", "w.3", (0, "0/1>w.3:1", "0/1")),  # it died before it asked for the commit
]


def judged(folder: Path, target: Records, *, notes: list[str] = NOTES, committed: int = 3) -> set[str]:
    journal = folder / "w.jsonl"
    journal.write_text("".join(notes))
    sends = [
        Send("feed", key, value, status=Status.OK, offset=offset) for key in SOURCE for offset, value in SOURCE[key]
    ]
    places = {value: (key, offset) for key, records in SOURCE.items() for offset, value in records}
    transactions = list(transactions_of([journal], "out", places))
    history: History = history_of(sends, transactions, SOURCE, target, GROUP, {"in-0": committed})
    return {anomaly.name for anomaly in check(history)}


def test_a_copy_without_a_flaw_is_good(tmp_path: Path) -> None:
    assert judged(tmp_path, TARGET) == set()


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ({**TARGET, "out-1": []}, "fractured"),
        ({**TARGET, "out-0": [(0, "0/0>w.1:1")]}, "unseen"),
        ({**TARGET, "out-0": [(0, "0/0>w.1:1")]}, "not-transformed"),
        ({**TARGET, "out-0": [*TARGET["out-0"], (6, "0/1>w.3:1")]}, "aborted-read"),
        ({**TARGET, "out-0": [*TARGET["out-0"], (6, "0/1>w.3:1")]}, "transformed-twice"),
        ({**TARGET, "out-0": [*TARGET["out-0"], (6, "0/1>w.2:1")]}, "duplicate"),
        ({**TARGET, "out-0": [(0, "0/1>w.2:1"), (4, "0/0>w.1:1")]}, "transformed-disorder"),
    ],
)
def test_what_must_not_be_is_found(tmp_path: Path, target: Records, found: str) -> None:
    assert found in judged(tmp_path, target)


def test_a_transaction_in_doubt_may_have_failed(tmp_path: Path) -> None:
    """Then its source is not behind the group either."""
    assert judged(tmp_path, {"out-0": []}, notes=NOTES[:2], committed=0) == set()
    assert "not-transformed" in judged(tmp_path, {"out-0": []}, notes=NOTES[:2], committed=1)
