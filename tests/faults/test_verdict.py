"""What the rig makes of a run: a promise that was broken must show, and times must be those that clients felt."""

import struct
from pathlib import Path

import pytest
from crc32c import crc32c
from tests.faults.copies import differences
from tests.faults.journal import Journal, history_of
from tests.faults.nemesis import Injury
from tests.faults.rig import View
from tests.faults.verdict import DUPLICATED, GROUPS, LOST, REORDERED, UNSEEN, Verdict, judge

from runnel.testing.history import History, Looked, Poll, Send, Status

KILL = "kill a broker"


def send(number: int, *, begun: float, ended: float, offset: int | None = None) -> Send:
    return Send("p.1", "t-0", f"p.1/{number}", begun, ended, Status.OK, number if offset is None else offset)


def final(*numbers: int) -> Poll:
    records = {"t-0": [(offset, f"p.1/{number}") for offset, number in enumerate(numbers)]}
    return Poll("final", records, 9.0, 9.0, final=True)


def judged(history: History, *injuries: Injury) -> Verdict:
    return judge(history, injuries, topic="t", seed="1", seconds=1.0)


def test_all_is_well() -> None:
    sends = [send(0, begun=1.0, ended=1.1), send(1, begun=2.0, ended=2.1)]
    verdict = judged(History(sends=sends, polls=[final(0, 1)]))
    assert verdict.good
    assert (verdict.acknowledged, verdict.sent, verdict.unknown) == (2, 2, 0)


def test_nothing_acknowledged_is_not_well() -> None:
    assert not judged(History()).good


def test_what_is_lost_unseen_doubled_or_in_another_order_shows() -> None:
    sends = [send(0, begun=1.0, ended=1.1), send(1, begun=2.0, ended=2.1), send(2, begun=3.0, ended=3.1)]
    gone = Poll("final", {"t-0": [(0, "p.1/0"), (2, "p.1/2")]}, final=True)
    assert judged(History(sends=sends, polls=[gone])).count((*LOST, *UNSEEN)) == 2
    doubled = judged(History(sends=sends, polls=[Poll("r", {"t-0": [(0, "p.1/0"), (3, "p.1/0")]}), final(0, 1, 2)]))
    assert doubled.count(DUPLICATED) == 1
    late = [send(0, begun=1.0, ended=1.1, offset=1), send(1, begun=2.0, ended=2.1, offset=0)]
    assert judged(History(sends=late, polls=[final(1, 0)])).count(REORDERED) == 1


def test_a_failover_lasts_from_the_kill_to_the_first_ack_of_what_was_sent_after_it() -> None:
    sends = [send(0, begun=0.9, ended=1.2), send(1, begun=1.1, ended=3.5), send(2, begun=2.0, ended=3.4)]
    history = History(sends=sends, polls=[final(0, 1, 2)])
    alone = Injury(KILL, "broker1", 1.0, True, [0], ended=2.0)
    among_others = Injury(KILL, "broker2", 1.0, False, [0], ended=2.0)
    assert judged(history, alone, among_others).failovers_s == [3.4 - 1.0]


def test_a_partition_that_is_left_with_too_few_replicas_does_not_go_on() -> None:
    view = View({0: 1, 1: 1, 2: 2}, {0: [1, 2, 3], 1: [1, 3], 2: [1, 2, 3]}, {0: [1, 2, 3], 1: [1, 3], 2: [1, 2, 3]})
    assert view.outliving(1) == [0]


def test_lag_counts_from_the_end_of_the_last_fault() -> None:
    polls = [Poll("r.1", {"t-0": [(0, "p.1/0")]}, 5.0, 6.0), final(0)]
    history = History(sends=[send(0, begun=1.0, ended=1.1)], polls=list(polls))
    assert judged(history).lag_s == 6.0 - 1.1
    assert judged(history, Injury("", "", 2.0, False, ended=5.5)).lag_s == 0.5
    assert judged(history, Injury("", "", 2.0, False, ended=7.0)).lag_s == 0.0


def test_runs_add_up() -> None:
    total = Verdict()
    history = History(sends=[send(0, begun=1.0, ended=1.1)], polls=[final(0)])
    for _ in range(2):
        total.add(judged(history, Injury(KILL, "broker1", 1.0, True, [0], ended=2.0)))
    assert total.good
    assert (total.acknowledged, total.faults[KILL], len(total.failovers_s)) == (2, 2, 2)
    assert "kill a broker" in total.table()


def test_notes_of_a_client_come_back_as_its_history(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "a.jsonl")
    journal.send("p.1", "t-0", "p.1/0")
    journal.refused("p.1/0", certain=False, why="timed out")
    journal.send("p.1", "t-0", "p.1/1")
    journal.refused("p.1/1", certain=True, why="the queue is full")
    journal.assigned("r.1", {"t-0": 0})
    journal.polled("r.1", {"t-0": [(0, "p.1/0")]}, begun=1.0)
    journal.polled("r.1", {}, begun=2.0)
    journal.committed(journal.commit("g", {"t-0": 1}))
    journal.commit("g", {"t-0": 2})
    journal.looked("g", {"t-0": 1}, begun=3.0)
    journal.close()
    history = history_of([tmp_path / "a.jsonl"])
    assert [each.status for each in history.sends] == [Status.INFO, Status.FAIL]
    assert len(history.polls) == 2
    assert [commit.status for commit in history.commits] == [Status.OK, Status.INFO]
    assert history.looks[0].offsets == {"t-0": 1}


@pytest.mark.parametrize(
    ("took_s", "once", "anomalies"),
    [
        (0.02, False, 1),  # no client is so quick to repeat it
        (4.0, False, 0),
        (4.0, True, 1),
    ],
)
def test_a_commit_that_may_have_been_repeated_may_come_late(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, took_s: float, once: bool, anomalies: int
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    journal = Journal(tmp_path / "a.jsonl")
    for now, offset, ended in ((1.0, 1, 1.01), (2.0, 2, 2.0 + took_s), (7.0, 3, 7.01)):
        name = journal.commit("g", {"t-0": offset})
        now = ended
        journal.committed(name, once=once)
    journal.close()

    def seen(offset: int) -> int:
        """What is wrong with an observer who then reads this offset."""
        history = history_of([tmp_path / "a.jsonl"])
        history.looks.append(Looked("g", {"t-0": offset}, begun=8.0, ended=8.1))
        return judged(history).count(GROUPS)

    assert seen(3) == 0
    assert seen(2) == anomalies
    assert seen(1) == 1  # nothing excuses that


def batch(base: int, epoch: int, body: bytes) -> bytes:
    rest = struct.pack(">hi", 0, 0) + body.ljust(34, b".")
    return struct.pack(">qiibI", base, 9 + len(rest), epoch, 2, crc32c(rest)) + rest


def test_copies_that_differ_are_found(tmp_path: Path) -> None:
    contents = {"a": batch(0, 0, b"x"), "b": batch(0, 0, b"x"), "c": batch(0, 0, b"y"), "d": batch(0, 1, b"x")}
    for name, data in contents.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{0:020}.log").write_bytes(data)
    copy = {name: (name, tmp_path / name) for name in contents}
    assert differences([copy["a"], copy["b"]]) == []
    assert len(differences([copy["a"], copy["c"]])) == 1
    assert len(differences([copy["a"], copy["d"]])) == 1
    with (tmp_path / "b" / f"{0:020}.log").open("ab") as file:
        file.write(batch(1, 0, b"more"))
    assert differences([copy["a"], copy["b"]]) == ["a has 1 batches, b 2"]
