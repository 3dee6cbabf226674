"""Batches that sinks publish."""

from runnel.testing.history import History, Poll, Row, Send, Status, Transaction

from .subject import Subject

K = "ledger/0"


def good() -> History:
    """Two batches of two rows; the second one was written twice, and published once."""
    history = History(noted={"s": 2}, batch_rows=2)
    found: list[tuple[int, str]] = []
    for offset, (attempt, batch, row) in enumerate([("a", 0, 0), ("a", 0, 1), ("b", 1, 0), ("c", 1, 0), ("c", 1, 1)]):
        status = Status.FAIL if attempt == "b" else Status.OK
        send = Send(attempt, K, f"{attempt}{row}", offset, offset + 0.5, status, offset, transactional=True)
        send.row = Row("s", batch, row)
        history.sends.append(send)
        if status is Status.OK:
            found.append((offset, send.value))
    history.transactions += [
        Transaction("d", history.sends[:2], status=Status.OK),
        Transaction("d", history.sends[3:], status=Status.OK),
    ]
    history.polls.append(Poll("audit", {K: found}, 20, 21, final=True))
    return history


SUBJECT = Subject(good)


def final(history: History) -> list[tuple[int, str]]:
    poll = history.polls[-1]
    assert isinstance(poll, Poll)
    return poll.records[K]


@SUBJECT.plants("published-twice", "aborted-read")
def published_twice(history: History) -> None:
    final(history).insert(2, (2, "b0"))


@SUBJECT.plants("torn-batch", "fractured", "unseen")
def torn_batch(history: History) -> None:
    final(history).pop()


@SUBJECT.plants()
def unpublished(history: History) -> None:
    history.noted["s"] = 3
