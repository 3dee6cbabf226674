"""A queue and its workers."""

from runnel.model.calls import Outcome
from runnel.testing.history import Handed, History, Poll, Said, Send, Status

from .subject import Subject

JOBS = "jobs/0"


def hand(history: History, value: str, attempt: int, at: float, lease_ms: int = 1_000) -> None:
    history.queue.handed.append(Handed("w", value, JOBS, int(value[1:]), attempt, at, at + 0.1, lease_ms))


def say(
    history: History, value: str, attempt: int, outcome: Outcome, at: float, *,
    delay_ms: int | None = None, status: Status = Status.OK,
) -> Said:  # fmt: skip
    said = Said("w", value, attempt, outcome, delay_ms, at, at + 0.1, status)
    history.queue.said.append(said)
    return said


def good() -> History:
    """One job is done at once, one after a pause, one is rejected, one used up its attempts, one is known to nobody."""
    history = History()
    history.sends += [Send("p", JOBS, f"j{n}", n / 10, n / 10 + 0.05, Status.OK, n) for n in range(5)]
    history.polls.append(Poll("audit", {JOBS: [(n, f"j{n}") for n in range(5)]}, 50, 51, final=True))
    history.queue.attempts_max = 2
    history.queue.keys = {"j0": 1, "j1": 1, "j2": 2}
    hand(history, "j0", 1, 1)
    say(history, "j0", 1, "accept", 1.5)
    hand(history, "j1", 1, 2)
    say(history, "j1", 1, "release", 2.5, delay_ms=2_000)
    hand(history, "j1", 2, 4.5)
    say(history, "j1", 2, "accept", 5)
    hand(history, "j2", 1, 2)
    say(history, "j2", 1, "reject", 2.2)
    hand(history, "j3", 1, 2)
    hand(history, "j3", 2, 3.5)
    hand(history, "j4", 1, 2)
    say(history, "j4", 1, "accept", 3, status=Status.INFO)
    history.queue.dead = [("j2", 1), ("j3", 2)]
    return history


SUBJECT = Subject(good)


@SUBJECT.plants()
def handed_twice(history: History) -> None:
    hand(history, "j1", 1, 2.1)


@SUBJECT.plants()
def after_accept(history: History) -> None:
    hand(history, "j0", 2, 3)


@SUBJECT.plants("attempts-back", "leased-twice")
def attempts_back(history: History) -> None:
    history.queue.handed[4].begun = history.queue.handed[4].ended = 9


@SUBJECT.plants()
def too_many_attempts(history: History) -> None:
    hand(history, "j3", 3, 6)


@SUBJECT.plants()
def early(history: History) -> None:
    history.queue.handed[2].begun, history.queue.handed[2].ended = 4.1, 4.2


@SUBJECT.plants()
def leased_twice(history: History) -> None:
    history.queue.handed[5].begun = history.queue.handed[5].ended = 2.9


@SUBJECT.plants()
def overtaken(history: History) -> None:
    history.queue.said[0].begun = 2.2


@SUBJECT.plants()
def unfinished(history: History) -> None:
    history.queue.said.pop()


@SUBJECT.plants()
def dead_twice(history: History) -> None:
    assert history.queue.dead is not None
    history.queue.dead.append(("j3", 2))


@SUBJECT.plants()
def dead_and_done(history: History) -> None:
    history.queue.dead = [("j2", 1), ("j3", 2), ("j1", 2)]


@SUBJECT.plants()
def not_dead(history: History) -> None:
    history.queue.dead = [("j3", 2)]
    say(history, "j2", 1, "accept", 9, status=Status.INFO)


@SUBJECT.plants()
def dead_unasked(history: History) -> None:
    history.queue.dead = [("j2", 1), ("j3", 1)]


@SUBJECT.permits
def early_where_clocks_were_set(history: History) -> None:
    """Nothing can be said of time then."""
    history.queue.clocks_set = True
    early(history)


@SUBJECT.permits
def leased_twice_where_clocks_were_set(history: History) -> None:
    history.queue.clocks_set = True
    leased_twice(history)
