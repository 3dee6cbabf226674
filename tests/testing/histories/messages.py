"""Messages, and a group that reads them."""

from runnel.testing.history import Assigned, Commit, History, Joined, Looked, Owned, Poll, Send, Status

from .subject import Subject

K = "orders/0"


def good() -> History:
    """Two producers, a reader, a group of two generations."""
    history = History()
    for number, value in enumerate(["a0", "b0", "a1", "b1"]):
        history.sends.append(Send(f"p{value[0]}", K, value, number, number + 0.5, Status.OK, number))
    history.sends.append(Send("pc", K, "unknown", 5.0))
    records = [(number, send.value) for number, send in enumerate(history.sends[:4])]
    history.polls.append(Assigned("reader", {K: 0}))
    history.polls.append(Poll("reader", {K: records[:2]}, 4, 5))
    history.polls.append(Poll("reader", {K: records[2:]}, 5, 6))
    history.polls.append(Poll("m1", {K: records[:2]}, 4, 5, "g", "m1", 1))
    history.polls.append(Poll("m2", {K: records[2:]}, 7, 8, "g", "m2", 2))
    history.polls.append(Assigned("audit", {K: 0}))
    history.polls.append(Poll("audit", {K: records}, 20, 21, final=True))
    history.joins += [Joined("g", "m1", 1, 4), Joined("g", "m2", 2, 6)]
    history.commits += [Commit("g", {K: 2}, "m1", 1, 5, 5.5, Status.OK), Commit("g", {K: 4}, "m2", 2, 8, 9, Status.OK)]
    history.looks += [Looked("g", {K: 2}, 5.6, 5.7), Looked("g", {K: 4}, 9.5, 9.6)]
    return history


SUBJECT = Subject(good)


def a_poll(*records: tuple[int, str], **more: object) -> Poll:
    return Poll("other", {K: list(records)}, 10, 11, **more)  # type: ignore[arg-type]


def drop_everywhere(history: History, value: str) -> None:
    for poll in history.polls:
        if isinstance(poll, Poll):
            poll.records = {K: [record for record in poll.records[K] if record[1] != value]}


@SUBJECT.plants("lost-write", "group-skip", "int-poll-skip", "poll-skip", "unseen")
def lost_write(history: History) -> None:
    drop_everywhere(history, "b0")


@SUBJECT.plants()
def unseen(history: History) -> None:
    history.sends.append(Send("pa", K, "a2", 9, 9.5, Status.OK, 4))


@SUBJECT.plants()
def vanished(history: History) -> None:
    history.sends.append(Send("pd", K, "d0", 9))
    history.polls.append(a_poll((4, "d0")))


@SUBJECT.plants("inconsistent-offsets", "duplicate")
def inconsistent_offsets(history: History) -> None:
    history.polls.append(a_poll((1, "a1")))


@SUBJECT.plants()
def duplicate(history: History) -> None:
    history.polls.append(a_poll((9, "a1")))


@SUBJECT.plants("unexpected", "vanished")
def unexpected(history: History) -> None:
    history.polls.append(a_poll((9, "nobody's")))


@SUBJECT.plants("unexpected", "vanished")
def failed_read(history: History) -> None:
    history.sends.append(Send("pd", K, "d0", 9, status=Status.FAIL))
    history.polls.append(a_poll((9, "d0")))


@SUBJECT.plants()
def int_poll_skip(history: History) -> None:
    history.polls.append(a_poll((0, "a0"), (2, "a1")))


@SUBJECT.plants()
def int_nonmonotonic_poll(history: History) -> None:
    history.polls.append(a_poll((1, "b0"), (0, "a0")))


@SUBJECT.plants()
def poll_skip(history: History) -> None:
    history.polls += [a_poll((0, "a0")), a_poll((2, "a1"))]


@SUBJECT.plants("poll-skip")
def poll_skip_at_the_start(history: History) -> None:
    history.polls += [Assigned("other", {K: 1}), a_poll((2, "a1"))]


@SUBJECT.plants()
def nonmonotonic_poll(history: History) -> None:
    history.polls += [a_poll((2, "a1")), a_poll((1, "b0"))]


@SUBJECT.plants()
def nonmonotonic_send(history: History) -> None:
    history.sends[0], history.sends[2] = history.sends[2], history.sends[0]


@SUBJECT.plants()
def commit_lost(history: History) -> None:
    history.looks.append(Looked("g", {K: 2}, 12, 12.1))


@SUBJECT.plants("commit-lost")
def commit_lost_after_it_was_seen(history: History) -> None:
    history.commits.append(Commit("g", {K: 5}, "m2", 2, 12))
    history.looks += [Looked("g", {K: 5}, 13, 13.1), Looked("g", {K: 4}, 14, 14.1)]


@SUBJECT.plants()
def zombie_commit(history: History) -> None:
    history.commits.append(Commit("g", {K: 4}, "m1", 1, 12, 12.5, Status.OK))


@SUBJECT.plants("zombie-commit")
def commit_of_an_earlier_owner(history: History) -> None:
    history.owned += [Owned("g", "m1", frozenset({K}), 0.5, 1), Owned("g", "m9", frozenset({K}), 1.5, 2)]


@SUBJECT.plants()
def double_owner(history: History) -> None:
    history.polls.append(a_poll((0, "a0"), group="g", member="m9", generation=2))


@SUBJECT.plants()
def group_skip(history: History) -> None:
    history.polls = [poll for poll in history.polls if poll.process != "m1"]


@SUBJECT.permits
def forget_the_acknowledgement(history: History) -> None:
    """A message of which nobody knows may be missing, as long as nobody read it."""
    drop_everywhere(history, "b1")
    history.sends[3].status = Status.INFO
    history.commits[1].offsets = history.looks[1].offsets = {K: 3}


@SUBJECT.permits
def send_without_idempotence(history: History) -> None:
    history.sends[2].idempotent = False
    for poll in history.polls:
        if isinstance(poll, Poll) and poll.process in ("audit", "m2"):
            poll.records = {K: [*poll.records[K], (4, "a1")]}


@SUBJECT.permits
def lose_the_second_copy(history: History) -> None:
    """Without acks=all, what was acknowledged may go, and its offset be given again."""
    history.sends.append(Send("pd", K, "d0", 9, 9.5, Status.OK, 5, durable=False, idempotent=False))
    history.sends.append(Send("pa", K, "a2", 10, 10.5, Status.OK, 5))
    for poll in history.polls:
        if isinstance(poll, Poll) and poll.process == "audit":
            poll.records = {K: [*poll.records[K], (4, "d0"), (5, "a2")]}


@SUBJECT.permits
def leave_the_group_free_to_go_back(history: History) -> None:
    """A new owner begins where the last commit was."""
    history.joins.append(Joined("g", "m3", 3, 12))
    history.polls.append(Poll("m3", {K: [(2, "a1")]}, 12, 13, "g", "m3", 3))


@SUBJECT.permits
def hear_late_of_what_was_lost_meanwhile(history: History) -> None:
    """A member that was busy for long after it asked learns that it owns what is another's by now."""
    history.owned += [Owned("g", "m2", frozenset({K}), 6, 7), Owned("g", "m9", frozenset({K}), 1, 7.5)]
