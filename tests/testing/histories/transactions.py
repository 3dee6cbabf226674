"""Transactions, and a group that transforms what it reads."""

from runnel.testing.history import Assigned, History, Looked, Poll, Send, Status, Transaction

from .subject import Subject

IN, OUT, BESIDE = "orders/0", "ledger/0", "ledger/1"


def written(transaction: Transaction, key: str, value: str, offset: int, source: int | None = None) -> Send:
    send = Send(transaction.process, key, value, offset=offset, transactional=True)
    send.source = None if source is None else (IN, source)
    transaction.sends.append(send)
    return send


def good() -> History:
    """Two orders that became entries, a transaction over two partitions, one that was given up, one nobody knows of."""
    history = History(transforming_group="accounting")
    history.sends += [Send("p", IN, f"o{n}", n, n + 0.5, Status.OK, n) for n in range(2)]
    first, second = Transaction("t"), Transaction("u", reads={OUT: [(0, "e0")]})
    given_up, unknown = Transaction("v"), Transaction("w")
    written(first, OUT, "e0", 0, source=0)
    written(first, OUT, "e1", 1, source=1)
    written(second, OUT, "x0", 3)
    written(second, BESIDE, "x1", 0)
    written(given_up, OUT, "y0", 5)
    written(unknown, OUT, "z0", 7)
    history.transactions += [first, second, given_up, unknown]
    for transaction, status in ((first, Status.OK), (second, Status.OK), (unknown, Status.INFO)):
        transaction.becomes(status)
    history.sends += [send for transaction in history.transactions for send in transaction.sends]
    for send in given_up.sends:
        send.status = Status.FAIL
    history.looks.append(Looked("accounting", {IN: 2}, 8, 9))
    history.polls += [
        Poll("t", {IN: [(0, "o0"), (1, "o1")]}, 3, 4, "accounting", "t", 1),
        Assigned("audit", {IN: 0, OUT: 0, BESIDE: 0}),
        Poll("audit", {IN: [(0, "o0"), (1, "o1")]}, 20, 21, final=True),
        Poll("audit", {OUT: [(0, "e0"), (1, "e1"), (3, "x0")], BESIDE: [(0, "x1")]}, 20, 21, final=True),
    ]
    return history


SUBJECT = Subject(good)


def read_at_the_end(history: History, key: str, *records: tuple[int, str]) -> None:
    history.polls.append(Poll("audit", {key: list(records)}, 22, 23, final=True))


def forget(history: History, value: str) -> None:
    """As if it had never been read, nor its place been told."""
    for poll in history.polls:
        if isinstance(poll, Poll):
            poll.records = {key: [one for one in records if one[1] != value] for key, records in poll.records.items()}
    for send in history.sends:
        if send.value == value:
            send.offset, send.status = None, Status.INFO


@SUBJECT.plants()
def aborted_read(history: History) -> None:
    read_at_the_end(history, OUT, (5, "y0"))


@SUBJECT.plants()
def fractured(history: History) -> None:
    history.transactions[1].status = Status.INFO
    forget(history, "x1")


@SUBJECT.plants()
def precommitted_read(history: History) -> None:
    history.transactions[1].reads[BESIDE] = [(0, "x1")]


@SUBJECT.plants()
def write_cycle(history: History) -> None:
    history.transactions[0].reads[BESIDE] = [(0, "x1")]


@SUBJECT.plants()
def transformed_twice(history: History) -> None:
    again = Transaction("t2")
    history.sends.append(written(again, OUT, "e0again", 9, source=0))
    history.transactions.append(again)
    again.becomes(Status.OK)
    read_at_the_end(history, OUT, (9, "e0again"))


@SUBJECT.plants()
def not_transformed(history: History) -> None:
    history.sends.append(Send("p", IN, "o2", 2, 2.5, Status.OK, 2))
    read_at_the_end(history, IN, (2, "o2"))
    history.polls.append(Poll("t", {IN: [(2, "o2")]}, 5, 6, "accounting", "t", 1))
    history.looks.append(Looked("accounting", {IN: 3}, 10, 11))


@SUBJECT.plants()
def transformed_disorder(history: History) -> None:
    for send in history.transactions[0].sends:
        assert send.source is not None
        send.source = IN, 1 - send.source[1]


@SUBJECT.permits
def what_nobody_knows_of_is_there_as_a_whole(history: History) -> None:
    read_at_the_end(history, OUT, (7, "z0"))
