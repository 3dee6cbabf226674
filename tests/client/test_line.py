"""Order and numbers of the batches of one partition, through every failure."""

import asyncio
from collections.abc import Iterator

import pytest

from runnel.client.line import EPOCH_MAX, Appended, Batch, Identity, Line, record_bytes
from runnel.client.metadata import TopicPartition
from runnel.model.errors import BatchTooLarge, NotLeader
from runnel.record import batch as record_batch
from runnel.record import records
from runnel.record.compression import Compression

WHERE = TopicPartition("t", 0)
FIRST = Identity(7, 0)


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    made = asyncio.new_event_loop()
    yield made
    made.close()


def line_of(loop: asyncio.AbstractEventLoop, *counts: int, identity: Identity = FIRST) -> Line:
    """A line with closed batches of so many messages each."""
    line = Line(WHERE, 5)
    line.adopt(identity)
    if counts and identity.producer_id >= 0:
        prove(line, loop)
    for count in counts:
        batch = line.new_batch(loop.create_future(), 0.0, 100.0)
        for n in range(count):
            batch.add(None, b"%d" % n, (), 1000, 10)
        batch.closed = True
    return line


def prove(line: Line, loop: asyncio.AbstractEventLoop) -> None:
    """Let a batch without messages be appended, so that several may be in flight."""
    line.new_batch(loop.create_future(), 0.0, 100.0).closed = True
    line.settle(take(line), Appended(0, -1))


def take(line: Line) -> Batch:
    batch = line.take(1)
    assert batch is not None
    return batch


def test_numbers_follow_each_other(loop: asyncio.AbstractEventLoop) -> None:
    line = line_of(loop, 3, 2, 1)
    assert [take(line).sequence for _ in range(3)] == [0, 3, 5]


def test_without_an_identity_nothing_is_numbered(loop: asyncio.AbstractEventLoop) -> None:
    assert take(line_of(loop, 3, identity=Identity())).sequence == -1


def test_a_batch_waits_for_company_until_its_linger_is_over(loop: asyncio.AbstractEventLoop) -> None:
    line = Line(WHERE, 5)
    batch = line.new_batch(loop.create_future(), 10.0, 100.0)
    assert line.ready_at(0.005) == 10.005
    batch.closed = True
    assert line.ready_at(0.005) == 10.0


def test_no_more_than_the_limit_is_in_flight(loop: asyncio.AbstractEventLoop) -> None:
    line = line_of(loop, 1, 1, 1, 1, 1, 1)
    for _ in range(5):
        take(line)
    assert line.ready_at(0.0) is None


def test_nothing_numbered_goes_to_another_broker_while_one_has_to_answer(loop: asyncio.AbstractEventLoop) -> None:
    line = line_of(loop, 1, 1)
    first = take(line)
    assert line.may_go_to(1)
    assert not line.may_go_to(2)
    line.settle(first, Appended(1, -1))
    assert line.may_go_to(2)


def test_without_numbers_the_next_leader_is_not_kept_waiting(loop: asyncio.AbstractEventLoop) -> None:
    line = line_of(loop, 1, 1, identity=Identity())
    take(line)
    assert line.may_go_to(2)


def test_what_was_taken_behind_one_that_failed_has_to_wait(loop: asyncio.AbstractEventLoop) -> None:
    """It may still be waiting for a connection: the old one took the failed batch with it."""
    line = line_of(loop, 1, 1, 1)
    first, second = take(line), take(line)
    line.retry(second, 0.0)
    assert not line.must_wait(first)
    line.retry(first, 0.0)
    first, second, third = take(line), take(line), take(line)
    line.retry(first, 0.0)
    assert line.must_wait(second)
    assert line.must_wait(third)


def test_only_one_is_in_flight_until_the_broker_knows_the_producer(loop: asyncio.AbstractEventLoop) -> None:
    line = Line(WHERE, 5)
    line.adopt(FIRST)
    for _ in range(3):
        line.new_batch(loop.create_future(), 0.0, 100.0).closed = True
    first = take(line)
    assert line.ready_at(0.0) is None
    line.settle(first, Appended(0, -1))
    take(line)
    assert line.ready_at(0.0) is not None


def test_after_a_failure_the_failed_go_first_with_the_numbers_they_had(loop: asyncio.AbstractEventLoop) -> None:
    line = line_of(loop, 1, 1, 1)
    first, second = take(line), take(line)
    line.retry(first, 5.0)
    assert line.broken
    assert line.ready_at(0.0) is None  # the second is still in flight
    line.retry(second, 5.0)
    assert line.ready_at(0.0) == 5.0
    assert [take(line) for _ in range(2)] == [first, second]
    assert (first.sequence, second.sequence, take(line).sequence) == (0, 1, 2)


def test_a_batch_given_up_raises_the_epoch_so_that_no_number_is_missing(loop: asyncio.AbstractEventLoop) -> None:
    line = line_of(loop, 2, 1, 1)
    first, second = take(line), take(line)
    encoded = second.encode(Compression.NONE)
    line.settle(first, BatchTooLarge("too large"))
    assert line.ready_at(0.0) is None
    line.retry(second, 0.0, absent=True)  # refused as out of order
    assert take(line) is second
    assert (second.identity, second.sequence) == (Identity(7, 1), 0)
    header = record_batch.read_header(second.encode(Compression.NONE))
    assert (header.producer_epoch, header.base_sequence) == (1, 0)
    assert records.decode(second.encode(Compression.NONE)) == records.decode(encoded)
    assert record_batch.check_produced(second.encode(Compression.NONE)) == header
    assert take(line).sequence == 1
    with pytest.raises(BatchTooLarge):
        first.done.result()


def test_what_may_have_been_appended_is_never_sent_under_another_number(loop: asyncio.AbstractEventLoop) -> None:
    """The first was given up, and nobody knows what became of the others: under a new epoch they could be doubled."""
    line = line_of(loop, 1, 1, 1, 1)
    first, second, third = take(line), take(line), take(line)
    line.settle(first, NotLeader("its time was up"))
    line.retry(second, 0.0)
    line.retry(third, 0.0)
    assert take(line) is second
    assert (second.identity, second.sequence) == (FIRST, 1)
    assert line.ready_at(0.0) is None  # one at a time, while it is not known what is there
    line.settle(second, Appended(1, -1))  # it was there
    assert take(line) is third
    assert (third.identity, third.sequence) == (FIRST, 2)
    line.retry(third, 0.0, absent=True)  # out of order: it was not
    assert take(line) is third
    assert (third.identity, third.sequence) == (Identity(7, 1), 0)
    line.settle(third, Appended(2, -1))
    assert take(line).sequence == 1


def test_asking_for_a_doubtful_batch_does_not_change_the_order(loop: asyncio.AbstractEventLoop) -> None:
    line = line_of(loop, 1, 1, 1, 1)
    first, second, third = take(line), take(line), take(line)
    line.settle(first, NotLeader("its time was up"))
    line.retry(second, 0.0, absent=True)
    line.retry(third, 0.0)
    assert take(line) is third  # is it there?
    line.retry(third, 0.0, absent=True)
    assert take(line) is second
    line.settle(second, Appended(1, -1))
    assert take(line) is third


def test_what_was_never_numbered_leaves_no_gap(loop: asyncio.AbstractEventLoop) -> None:
    line = line_of(loop, 1, 1)
    late = line.expired(200.0)
    for batch in late:
        line.settle(batch, NotLeader("no leader"))
    assert (len(late), line.idle, line.broken) == (2, True, False)


def test_epochs_run_out(loop: asyncio.AbstractEventLoop) -> None:
    assert line_of(loop, identity=Identity(7, EPOCH_MAX + 1)).worn_out
    assert not line_of(loop, identity=Identity(7, EPOCH_MAX)).worn_out


def test_numbers_wrap_at_31_bits(loop: asyncio.AbstractEventLoop) -> None:
    line = line_of(loop, 3, 1)
    line._next_sequence = 2**31 - 1
    assert (take(line).sequence, take(line).sequence) == (2**31 - 1, 2)


def test_settling_tells_all_who_wait(loop: asyncio.AbstractEventLoop) -> None:
    line = line_of(loop, 2)
    batch = take(line)
    line.settle(batch, Appended(41, -1))
    assert batch.done.result() == Appended(41, -1)
    assert line.idle


def test_the_size_of_a_message_is_estimated_from_above() -> None:
    headers = (("name", b"value"), ("null", None))
    batch = records.encode([records.Record(0, 1000, b"key", b"value", headers)])
    assert len(batch) - record_batch.HEADER_BYTES <= record_bytes(b"key", b"value", headers)
