"""Compaction: laws over random histories, and the life of a tombstone."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runnel.log.compaction import (
    NONE_ABORTED,
    AbortedBatches,
    CompactionStats,
    KeyMap,
    clean,
    is_due,
    keyless,
    map_keys,
)
from runnel.log.producers import LastBatches, Producers
from runnel.model.errors import InvalidRecord
from runnel.model.seams import Buffer
from runnel.model.topic_config import LONG_MAX, TopicConfig
from runnel.record import batch, records
from runnel.record.compression import Compression
from runnel.record.control import marker, marker_in
from runnel.record.records import Record

NOW = 10_000
CONFIG = TopicConfig(cleanup_policy=frozenset({"compact"}), delete_retention_ms=1_000)
KEYS = [b"a", b"b", b"c", b"a key longer than its digest 1", b"a key longer than its digest 2"]
NEVER = 2**62


def log_of(*batches: list[tuple[bytes | None, bytes | None]], timestamp: int = 0, **options: int) -> list[bytes]:
    """One batch for each list of (key, value)."""
    out: list[bytes] = []
    offset = 0
    for pairs in batches:
        made = [Record(offset + i, timestamp, key, value) for i, (key, value) in enumerate(pairs)]
        out.append(records.encode(made, base_offset=offset, **options))  # type: ignore[arg-type]
        offset += len(pairs)
    return out


def compacted(
    log: Iterable[Buffer],
    *,
    now_ms: int = NOW,
    start: int = 0,
    bound: int = NEVER,
    config: TopicConfig = CONFIG,
    keys_max: int = 1000,
    last: LastBatches | None = None,
    stats: CompactionStats | None = None,
    complete: bool = True,
    opened: Iterable[int] = (),
) -> list[bytes]:
    log = list(log)
    aborted = AbortedBatches(replayed(log).transactions.aborted)
    latest = mapped(log, start=start, bound=bound, config=config, now_ms=now_ms, keys_max=keys_max, aborted=aborted)
    kept = clean(
        log, latest, config=config, now_ms=now_ms, last=last or LastBatches({}, {}), aborted=aborted, opened=opened,
        stats=stats or CompactionStats(), complete=complete,
    )  # fmt: skip
    return [bytes(raw) for raw in kept]


def mapped(
    log: Iterable[Buffer],
    *,
    start: int,
    keys_max: int,
    bound: int = NEVER,
    config: TopicConfig = CONFIG,
    now_ms: int = NOW,
    aborted: AbortedBatches = NONE_ABORTED,
) -> KeyMap:
    latest, batches = KeyMap(start, keys_max), iter(log)
    while map_keys(latest, batches, bound=bound, config=config, now_ms=now_ms, bytes_max=100, aborted=aborted):
        pass
    return latest


def read(log: Iterable[bytes]) -> list[Record]:
    return [record for raw in log for record in records.decode(raw)]


def view(history: Iterable[Record]) -> dict[bytes | None, bytes | None]:
    """What someone who reads it all holds in the end."""
    state: dict[bytes | None, bytes | None] = {}
    for record in history:
        if record.value is None:
            state.pop(record.key, None)
        else:
            state[record.key] = record.value
    return state


# --- laws
@st.composite
def logs(draw: st.DrawFn) -> list[bytes]:
    """Batches of a few keys, of all codecs, with producers, tombstones, transactions and gaps."""
    out: list[bytes] = []
    offset = 0
    sequences = {1: 0, 2: 0}
    for number in range(draw(st.integers(1, 12))):
        pairs = draw(
            st.lists(st.tuples(st.sampled_from(KEYS), st.none() | st.binary(max_size=3)), min_size=1, max_size=5)
        )
        producer = draw(st.sampled_from([-1, 1, 2]))
        made = [
            Record(offset + i, draw(st.integers(0, NOW)), key, value, (("n", b"%d" % number),))
            for i, (key, value) in enumerate(pairs)
        ]
        raw = records.encode(
            made, base_offset=offset, compression=draw(st.sampled_from(Compression)), leader_epoch=number // 3,
            producer_id=producer, producer_epoch=0 if producer > 0 else -1, base_sequence=sequences.get(producer, -1),
            transactional=producer == 2 and draw(st.booleans()),
        )  # fmt: skip
        stamped = bytearray(raw)
        if draw(st.integers(0, 5)) == 0:
            batch.stamp_append_time(stamped, NOW - number)
        out.append(bytes(stamped))
        sequences[producer] = sequences.get(producer, 0) + len(pairs)
        offset += len(pairs) + draw(st.sampled_from([0, 0, 0, 7]))
    return out


def replayed(log: Iterable[Buffer]) -> Producers:
    producers = Producers()
    for raw in log:
        producers.replay(batch.read_header(raw), 0, marker_in(raw))
    return producers


@settings(max_examples=80)
@given(logs(), st.data())
def test_the_laws(log: list[bytes], data: st.DataObject) -> None:
    before = read(log)
    end = before[-1].offset + 1
    bound = data.draw(st.integers(0, end + 1))
    last = replayed(log).last_batches()
    after_log = compacted(log, bound=bound, last=last)
    after = read(after_log)
    assert view(after) == view(before), "the last value of each key stays"
    assert [record for record in before if record in after] == after, "nothing is invented or moved"
    assert all(batch.intact(raw, batch.read_header(raw)) for raw in after_log)
    assert [record for record in after if record.offset >= bound] == [r for r in before if r.offset >= bound]
    for name in (1, 2):
        old, new = replayed(log).get(name), replayed(after_log).get(name)
        assert (old and (old.epoch, old.last_sequence)) == (new and (new.epoch, new.last_sequence))
    assert compacted(after_log, bound=bound, last=last) == after_log, "a second pass finds nothing"


@settings(max_examples=30)
@given(logs())
def test_only_the_last_record_of_a_key_stays(log: list[bytes]) -> None:
    plain = [raw for raw in log if not batch.read_header(raw).transactional]
    after = read(compacted(plain))
    assert len({record.key for record in after}) == len(after)


@settings(max_examples=30)
@given(logs(), st.integers(1, 4))
def test_a_small_map_needs_more_passes_and_comes_to_the_same(log: list[bytes], keys_max: int) -> None:
    end = read(log)[-1].offset + 1
    small, start = log, 0
    for _ in range(100):
        latest = mapped(small, start=start, keys_max=keys_max)
        assert len(latest) <= keys_max
        small = compacted(small, start=start, keys_max=keys_max)
        if latest.end_offset >= end or latest.end_offset == start:
            break
        start = latest.end_offset
    assert read(small) == read(compacted(log))


@settings(max_examples=30)
@given(logs(), logs())
def test_the_clean_part_is_cleaned_again_by_what_came_after(first: list[bytes], second: list[bytes]) -> None:
    """Only the dirty part is mapped; what it supersedes goes from the clean part too."""
    shift = read(first)[-1].offset + 1
    moved = []
    for raw in second:
        placed = bytearray(raw)
        batch.patch(placed, batch.read_header(raw).base_offset + shift, 9)
        moved.append(bytes(placed))
    in_two_passes = compacted(compacted(first) + moved, start=shift)
    assert view(read(in_two_passes)) == view(read(first + moved))
    assert read(in_two_passes) == read(compacted(first + moved))


# --- batches
def test_a_batch_keeps_its_offsets_and_codec_and_vanishes_when_empty() -> None:
    for codec in Compression:
        log = log_of([(b"a", b"1"), (b"b", b"1"), (b"a", b"2")], [(b"b", b"2")], [(b"b", b"3")], compression=codec)
        stats = CompactionStats()
        kept = compacted(log, stats=stats)
        headers = [batch.read_header(raw) for raw in kept]
        assert [(h.base_offset, h.last_offset, h.count) for h in headers] == [(0, 2, 1), (4, 4, 1)]
        assert {h.compression for h in headers} == {codec}
        assert kept[1] == log[2], "what need not change does not"
        assert (stats.batches_read, stats.batches_written, stats.records_dropped) == (3, 2, 3)
        assert stats.bytes_read == sum(map(len, log))
        assert stats.bytes_written == sum(map(len, kept))


def test_the_last_batch_of_a_producer_stays_empty_without_codec() -> None:
    made = [Record(0, 5, b"a", b"1"), Record(1, 5, b"a", b"2")]
    first = records.encode(
        made, compression=Compression.GZIP, producer_id=4, producer_epoch=2, base_sequence=8, leader_epoch=1
    )
    last = records.encode([Record(2, 6, b"a", b"3")], base_offset=2)
    kept = compacted([first, last], last=LastBatches({4: 1}, {}))
    header = batch.read_header(kept[0])
    assert header == batch.read_header(first)._replace(size=61, count=0, attributes=0, max_timestamp=-1, crc=header.crc)
    assert records.decode(kept[0]) == []
    assert kept[1] == last
    assert compacted(kept, last=LastBatches({4: 1}, {})) == kept
    assert compacted(kept, last=LastBatches({4: 77}, {})) == [last], "a later batch holds the sequence now"


def test_max_timestamp_is_that_of_the_records_that_stay() -> None:
    made = [Record(0, 900, b"a", b"1"), Record(1, 100, b"b", b"1"), Record(2, 500, b"a", b"2")]
    (kept,) = compacted([records.encode(made)])
    assert batch.read_header(kept).max_timestamp == 500


def test_records_without_a_key_go() -> None:
    kept = compacted(log_of([(None, b"1"), (b"a", b"1")], [(None, b"2")]))
    assert [record.key for record in read(kept)] == [b"a"]
    beyond = log_of([(None, b"1"), (b"a", b"1"), (b"b", b"1"), (None, b"2")])
    assert [record.offset for record in read(compacted(beyond, keys_max=1))] == [1, 2, 3], "the map ends before b"


# --- transactions
def txn(offset: int, *pairs: tuple[bytes, bytes | None], pid: int = 7, sequence: int = 0, epoch: int = 0) -> bytes:
    made = [Record(offset + i, 0, key, value) for i, (key, value) in enumerate(pairs)]
    return records.encode(
        made, base_offset=offset, producer_id=pid, producer_epoch=epoch, base_sequence=sequence, transactional=True
    )


def end(offset: int, *, commit: bool, pid: int = 7, epoch: int = 0) -> bytes:
    made = marker(pid, epoch, commit=commit, coordinator_epoch=0, timestamp_ms=NOW)
    batch.patch(made, offset, -1)
    return bytes(made)


def offsets(log: Iterable[bytes]) -> list[int]:
    return [record.offset for record in read(log)]


def test_records_of_a_committed_transaction_are_as_any() -> None:
    old = records.encode([Record(0, 0, b"a", b"1")])
    new = records.encode([Record(4, 0, b"b", b"3")], base_offset=4)
    log = [old, txn(1, (b"a", b"2"), (b"b", b"2")), end(3, commit=True), new]
    assert offsets(compacted(log)) == [1, 3, 4]


def test_records_of_an_aborted_transaction_go_and_supersede_nothing() -> None:
    old = records.encode([Record(0, 0, b"a", b"1")])
    stats = CompactionStats()
    log = [old, txn(1, (b"a", b"2"), (b"b", b"2")), end(3, commit=False)]
    assert offsets(compacted(log, stats=stats)) == [0, 3]
    assert (stats.records_dropped, stats.aborted_dropped, stats.markers_dropped) == (2, 2, 0)
    assert offsets(compacted(log, bound=2)) == [0, 1, 2, 3], "what lies behind the end is not touched"


def test_transactions_of_one_producer_are_told_apart() -> None:
    log = [
        txn(0, (b"a", b"1")), end(1, commit=True), txn(2, (b"a", b"2"), sequence=1), end(3, commit=False),
        txn(4, (b"b", b"1"), sequence=2), end(5, commit=True), txn(6, (b"a", b"3"), pid=8), end(7, commit=False, pid=8),
    ]  # fmt: skip
    assert offsets(compacted(log)) == [0, 1, 3, 4, 5, 7]


def test_a_damaged_batch_of_an_aborted_transaction_is_kept_as_it_is() -> None:
    damaged = bytearray(txn(0, (b"a", b"1")))
    damaged[-2] ^= 1
    log = [bytes(damaged), end(1, commit=False)]
    stats = CompactionStats()
    assert compacted(log, stats=stats) == log
    assert stats.batches_unreadable == 1


@pytest.mark.parametrize("commit", [True, False])
def test_the_life_of_a_marker(commit: bool) -> None:
    """It stays while something of its transaction is left, and then until delete.retention.ms have passed."""
    config = TopicConfig(delete_retention_ms=1000)
    log = [txn(0, (b"a", b"1")), end(1, commit=commit)]
    if commit:
        assert compacted(log, config=config) == log
        log.append(records.encode([Record(2, 0, b"a", b"2")], base_offset=2))
    kept = compacted(log, config=config)
    assert offsets(kept[:1]) == [1]
    horizon = batch.read_header(kept[0])
    assert horizon.delete_horizon_ms == NOW + 1000
    assert horizon.max_timestamp == NOW
    assert marker_in(kept[0]) == marker_in(log[1]), "it says what it said"
    assert compacted(kept, config=config, now_ms=NOW + 999) == kept
    stats = CompactionStats()
    assert compacted(kept, config=config, now_ms=NOW + 1000, stats=stats) == kept[1:]
    assert stats.markers_dropped == 1


def test_a_marker_stays_while_something_of_its_transaction_is_left_in_an_earlier_segment() -> None:
    ended = [end(1, commit=True)]
    assert compacted(ended, opened=[7]) == ended
    assert compacted(ended, opened=[8]) != ended


def test_an_emptied_batch_keeps_its_marker() -> None:
    """Without it, whoever replays the log would take the transaction for open."""
    log = [txn(0, (b"a", b"1")), end(1, commit=False)]
    kept = compacted(log, last=replayed(log).last_batches())
    assert [batch.read_header(raw).count for raw in kept] == [0, 1]
    assert kept[1] == log[1]
    assert replayed(kept).transactions.opened() == []
    assert compacted(kept, last=replayed(log).last_batches(), now_ms=2 * NOW) == kept


def test_the_marker_that_holds_the_epoch_of_its_producer_stays() -> None:
    config = TopicConfig(delete_retention_ms=0)
    log = [txn(0, (b"a", b"1")), end(1, commit=False, epoch=1)]
    last = replayed(log).last_batches()
    once = compacted(log, config=config, last=last)
    assert offsets(once) == [1]
    assert compacted(once, config=config, last=last, now_ms=2 * NOW) == once
    assert compacted(once, config=config, now_ms=2 * NOW) == []


def test_markers_stay_while_a_segment_before_them_can_not_be_cleaned() -> None:
    config = TopicConfig(delete_retention_ms=0)
    log = [end(1, commit=True)]
    assert compacted(log, config=config, complete=False) == log
    marked = compacted(log, config=config)
    assert compacted(marked, config=config, now_ms=2 * NOW, complete=False) == marked


def test_a_tombstone_of_a_transaction_goes_in_time() -> None:
    config = TopicConfig(delete_retention_ms=1000)
    log = [txn(0, (b"a", None)), end(1, commit=True)]
    kept = compacted(log, config=config)
    assert batch.read_header(kept[0]).delete_horizon_ms == NOW + 1000
    assert offsets(compacted(kept, config=config, now_ms=NOW + 1000)) == [1]


@settings(max_examples=80)
@given(st.data())
def test_whatever_is_interleaved_a_consumer_of_what_is_committed_sees_the_same_table(data: st.DataObject) -> None:
    log = data.draw(transactions())
    after, now, config = log, NOW, TopicConfig(delete_retention_ms=5)
    for _ in range(3):
        after = compacted(after, last=replayed(log).last_batches(), now_ms=now, config=config)
        assert committed_view(after) == committed_view(log)
        assert replayed(after).transactions.opened() == []
        now += 10
    aborted = AbortedBatches(replayed(log).transactions.aborted)
    assert not any(aborted.has(h) and h.count for h in map(batch.read_header, after)), "nothing aborted is left"


@st.composite
def transactions(draw: st.DrawFn) -> list[bytes]:
    """Interleaved transactions of a few producers, all of them ended; now and then with the next epoch."""
    out: list[bytes] = []
    offset, epochs, sequences, is_open = 0, {1: 0, 2: 0, 3: 0}, {1: 0, 2: 0, 3: 0}, set[int]()
    steps = draw(st.lists(st.tuples(st.integers(1, 3), st.sampled_from("ddddcaCA"), st.integers(0, 3)), max_size=40))
    for pid, kind, key in [*steps, (1, "c", 0), (2, "a", 0), (3, "C", 0)]:
        if kind == "d":
            out.append(txn(offset, (b"k%d" % key, b"%d" % offset), pid=pid, sequence=sequences[pid], epoch=epochs[pid]))
            sequences[pid] += 1
            is_open.add(pid)
        elif pid in is_open or kind.isupper():
            if kind.isupper():
                epochs[pid], sequences[pid] = epochs[pid] + 1, 0
            out.append(end(offset, commit=kind in "cC", pid=pid, epoch=epochs[pid]))
            is_open.discard(pid)
        else:
            continue
        offset += 1
    return out


def committed_view(log: list[bytes]) -> dict[bytes | None, bytes | None]:
    """What a consumer has read in the end that is told of aborted transactions as clients are."""
    pending = sorted((first, pid) for pid, first, _ in replayed(log).transactions.aborted)
    seen: dict[bytes | None, bytes | None] = {}
    skipped: set[int] = set()
    for raw in log:
        header = batch.read_header(raw)
        while pending and pending[0][0] <= header.last_offset:
            skipped.add(pending.pop(0)[1])
        if header.control:
            if (said := marker_in(raw)) is not None and not said.commit:
                skipped.discard(header.producer_id)
        elif header.producer_id not in skipped or not header.transactional:
            seen.update((record.key, record.value) for record in records.decode(raw))
    assert not skipped, "an abort marker ends what is skipped"
    return seen


def test_a_damaged_batch_is_kept_as_it_is() -> None:
    log = log_of([(b"a", b"1")], [(b"a", b"2")], [(b"a", b"3")])
    damaged = bytearray(log[1])
    damaged[-2] ^= 1
    stats = CompactionStats()
    kept = compacted([log[0], bytes(damaged), log[2]], stats=stats)
    assert kept == [bytes(damaged), log[2]]
    assert stats.batches_unreadable == 1


BEYOND_TIME = b"\x00" + records.varint(2**62) + b"\x00\x02a\x02v\x00"


@pytest.mark.parametrize("section", [b"nonsense", records.varint(len(BEYOND_TIME)) + BEYOND_TIME])
def test_nonsense_with_a_good_checksum_is_kept_as_it_is(section: bytes) -> None:
    header = batch.read_header(log_of([(b"a", b"1")])[0])
    nonsense = batch.assemble(header._replace(base_offset=1, base_timestamp=2**62), section)
    log = [log_of([(b"a", b"0")])[0], nonsense]
    assert compacted(log) == log


# --- bounds
def test_nothing_young_is_compacted() -> None:
    newest = records.encode([Record(2, 200, b"a", b"3")], base_offset=2)
    log = [*log_of([(b"a", b"1")], [(b"a", b"2")], timestamp=100), newest]
    lagging = replace(CONFIG, min_compaction_lag_ms=50)
    assert [r.offset for r in read(compacted(log, config=lagging, now_ms=149))] == [0, 1, 2]
    assert [r.offset for r in read(compacted(log, config=lagging, now_ms=150))] == [1, 2]
    assert [r.offset for r in read(compacted(log, config=lagging, now_ms=250))] == [2]
    assert [r.offset for r in read(compacted(log, config=CONFIG, now_ms=0))] == [2], (
        "without a lag the future is no matter"
    )


def test_when_a_pass_is_due() -> None:
    def due(clean_bytes: int, dirty_bytes: int, *, since_ms: int = 0, config: TopicConfig = CONFIG) -> bool:
        return is_due(
            clean_bytes=clean_bytes, dirty_bytes=dirty_bytes, dirty_since_ms=since_ms, config=config, now_ms=NOW
        )

    assert not due(0, 0)
    assert due(0, 1)
    assert due(10, 10)
    assert not due(11, 10)
    hurried = replace(CONFIG, max_compaction_lag_ms=100)
    assert due(100, 1, since_ms=NOW - 101, config=hurried)
    assert not due(100, 1, since_ms=NOW - 100, config=hurried)


def test_only_keys() -> None:
    assert keyless(log_of([(b"a", b"1"), (b"", None)])[0]) == []
    assert keyless(log_of([(b"a", b"1"), (None, b"1")])[0]) == [1]
    header = batch.read_header(log_of([(b"a", b"1")])[0])
    with pytest.raises(InvalidRecord):
        keyless(batch.assemble(header, b"nonsense"))


# --- tombstones
@pytest.mark.parametrize("codec", Compression)
def test_the_life_of_a_tombstone(codec: Compression) -> None:
    log = log_of([(b"a", b"1"), (b"b", b"1")], [(b"x", b"1"), (b"a", None)], timestamp=77, compression=codec)
    first = compacted(log, now_ms=NOW)
    assert [(r.offset, r.timestamp, r.key, r.value) for r in read(first)] == [
        (1, 77, b"b", b"1"), (2, 77, b"x", b"1"), (3, 77, b"a", None),
    ]  # fmt: skip
    header = batch.read_header(first[1])
    assert header.delete_horizon_ms == NOW + 1_000
    assert (header.max_timestamp, header.compression) == (77, codec)
    assert batch.read_header(first[0]).delete_horizon_ms is None
    assert compacted(first, now_ms=NOW + 999) == first, "the horizon does not move"
    stats = CompactionStats()
    last = compacted(first, now_ms=NOW + 1_000, stats=stats)
    assert [(r.offset, r.timestamp) for r in read(last)] == [(1, 77), (2, 77)]
    assert stats.tombstones_dropped == stats.records_dropped == 1


def test_a_tombstone_that_is_superseded_goes_at_once() -> None:
    assert read(compacted(log_of([(b"a", None)], [(b"a", b"1")]))) == [Record(1, 0, b"a", b"1")]


def test_a_tombstone_of_append_time_keeps_its_time() -> None:
    raw = bytearray(log_of([(b"a", None)], timestamp=5)[0])
    batch.stamp_append_time(raw, 99)
    (kept,) = compacted([bytes(raw)])
    assert batch.read_header(kept).delete_horizon_ms == NOW + 1_000
    assert read([kept]) == [Record(0, 99, b"a", None)]


def test_tombstones_may_be_kept_for_ever() -> None:
    for_ever = replace(CONFIG, delete_retention_ms=LONG_MAX)
    kept = compacted(log_of([(b"a", None)], timestamp=3), config=for_ever)
    assert read(kept) == [Record(0, 3, b"a", None)]
    assert compacted(kept, config=for_ever, now_ms=2**50) == kept


def test_tombstones_stay_while_a_segment_before_them_can_not_be_cleaned() -> None:
    """It may hold what they deleted, which would come back without them."""
    log = log_of([(b"a", b"1")], [(b"a", None)])
    assert compacted(log, complete=False) == log[1:], "not marked"
    marked = compacted(log)
    assert compacted(marked, now_ms=NOW + 5_000, complete=False) == marked, "marked, but not dropped"
    assert compacted(marked, now_ms=NOW + 5_000) == []
    damaged = bytearray(log[0])
    damaged[-2] ^= 1
    assert compacted([damaged, *log[1:]]) == [damaged, *log[1:]]


def test_a_batch_is_marked_only_when_the_map_covers_all_of_it() -> None:
    log = log_of([(b"a", b"1"), (b"b", b"1")], [(b"a", None), (b"b", None)])
    (first, second) = compacted(log, keys_max=1, start=2)
    assert [record.offset for record in read([first])] == [1]
    assert second == log[1]
