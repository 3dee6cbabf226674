"""Each anomaly of the schedule is planted in a good history, and found; the good history has none."""

from collections.abc import Callable

import pytest

from runnel.testing.checker import check
from runnel.testing.history import NEVER, History, Poll, Reminder, Send, Status

K = "reminders/0"


def good() -> History:
    """Two come in the order of their times, one that was parked too late comes behind, one was cancelled."""
    history = History()
    rows = [("a", 2.0, 1.0, Status.OK), ("b", 3.0, 1.2, Status.OK), ("c", 1.0, 3.5, Status.OK)]
    rows += [("d", 2.5, NEVER, Status.FAIL), ("e", 0.0, NEVER, Status.INFO)]
    for value, due_s, settled, status in rows:
        send = Send("p", K, value, 0.5, 0.9, status, idempotent=False)
        history.sends.append(send)
        history.schedule.reminders.append(Reminder(send, due_s, settled))
    history.polls += [
        Poll("r", {K: [(0, "a")]}, 2.0, 2.1),
        Poll("r", {K: [(1, "b"), (2, "c")]}, 3.0, 4.0),
        Poll("audit", {K: [(0, "a"), (1, "b"), (2, "c")]}, 9, 9.5, final=True),
    ]
    return history


def final(history: History) -> list[tuple[int, str]]:
    poll = history.polls[-1]
    assert isinstance(poll, Poll)
    return poll.records[K]


def doubled(history: History) -> None:
    final(history).append((3, "a"))


def early(history: History) -> None:
    history.schedule.reminders[0].due_s = 2.2


def out_of_turn(history: History) -> None:
    history.schedule.reminders[2].settled = 2.9


def unseen(history: History) -> None:
    history.sends[4].status = Status.OK


def unexpected(history: History) -> None:
    final(history).append((3, "d"))


PLANTED = [doubled, early, out_of_turn, unseen, unexpected]


def found(history: History) -> set[str]:
    return {anomaly.name for anomaly in check(history)}


def test_a_good_history_has_no_anomaly() -> None:
    assert found(good()) == set()


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_what_is_planted_is_found(plant: Callable[[History], None]) -> None:
    history = good()
    plant(history)
    assert plant.__name__.replace("_", "-") in found(history)


@pytest.mark.parametrize("plant", [early, out_of_turn], ids=lambda plant: plant.__name__)
def test_where_clocks_were_set_nothing_is_said_of_time(plant: Callable[[History], None]) -> None:
    history = good()
    history.schedule.clocks_set = True
    plant(history)
    assert found(history) == set()
