"""What is kept of a queue: as it is written, and as it is read."""

from itertools import accumulate
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.model.errors import RecordUnreadable
from runnel.model.ids import TopicId
from runnel.queues.records import (
    CHUNK_OFFSETS,
    KeptChunk,
    KeptLeaving,
    KeptMark,
    KeptPast,
    Mark,
    Run,
    chunk_record,
    decode,
    leaving_record,
    mark_record,
    past_record,
)
from runnel.queues.status import DONE, LEASED, READY, WAIT
from runnel.queues.values import Counters, Leaving, LeavingId, Target, Why

LEAVING = Leaving(2, 10, 12, 5, Why.REJECTED, "why", 1_700, 0, Target(TopicId(UUID(int=1)), 3, 77))


def runs_of(kind: int) -> st.SearchStrategy[Run]:
    moments = st.integers(0, 2**45) if kind in (WAIT, LEASED) else st.just(0)
    attempts = st.just(0) if kind == DONE else st.integers(0, 2**31)
    return st.builds(Run, st.integers(1, 100), st.just(kind), attempts, moments)


@given(st.lists(st.sampled_from([DONE, READY, WAIT, LEASED]).flatmap(runs_of), max_size=50), st.integers(0, 2**50))
def test_a_chunk_is_read_as_it_was_written(runs: list[Run], number: int) -> None:
    runs = runs[: sum(end <= CHUNK_OFFSETS for end in accumulate(run.length for run in runs))]
    assert decode(*chunk_record(number, runs)) == KeptChunk(number, runs)


def test_marks_and_leavings_are_read_as_they_were_written() -> None:
    mark = Mark(5, 9, 1, "holder", Counters(delivered=12, dead=1))
    assert decode(*mark_record(mark)) == KeptMark(mark)
    assert decode(*leaving_record(LEAVING.id, LEAVING)) == KeptLeaving(LeavingId(2, 10), LEAVING)
    assert decode(*past_record(7, (9, 2))) == KeptPast(7, (9, 2))


def test_tombstones_name_what_is_gone() -> None:
    assert decode(*chunk_record(3, None)) == KeptChunk(3, None)
    assert decode(*leaving_record(LEAVING.id, None)) == KeptLeaving(LeavingId(2, 10), None)


def test_a_lease_of_a_hundred_takes_few_bytes() -> None:
    key, value = chunk_record(100_000, [Run(300, DONE, 0, 0), Run(100, LEASED, 1, 1_700_000_030_000)])
    assert value is not None
    assert len(key) + len(value) < 40


def test_kinds_of_newer_brokers_are_passed_over() -> None:
    assert decode(msgspec.msgpack.encode((9, "x")), b"anything") is None


@pytest.mark.parametrize("value", [b"", b"\xff", msgspec.msgpack.encode([9, 1]), msgspec.msgpack.encode([1, 0, [5]])])
@pytest.mark.parametrize("key", [(1,), (2, 7), (3, 0, 0)])
def test_what_can_not_be_read_is_refused(key: tuple[int, ...], value: bytes) -> None:
    with pytest.raises(RecordUnreadable, match="can't be read"):
        decode(msgspec.msgpack.encode(key), value)


@pytest.mark.parametrize("key", [b"", b"\xc1"])
def test_a_key_that_can_not_be_read_is_refused(key: bytes) -> None:
    with pytest.raises(RecordUnreadable, match="can't be read"):
        decode(key, b"")
