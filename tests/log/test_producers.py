"""Idempotent producers: a table of cases, and the law that the state is a function of the log."""

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.log.producers import SEQUENCES, SOMEWHERE, WINDOW, Duplicate, Producer, Producers
from runnel.model.errors import (
    ClientError,
    DuplicateSequence,
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from runnel.record.batch import CONTROL, TRANSACTIONAL, BatchHeader
from runnel.record.control import Marker

LAST = SEQUENCES - 1


def data(
    sequence: int, count: int = 1, *, pid: int = 7, epoch: int = 0, offset: int = 0, timestamp: int = 0, flags: int = 0
) -> BatchHeader:
    return BatchHeader(
        offset,
        100,
        0,
        2,
        0,
        flags,
        count - 1,
        timestamp,
        timestamp,
        pid,
        epoch,
        -1 if flags & CONTROL else sequence,
        count,
    )


def txn(sequence: int, count: int = 1, *, pid: int = 7, epoch: int = 0) -> BatchHeader:
    return data(sequence, count, pid=pid, epoch=epoch, flags=TRANSACTIONAL)


def marker(
    *, pid: int = 7, epoch: int = 0, offset: int = 0, commit: bool = True, coordinator: int = 0
) -> BatchHeader:  # fmt: skip
    """What it says stands where nobody looks: in the checksum and the size."""
    made = data(-1, pid=pid, epoch=epoch, offset=offset, flags=CONTROL | TRANSACTIONAL)
    return made._replace(crc=coordinator, size=int(commit))


def said(header: BatchHeader) -> Marker | None:
    return Marker(header.size == 1, header.crc) if header.control else None


@dataclass
class Partition:
    """A log of headers with the producers beside it, as the real log keeps them."""

    producers: Producers = field(default_factory=Producers)
    log: list[BatchHeader] = field(default_factory=list)
    end: int = 0

    def append(self, header: BatchHeader, now_ms: int = 0) -> Duplicate | None:
        duplicate = self.producers.check(header, said(header))
        if duplicate is None:
            self.producers.record(header, self.end, now_ms, said(header))
            self.producers.settle()
            self.log.append(header._replace(base_offset=self.end))
            self.end += header.last_offset_delta + 1
        return duplicate


def replayed(log: list[BatchHeader], producers: Producers | None = None) -> Producers:
    producers = producers or Producers()
    for header in log:
        producers.replay(header, 0, said(header))
    return producers


# --- the table
Step = tuple[BatchHeader, str]
CASES: dict[str, list[Step]] = {
    "in sequence": [(data(0, 3), "0"), (data(3, 2), "3"), (data(5), "5")],
    "a retry of the last": [(data(0, 3), "0"), (data(0, 3), "duplicate 0-2")],
    "a retry inside the window": [(data(i), str(i)) for i in range(5)] + [(data(0), "duplicate 0-0"), (data(5), "5")],
    "a retry behind the window": [(data(i), str(i)) for i in range(6)]
    + [(data(0), "behind"), (data(1), "duplicate 1-1")],
    "a gap": [(data(0), "0"), (data(2), "gap"), (data(1), "1"), (data(2), "2")],
    "other bounds inside the window": [
        (data(0, 3), "0"),
        (data(0, 2), "gap"),
        (data(1, 2), "gap"),
        (data(2, 4), "gap"),
    ],
    "an unknown producer may begin anywhere": [(data(40), "0"), (data(41), "1"), (data(43), "gap")],
    "what came before an unknown beginning is no duplicate": [(data(40), "0"), (data(39), "gap"), (data(0), "gap")],
    "a new epoch begins at 0": [
        (data(0), "0"),
        (data(1, epoch=1), "gap"),
        (data(0, epoch=1), "1"),
        (data(1, epoch=1), "2"),
    ],
    "an old epoch is fenced": [(data(0, epoch=3), "0"), (data(1, epoch=2), "fenced"), (data(0, epoch=2), "fenced")],
    "no duplicate across epochs": [(data(0), "0"), (data(0, epoch=1), "1"), (data(0, epoch=1), "duplicate 1-1")],
    "the sequence wraps": [
        (data(LAST - 1, 2), "0"),
        (data(0), "2"),
        (data(1), "3"),
        (data(LAST - 1, 2), "duplicate 0-1"),
    ],
    "a batch across the wrap": [
        (data(LAST, 3), "0"),
        (data(2), "3"),
        (data(LAST, 3), "duplicate 0-2"),
        (data(4), "gap"),
    ],
    "producers do not mix": [
        (data(0, pid=1), "0"),
        (data(0, pid=2), "1"),
        (data(1, pid=1), "2"),
        (data(2, pid=2), "gap"),
    ],
    "no producer, no check": [(data(0, pid=-1), "0"), (data(0, pid=-1), "1"), (data(9, pid=-1), "2")],
    "a marker bumps the epoch": [(data(0), "0"), (marker(epoch=1), "1"), (data(1), "fenced"), (data(0, epoch=1), "2")],
    "after a marker alone the sequence is 0": [
        (marker(epoch=1), "0"),
        (data(1, epoch=1), "gap"),
        (data(0, epoch=1), "1"),
    ],
    "a marker of the same epoch ends no sequence": [
        (data(0), "0"),
        (marker(), "1"),
        (data(0), "duplicate 0-0"),
        (data(1), "2"),
    ],
    "a marker of an old epoch is fenced": [(data(0, epoch=2), "0"), (marker(epoch=1), "fenced")],
    "a transaction takes nothing but its own": [
        (txn(0), "0"),
        (data(1), "mixed"),
        (txn(0, epoch=1), "mixed"),
        (data(0, epoch=1), "mixed"),
        (txn(1), "1"),
        (txn(0, epoch=0), "duplicate 0-0"),
        (marker(epoch=1), "2"),
        (txn(0, epoch=1), "3"),
    ],
    "what comes after the marker of the next epoch is fenced": [
        (txn(0), "0"),
        (marker(epoch=1, commit=False), "1"),
        (txn(1), "fenced"),
        (txn(1, epoch=1), "gap"),
        (txn(0, epoch=1), "2"),
    ],
    "a marker may come before anything else": [(marker(epoch=1), "0"), (txn(0), "fenced"), (txn(0, epoch=1), "1")],
    "a marker that was appended is not appended again": [
        (txn(0), "0"),
        (marker(), "1"),
        (marker(), "somewhere"),
        (txn(1), "2"),
        (marker(), "3"),
        (marker(epoch=1), "4"),
        (marker(epoch=1), "somewhere"),
    ],
    "a marker of an older coordinator is fenced": [
        (txn(0), "0"),
        (marker(coordinator=2), "1"),
        (txn(1), "2"),
        (marker(coordinator=1), "zombie"),
        (marker(coordinator=1, epoch=1), "zombie"),
        (marker(coordinator=2, epoch=1), "3"),
    ],
    "a newer coordinator is remembered even if nothing is open": [
        (txn(0), "0"),
        (marker(coordinator=1), "1"),
        (marker(coordinator=2), "2"),
        (txn(1), "3"),
        (marker(coordinator=1), "zombie"),
        (marker(coordinator=2), "4"),
    ],
}


def outcome(partition: Partition, header: BatchHeader) -> str:
    end = partition.end
    try:
        duplicate = partition.append(header)
    except DuplicateSequence:
        return "behind"
    except OutOfOrderSequence:
        return "gap"
    except InvalidProducerEpoch:
        return "fenced"
    except InvalidTransactionState:
        return "mixed"
    except TransactionCoordinatorFenced:
        return "zombie"
    if duplicate is SOMEWHERE:
        return "somewhere"
    return str(end) if duplicate is None else f"duplicate {duplicate.base_offset}-{duplicate.last_offset}"


@pytest.mark.parametrize("steps", CASES.values(), ids=CASES.keys())
def test_cases(steps: list[Step]) -> None:
    partition = Partition()
    assert [outcome(partition, header) for header, _ in steps] == [expected for _, expected in steps]
    assert replayed(partition.log) == partition.producers


def test_a_duplicate_has_the_time_of_the_first() -> None:
    partition = Partition()
    partition.append(data(0, timestamp=55))
    assert partition.append(data(0, timestamp=99)) == Duplicate(0, 0, 55)


def test_a_sequence_behind_the_window_is_seen_across_the_wrap() -> None:
    partition = Partition()
    quarter = SEQUENCES // 4
    for sequence in range(0, SEQUENCES, quarter):
        assert partition.append(data(sequence, quarter)) is None
    for sequence in range(WINDOW):
        partition.append(data(sequence))
    assert outcome(partition, data(3 * quarter, quarter)) == "behind"


# --- transactions
def test_the_first_offset_of_a_transaction_is_known_until_its_marker() -> None:
    partition = Partition()
    partition.append(data(0))
    partition.append(txn(1))
    partition.append(txn(2))
    assert one(partition.producers).txn_first_offset == 1
    partition.append(marker(epoch=1))
    assert one(partition.producers).txn_first_offset == -1
    assert one(partition.producers).last_sequence == -1


def one(producers: Producers) -> Producer:
    (producer,) = producers
    return producer


# --- the law
@st.composite
def attempts(draw: st.DrawFn) -> list[BatchHeader]:
    """What a few producers might send: mostly next in sequence, with retries, gaps, bumps, zombies and markers."""
    expected: dict[tuple[int, int], int] = {}
    out: list[BatchHeader] = []
    for _ in range(draw(st.integers(0, 40))):
        pid, epoch = draw(st.integers(1, 3)), draw(st.sampled_from([0, 0, 0, 1, 2]))
        kind = draw(st.sampled_from(["next"] * 6 + ["retry", "gap", "marker", "plain"]))
        if kind == "retry" and out:
            out.append(draw(st.sampled_from(out)))
        elif kind == "marker":
            commit, coordinator = draw(st.booleans()), draw(st.sampled_from([0, 0, 1]))
            out.append(marker(pid=pid, epoch=epoch, commit=commit, coordinator=coordinator))
        elif kind == "plain":
            out.append(data(0, pid=-1))
        else:
            count = draw(st.integers(1, 4))
            sequence = expected.get((pid, epoch), draw(st.sampled_from([0, 0, 0, 5, LAST - 2])))
            sequence = (sequence + (kind == "gap")) % SEQUENCES
            expected[pid, epoch] = (sequence + count) % SEQUENCES
            out.append(data(sequence, count, pid=pid, epoch=epoch, flags=draw(st.sampled_from([0, TRANSACTIONAL]))))
    return out


def assert_same(one: Producers, other: Producers) -> None:
    assert one == other
    assert one.transactions.opened() == other.transactions.opened()
    assert list(one.transactions.ended) == list(other.transactions.ended)
    assert one.transactions.aborted == other.transactions.aborted
    assert one.transactions.first_unstable(0) == other.transactions.first_unstable(0)


def run(headers: list[BatchHeader]) -> Partition:
    partition = Partition()
    for header in headers:
        outcome(partition, header)
    return partition


@settings(max_examples=80)
@given(attempts())
def test_the_state_is_a_function_of_the_log(headers: list[BatchHeader]) -> None:
    partition = run(headers)
    assert_same(replayed(partition.log), partition.producers)


@settings(max_examples=60)
@given(attempts(), st.data())
def test_truncation_is_a_snapshot_and_a_replay(headers: list[BatchHeader], drawn: st.DataObject) -> None:
    partition = run(headers)
    snapshot_at, cut = sorted(drawn.draw(st.integers(0, len(partition.log))) for _ in range(2))
    offset = partition.log[snapshot_at].base_offset if snapshot_at < len(partition.log) else partition.end
    raw = replayed(partition.log[:snapshot_at]).to_bytes(offset)
    loaded = Producers.from_bytes(raw, offset)
    assert loaded is not None
    again = replayed(partition.log[snapshot_at:cut], loaded)
    again.transactions.aborted = replayed(partition.log[:cut]).transactions.aborted  # in a file of its own
    assert_same(again, replayed(partition.log[:cut]))


@settings(max_examples=60)
@given(attempts(), attempts())
def test_a_failed_write_leaves_no_trace(before: list[BatchHeader], failed: list[BatchHeader]) -> None:
    partition = run(before)
    end = partition.end
    for header in failed:
        try:
            if partition.producers.check(header, said(header)) is None:
                partition.producers.record(header, end, 0, said(header))
                end += header.last_offset_delta + 1
        except ClientError:
            continue
    partition.producers.rollback(partition.end)
    assert_same(partition.producers, replayed(partition.log))


@settings(max_examples=60)
@given(attempts())
def test_each_sequence_of_an_epoch_is_appended_once_and_in_order(headers: list[BatchHeader]) -> None:
    last: dict[tuple[int, int], int] = {}
    for header in run(headers).log:
        if header.producer_id < 0 or header.control:
            continue
        name = (header.producer_id, header.producer_epoch)
        assert last.get(name, (header.base_sequence - 1) % SEQUENCES) == (header.base_sequence - 1) % SEQUENCES
        last[name] = (header.base_sequence + header.last_offset_delta) % SEQUENCES


# --- forgetting
def test_who_is_silent_is_forgotten_and_may_come_back_anywhere() -> None:
    partition = Partition()
    partition.append(data(0), now_ms=0)
    partition.append(data(0, pid=8), now_ms=60)
    assert partition.producers.expire(100, 50) == 1
    assert [producer.producer_id for producer in partition.producers] == [8]
    assert partition.append(data(31), now_ms=100) is None


def test_expiry_goes_by_the_brokers_clock() -> None:
    """A client that sends history with its old timestamps is not silent."""
    partition = Partition()
    partition.append(data(0, timestamp=5), now_ms=1_000_000)
    assert partition.producers.expire(1_000_010, 50) == 0


def test_a_marker_is_a_sign_of_life() -> None:
    """KAFKA-9144: expiry that overlooked markers let epochs go back."""
    partition = Partition()
    partition.append(data(0), now_ms=0)
    partition.append(marker(epoch=1), now_ms=90)
    assert partition.producers.expire(100, 50) == 0


def test_an_open_transaction_is_never_forgotten() -> None:
    partition = Partition()
    partition.append(data(0, flags=TRANSACTIONAL), now_ms=0)
    partition.append(data(0, pid=8), now_ms=1)
    assert partition.producers.expire(100, 50) == 1
    assert one(partition.producers).producer_id == 7


@pytest.mark.parametrize("through_a_snapshot", [False, True])
def test_an_old_epoch_does_not_come_back_after_expiry(through_a_snapshot: bool) -> None:
    partition = Partition()
    partition.append(data(0, epoch=4), now_ms=0)
    partition.producers.expire(100, 50)
    if through_a_snapshot:
        loaded = Producers.from_bytes(partition.producers.to_bytes(1), 1)
        assert loaded is not None
        partition.producers = loaded
    assert len(partition.producers) == 0
    assert outcome(partition, data(1, epoch=3)) == "fenced"
    assert outcome(partition, marker(epoch=3)) == "fenced"
    assert outcome(partition, data(17, epoch=4)) == "1"


def test_the_number_of_producers_is_bounded_and_the_most_silent_goes() -> None:
    partition = Partition(Producers(producers_max=3))
    for pid in (1, 2, 3):
        partition.append(data(0, pid=pid, epoch=1))
    partition.append(data(1, pid=1, epoch=1))
    partition.append(data(0, pid=4, epoch=1))
    assert sorted(producer.producer_id for producer in partition.producers) == [1, 3, 4]
    assert outcome(partition, data(1, pid=2, epoch=0)) == "fenced"


def test_a_producer_in_a_transaction_makes_no_room() -> None:
    partition = Partition(Producers(producers_max=3))
    for pid in range(20):  # more than are looked at in one go
        partition.append(txn(0, pid=pid))
    assert len(partition.producers) == 20
    for pid in range(100, 105):
        partition.append(data(0, pid=pid))
    assert {producer.producer_id for producer in partition.producers} >= set(range(20))
    partition.append(marker(pid=3))
    for pid in range(200, 220):
        partition.append(data(0, pid=pid))
    known = {producer.producer_id for producer in partition.producers}
    assert known >= set(range(20)) - {3}
    assert len(known) <= 19 + 3, "the others make room for each other, sooner or later"
    assert partition.producers.transactions.opened() == [(pid, pid) for pid in range(20) if pid != 3]


def test_a_producer_that_made_room_returns_when_the_write_fails() -> None:
    partition = Partition(Producers(producers_max=1))
    partition.append(data(0, pid=1))
    partition.producers.record(data(0, pid=2), 1, 0)
    assert partition.producers.get(1) is None
    partition.producers.rollback(partition.end)
    assert one(partition.producers).producer_id == 1


# --- snapshots
def test_a_copy_stays_while_the_original_moves_on() -> None:
    partition = Partition()
    partition.append(data(0))
    copy = partition.producers.copy()
    partition.append(data(1))
    assert copy == replayed(partition.log[:1])
    assert copy.to_bytes(1) == replayed(partition.log[:1]).to_bytes(1)


def test_a_snapshot_is_refused_unless_it_is_whole_and_of_this_offset() -> None:
    partition = run([data(0), data(1), data(0, pid=9, epoch=3), data(0, pid=9, epoch=4)])
    partition.producers.expire(10**9, 1)
    partition.append(data(2), now_ms=3)
    raw = partition.producers.to_bytes(5)
    loaded = Producers.from_bytes(raw, 5)
    assert loaded == partition.producers
    assert Producers.from_bytes(raw, 6) is None
    assert Producers.from_bytes(raw + b"\x00", 5) is None
    for cut in range(len(raw)):
        assert Producers.from_bytes(raw[:cut], 5) is None
    for place in range(len(raw)):
        damaged = bytearray(raw)
        damaged[place] ^= 0x40
        assert Producers.from_bytes(bytes(damaged), 5) is None


def test_nobody_is_a_state_too() -> None:
    loaded = Producers.from_bytes(Producers().to_bytes(0), 0)
    assert loaded is not None
    assert len(loaded) == 0
    assert loaded == Producers()
