"""Messages that come later."""

from runnel.testing.history import NEVER, History, Poll, Reminder, Send, Status

from .subject import Subject

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


SUBJECT = Subject(good)


def final(history: History) -> list[tuple[int, str]]:
    poll = history.polls[-1]
    assert isinstance(poll, Poll)
    return poll.records[K]


@SUBJECT.plants()
def doubled(history: History) -> None:
    final(history).append((3, "a"))


@SUBJECT.plants()
def early(history: History) -> None:
    history.schedule.reminders[0].due_s = 2.2


@SUBJECT.plants()
def out_of_turn(history: History) -> None:
    history.schedule.reminders[2].settled = 2.9


@SUBJECT.plants()
def unseen(history: History) -> None:
    history.sends[4].status = Status.OK


@SUBJECT.plants()
def unexpected(history: History) -> None:
    final(history).append((3, "d"))


@SUBJECT.permits
def early_where_clocks_were_set(history: History) -> None:
    """Nothing can be said of time then."""
    history.schedule.clocks_set = True
    early(history)


@SUBJECT.permits
def out_of_turn_where_clocks_were_set(history: History) -> None:
    history.schedule.clocks_set = True
    out_of_turn(history)
