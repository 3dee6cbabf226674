"""What an answer's list of aborted transactions says about its batches."""

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from runnel.client.isolation import Aborted
from runnel.record import batch as record_batch
from runnel.record import records
from runnel.record.batch import BatchHeader
from runnel.record.records import Record


class Batch(NamedTuple):
    """A batch, and whether its transaction was aborted."""

    header: BatchHeader
    aborted: bool


def header(
    offset: int, producer: int, *, count: int = 1, transactional: bool = True, control: bool = False
) -> BatchHeader:
    content = [Record(offset + n, 1000, None, b"") for n in range(count)]
    encoded = records.encode(
        content,
        base_offset=offset,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=0,
        transactional=transactional,
        control=control,
    )
    return record_batch.read_header(encoded)


def test_from_the_first_offset_to_the_marker() -> None:
    aborted = Aborted([(5, 1)])
    assert not aborted.judge(header(3, 1, count=2))  # of the transaction before
    assert aborted.judge(header(5, 1))
    assert not aborted.judge(header(6, 2))
    assert aborted.judge(header(7, 1))
    assert not aborted.judge(header(8, 1, control=True))
    assert not aborted.judge(header(9, 1))


def test_only_what_is_transactional() -> None:
    aborted = Aborted([(0, 1)])
    assert not aborted.judge(header(0, 1, transactional=False))
    assert aborted.judge(header(1, 1))


def test_one_that_began_before_the_answer() -> None:
    assert Aborted([(3, 1)]).judge(header(10, 1))


Events = list[tuple[int, str, int]]  # producer, what it does, how many messages
EVENTS = st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["send", "send", "commit", "abort"]), st.integers(1, 3)))


class Ended(NamedTuple):
    first: int
    producer: int
    marker: int


def partition_of(events: Events) -> tuple[list[Batch], list[Ended]]:
    """A partition, and its aborted transactions. What is open in the end is committed."""
    log: list[Batch] = []
    aborted: list[Ended] = []
    unsettled: dict[int, list[int]] = {}  # producer -> places in the log
    offset = 0
    for producer, action, count in [*events, *((p, "commit", 1) for p in range(3))]:
        if action == "send":
            unsettled.setdefault(producer, []).append(len(log))
            log.append(Batch(header(offset, producer, count=count), False))
            offset += count
        elif places := unsettled.pop(producer, None):
            if action == "abort":
                aborted.append(Ended(log[places[0]].header.base_offset, producer, offset))
                for place in places:
                    log[place] = log[place]._replace(aborted=True)
            log.append(Batch(header(offset, producer, control=True), False))
            offset += 1
    return log, aborted


def answers(log: list[Batch], ended: list[Ended], cuts: list[int]) -> Iterator[tuple[Aborted, list[Batch]]]:
    """The log in answers, each with the transactions that reach into it."""
    places = sorted({0, len(log), *(cut % (len(log) + 1) for cut in cuts)})
    for begin, end in pairwise(places):
        part = log[begin:end]
        start, stop = part[0].header.base_offset, part[-1].header.last_offset
        yield Aborted([(e.first, e.producer) for e in ended if e.first <= stop and e.marker >= start]), part


@given(EVENTS, st.lists(st.integers(0, 100), max_size=4))
def test_every_batch_is_judged_by_its_own_transaction(events: Events, cuts: list[int]) -> None:
    for aborted, part in answers(*partition_of(events), cuts):
        assert [aborted.judge(batch.header) for batch in part] == [batch.aborted for batch in part]
