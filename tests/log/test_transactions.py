"""Transactions in a log: what is stable, what was aborted, and that both follow from the log alone."""

import asyncio
import errno
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from runnel.log import placing
from runnel.log import transactions as live
from runnel.log.log import AbortedTransaction, Appended, Log
from runnel.log.producers import Producers
from runnel.log.transactions import Aborted, Transactions
from runnel.model.errors import InvalidProducerEpoch, InvalidRecord, InvalidTransactionState, StorageFailed
from runnel.model.topic_config import FlushMode, TopicConfig
from runnel.record import batch, records
from runnel.record.control import marker, marker_in
from runnel.record.records import Record
from runnel.testing.clock import ManualClock, SeededRng
from runnel.testing.disk import Fault, PowerCut, SimDisk

FOLDER = "partitions/p-0"
SMALL = 400  # a segment takes a few batches
A, B, C = 11, 12, 13


def config(segment_bytes: int = 10**6, mode: str = "commit", **others: Any) -> TopicConfig:
    return TopicConfig(flush_mode=FlushMode(mode), segment_bytes=segment_bytes, index_interval_bytes=200, **others)


def run(test: Callable[[SimDisk], Awaitable[None]]) -> None:
    async def main() -> None:
        await test(SimDisk(SeededRng(1)))

    asyncio.run(main())


async def opened(disk: SimDisk, settings: TopicConfig | None = None) -> Log:
    return await Log.open(disk, FOLDER, settings or config(), clock=ManualClock())


class Writer:
    """What transactional producers send."""

    def __init__(self) -> None:
        self._sequences: dict[tuple[int, int], int] = {}

    def data(self, pid: int, *, epoch: int = 0, key: bytes = b"k") -> bytearray:
        sequence = self._sequences.get((pid, epoch), 0)
        self._sequences[pid, epoch] = sequence + 1
        return bytearray(
            records.encode(
                [Record(0, 1, key, b"%d" % sequence)], producer_id=pid, producer_epoch=epoch, base_sequence=sequence,
                transactional=True,
            )
        )  # fmt: skip

    def plain(self, size: int = 10) -> bytearray:
        return bytearray(records.encode([Record(0, 1, b"k", b"v" * size)]))

    def end(self, pid: int, *, commit: bool = True, epoch: int = 0, coordinator: int = 0) -> bytearray:
        return marker(pid, epoch, commit=commit, coordinator_epoch=coordinator, timestamp_ms=1)


async def put(log: Log, *batches: bytearray) -> list[int]:
    pending = [log.append(one, batch.read_header(one), leader_epoch=0) for one in batches]
    return [(one if isinstance(one, Appended) else await one).base_offset for one in pending]


def aborted(*found: tuple[int, int]) -> list[AbortedTransaction]:
    return [AbortedTransaction(*one) for one in found]


def names(disk: SimDisk, suffix: str) -> list[str]:
    return sorted(name for name in disk.list(FOLDER) if name.endswith(suffix))


# --- what is stable


def test_unstable_is_what_is_open_or_whose_marker_is_not_committed() -> None:
    async def test(disk: SimDisk) -> None:
        log, of = await opened(disk), Writer()
        await put(log, of.plain())
        assert log.first_unstable(1) is None
        await put(log, of.data(A), of.data(B), of.data(A))
        assert log.first_unstable(4) == 1
        await put(log, of.end(A))  # at 4
        assert log.first_unstable(4) == 1, "a new leader may not have the marker"
        assert log.first_unstable(5) == 2
        await put(log, of.data(A))  # at 5: the next transaction
        await put(log, of.end(B, commit=False))  # at 6
        assert log.first_unstable(6) == 2
        assert log.first_unstable(7) == 5
        await put(log, of.end(A))
        assert log.first_unstable(log.end_offset) is None

    run(test)


def test_transactions_that_end_out_of_order() -> None:
    async def test(disk: SimDisk) -> None:
        log, of = await opened(disk), Writer()
        await put(log, of.data(A), of.data(B), of.data(C), of.end(C), of.end(A))  # markers at 3 and 4
        assert log.first_unstable(3) == 0
        assert log.first_unstable(4) == 0
        assert log.first_unstable(5) == 1
        await put(log, of.end(B))
        assert log.first_unstable(5) == 1
        assert log.first_unstable(6) is None

    run(test)


def test_what_ended_above_the_high_watermark_is_unstable_after_a_restart_too() -> None:
    async def test(disk: SimDisk) -> None:
        log, of = await opened(disk), Writer()
        await put(log, of.data(A), of.data(B), of.end(A), of.plain())
        for clean in (True, False):
            if clean:
                await log.close()
            log = await opened(disk)
            assert log.first_unstable(2) == 0
        assert log.first_unstable(3) == 1

    run(test)


def test_what_is_unstable_is_never_below_the_start() -> None:
    async def test(disk: SimDisk) -> None:
        log, of = await opened(disk), Writer()
        await put(log, of.data(A), of.data(A), of.plain())
        await log.advance_start(2, 3)
        assert log.first_unstable(3) == 2

    run(test)


def test_those_that_ended_are_bounded_and_none_is_stable_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A follower that never hears of a high watermark."""
    monkeypatch.setattr(live, "ENDED_MAX", 8)
    known, end = Transactions(), 0
    lives: list[tuple[int, int]] = []
    for pid in range(100):
        known.begin(pid, end)
        known.merge()
        known.end(pid, end, end + 1, commit=pid % 2 == 0)
        lives.append((end, end + 1))
        end += 2
    assert len(known.ended) <= 8
    for upto in range(end + 1):
        exact = min((first for first, at in lives if at >= upto), default=None)
        told = known.first_unstable(upto)
        assert told is None or exact is None or told <= exact
        assert (told is None) == (exact is None)
    newest = [(at, first) for first, at in lives][-3:]
    assert newest[0][0] < end


def test_a_merge_keeps_the_first_of_them() -> None:
    known = Transactions()
    for pid in range(live.ENDED_MAX):
        known.begin(pid, pid)
    for pid in reversed(range(live.ENDED_MAX)):
        known.end(pid, pid, 2 * live.ENDED_MAX - pid, commit=True)
    known.merge()
    assert len(known.ended) == live.ENDED_MAX // 2 + 1
    assert known.first_unstable(live.ENDED_MAX) == 0
    assert known.first_unstable(live.ENDED_MAX * 3 // 2 + 1) == 0
    assert known.first_unstable(2 * live.ENDED_MAX + 1) is None


# --- what was aborted


def test_aborted_transactions_are_those_that_overlap() -> None:
    async def test(disk: SimDisk) -> None:
        log, of = await opened(disk), Writer()
        await put(log, of.data(A), of.data(B), of.end(A, commit=False), of.data(A), of.plain(), of.end(B))
        await put(log, of.end(A, commit=False), of.plain())  # at 6 and 7
        assert await log.aborted(0, 8) == aborted((A, 0), (A, 3))
        assert await log.aborted(0, 3) == aborted((A, 0))
        assert await log.aborted(2, 3) == aborted((A, 0)), "its marker is of it"
        assert await log.aborted(3, 4) == aborted((A, 3))
        assert await log.aborted(4, 5) == aborted((A, 3))
        assert await log.aborted(7, 8) == []

    run(test)


async def interleaved(log: Log) -> list[AbortedTransaction]:
    """Transactions over many segments: short ones, one that is as long as the log, and one that stays open."""
    of = Writer()
    await put(log, of.data(C), of.plain())
    expected = []
    for number in range(12):
        (first,) = await put(log, of.data(A, epoch=number))
        await put(log, of.plain(60), of.data(C), of.data(B))
        await put(log, of.end(A, commit=number % 2 == 1, epoch=number + 1))
        if number % 2 == 0:
            expected.append((A, first))
    await put(log, of.end(C, commit=False, epoch=1), of.plain(), of.data(A, epoch=12))
    return aborted((C, 0), *expected)


async def check(log: Log, expected: list[AbortedTransaction]) -> None:
    """Whatever part is asked for, it is what the headers of the log say."""
    replayed, offset = Producers(), int(log.start_offset)
    while data := await log.read(offset, 1000, log.end_offset):
        for at, header in batch.headers(data):
            raw = bytes(data[at : at + header.size])
            replayed.replay(header, 0, marker_in(raw) if header.control else None)
            offset = header.last_offset + 1
    all_of_them = list(replayed.transactions.aborted)
    assert sorted(AbortedTransaction(*one[:2]) for one in all_of_them) == sorted(expected)
    for start in range(log.start_offset, log.end_offset, 3):
        for end in range(start + 1, log.end_offset + 1, 5):
            found = sorted((first, pid) for pid, first, at in all_of_them if first < end and at >= start)
            assert await log.aborted(start, end) == aborted(*((pid, first) for first, pid in found)), (start, end)
    assert log.producers.transactions.opened() == replayed.transactions.opened()


@pytest.mark.parametrize("stop", ["none", "clean", "kill", "power"])
def test_transactions_over_many_segments(stop: str) -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk, config(SMALL))
        expected = await interleaved(log)
        if stop == "clean":
            await log.close()
        if stop == "kill":
            disk = disk.kill()
        if stop == "power":
            await log.sync()
            disk = disk.crash()
        if stop != "none":
            log = await opened(disk, config(SMALL))
        assert len(names(disk, ".log")) > 10
        await check(log, expected)

    run(test)


def test_a_crash_at_any_point_leaves_what_follows_from_the_log() -> None:
    """Also between a marker and what is written beside the segment."""

    async def test(_: SimDisk) -> None:
        for nth in range(1, 400, 7):
            disk = SimDisk(SeededRng(nth))
            log = await opened(disk, config(SMALL))
            disk.inject(Fault(call="", nth=nth, power_cut=True))
            work = asyncio.ensure_future(interleaved(log))
            while not work.done() and not disk.dead:
                await asyncio.sleep(0)
            if not disk.dead:
                await work
                return
            work.cancel()
            await asyncio.wait([work])
            if not work.cancelled():
                assert isinstance(work.exception(), PowerCut | StorageFailed)
            log = await opened(disk.crash(), config(SMALL))
            replayed = await replay(log)
            await check(log, [AbortedTransaction(*one[:2]) for one in replayed])

    run(test)


async def replay(log: Log) -> Aborted:
    replayed, offset = Producers(), int(log.start_offset)
    while data := await log.read(offset, 1000, log.end_offset):
        for at, header in batch.headers(data):
            replayed.replay(header, 0, marker_in(bytes(data[at : at + header.size])) if header.control else None)
            offset = header.last_offset + 1
    return replayed.transactions.aborted


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize("how", ["remove", "truncate", "garbage", "flip", "another's"])
@pytest.mark.parametrize("suffix", [".transactions", ".producers", ".index", "checkpoint", "synced"])
def test_every_file_beside_the_batches_may_be_lost(suffix: str, how: str, clean: bool) -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk, config(SMALL))
        expected = await interleaved(log)
        if clean:
            await log.close()
        disk = disk.kill()
        found = names(disk, suffix)
        assert found
        contents = [read(disk, name) for name in found]
        for name, content in zip(found, contents, strict=True):
            spoil(disk, name, how, content, contents)
        log = await opened(disk, config(SMALL))
        await check(log, expected)
        assert log.first_unstable(log.end_offset) == 5, "B is open since then"
        await log.close()
        log = await opened(disk.kill(), config(SMALL))
        await check(log, expected)

    run(test)


def read(disk: SimDisk, name: str) -> bytes:
    file = disk.open(f"{FOLDER}/{name}")
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()


def spoil(disk: SimDisk, name: str, how: str, content: bytes, others: list[bytes]) -> None:
    if how == "remove":
        return disk.remove(f"{FOLDER}/{name}")
    file = disk.open(f"{FOLDER}/{name}")
    if how == "truncate":
        file.truncate(len(content) // 2)
    elif how == "garbage":
        file.write([b"garbage" * 5], 0)
    elif how == "flip":
        file.write([bytes([content[-1] ^ 1])], len(content) - 1)
    else:
        file.truncate(0)
        file.write([others[0] if content != others[0] else others[-1]], 0)
    file.close()
    return None


def test_what_had_to_be_built_is_written_down() -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk, config(SMALL))
        expected = await interleaved(log)
        await log.close()
        for name in names(disk, ".transactions"):
            disk.remove(f"{FOLDER}/{name}")
        log = await opened(disk, config(SMALL))
        await check(log, expected)
        await log.close()
        assert [name.partition(".")[0] for name in names(disk, ".transactions")] == [
            name.partition(".")[0] for name in names(disk, ".log")
        ]
        log = await opened(disk, config(SMALL))
        before = len(disk.calls)
        await log.aborted(0, log.end_offset)
        assert not [path for call, path in disk.calls[before:] if call == "read" and path.endswith(".log")]

    run(test)


def test_a_log_without_transactions_has_no_files_of_them_and_answers_without_the_disk() -> None:
    async def test(disk: SimDisk) -> None:
        log, of = await opened(disk, config(SMALL)), Writer()
        for sequence in range(20):
            made = records.encode(
                [Record(0, 1, b"k", b"v" * 50)], producer_id=5, producer_epoch=0, base_sequence=sequence
            )
            await put(log, of.plain(50), bytearray(made))
        before = len(disk.calls)
        assert log.aborted_cached(0, log.end_offset) == []
        assert await log.aborted(0, log.end_offset) == []
        assert disk.calls[before:] == []
        await log.close()
        assert names(disk, ".transactions") == []
        log = await opened(disk, config(SMALL))
        before = len(disk.calls)
        assert log.aborted_cached(0, log.end_offset) == []
        assert disk.calls[before:] == []

    run(test)


def test_what_is_known_of_sealed_segments_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runnel.log.outcomes.KEPT_MAX", 5)

    async def test(disk: SimDisk) -> None:
        log = await opened(disk, config(SMALL))
        expected = await interleaved(log)
        await check(log, expected)
        kept = log._state.outcomes
        assert len(kept._by_segment) < 5
        assert kept._count == sum(len(one.aborted) + len(one.opened) + 1 for one in kept._by_segment.values()) <= 5

    run(test)


def test_a_segment_with_too_many_aborted_transactions_is_rolled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placing, "ABORTED_MAX", 5)

    async def test(disk: SimDisk) -> None:
        log, of = await opened(disk), Writer()
        copy = await opened(other := SimDisk(SeededRng(2)))
        expected = []
        for number in range(17):
            (first,) = await put(log, of.data(A))
            await put(log, of.end(A, commit=False))
            expected.append((A, first))
            data = await log.read(copy.end_offset, 10**6, log.end_offset)
            done = copy.append_as_follower(data)
            assert isinstance(done, Appended) or await done
            assert len(log.producers.transactions.aborted) <= 5
            assert number < 10 or len(copy.producers.transactions.aborted) <= 5
        await check(log, aborted(*expected))
        await check(copy, aborted(*expected))
        assert len(names(disk, ".log")) == len(names(other, ".log")) == 4

    run(test)


# --- getting shorter


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("sealed", [False, True])
def test_transactions_go_back_with_the_log(sealed: bool, restart: bool) -> None:
    settings = config(SMALL if sealed else 10**6)

    async def test(disk: SimDisk) -> None:
        log = await opened(disk, settings)
        await interleaved(log)
        for cut in (55, 40, 27, 26, 9, 5, 2, 1):
            await log.truncate(cut)
            assert log.end_offset == cut
            if restart:
                log = await opened(disk.crash() if cut % 2 else disk.kill(), settings)
                disk = log._disk  # type: ignore[assignment]
            assert log.first_unstable(cut) == 0, "C is open again"
            await check(log, [AbortedTransaction(*one[:2]) for one in await replay(log)])

    run(test)


@pytest.mark.parametrize("cut", [0, 2])
def test_a_file_from_before_a_cut_is_not_taken_for_that_of_what_follows(cut: int) -> None:
    """The log grows again to the same size and offset, with another outcome, which the disk has no room to keep."""

    async def test(_: SimDisk) -> None:
        for seed in range(30):
            disk, of, again = SimDisk(SeededRng(seed)), Writer(), Writer()
            log = await opened(disk, config(SMALL))
            await put(log, of.data(A), of.data(B), of.end(A, commit=False), of.end(B), of.plain(300), of.plain(300))
            await log.close()
            log = await opened(disk, config(SMALL))
            await log.truncate(cut)
            disk.inject(Fault(call="write", errno=errno.ENOSPC, path=".transactions", times=100))
            same = [again.data(A), again.data(B)]
            await put(log, *same[cut:], again.end(A), again.end(B, commit=False), again.plain(300), again.plain(300))
            await log.sync()
            disk.heal()
            log = await opened(disk.crash(), config(SMALL))
            assert await log.aborted(0, log.end_offset) == aborted((B, 1))

    run(test)


def test_what_was_known_of_a_segment_before_a_cut_is_forgotten() -> None:
    async def test(disk: SimDisk) -> None:
        log, of, again = await opened(disk, config(SMALL)), Writer(), Writer()
        await put(log, of.data(A), of.data(B), of.end(A, commit=False), of.end(B), of.plain(300), of.plain(300))
        assert await log.aborted(0, log.end_offset) == aborted((A, 0))
        await log.truncate(2)
        again.data(A), again.data(B)
        await put(log, again.end(A), again.end(B, commit=False), again.plain(300), again.plain(300))
        assert await log.aborted(0, log.end_offset) == aborted((B, 1))

    run(test)


def test_a_log_that_begins_anew_knows_no_transactions() -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk, config(SMALL))
        await interleaved(log)
        await log.begin_anew(1000)
        assert log.first_unstable(1000) is None
        assert await log.aborted(0, 2000) == []
        assert names(disk, ".transactions") == []
        log = await opened(disk.crash(), config(SMALL))
        assert log.producers.transactions.empty

    run(test)


def test_a_replica_that_heals_knows_the_transactions_of_its_leader() -> None:
    async def test(disk: SimDisk) -> None:
        leader = await opened(SimDisk(SeededRng(3)), config(SMALL))
        expected = await interleaved(leader)
        log = await opened(disk, config(SMALL))
        await interleaved(log)
        await log.close()
        hurt = names(disk, ".log")[len(names(disk, ".log")) // 2]
        disk.rot(f"{FOLDER}/{hurt}", 30)
        log = await opened(disk, config(SMALL))
        with pytest.raises(Exception, match="are not what was written"):
            await check(log, expected)
        await log.heal_from(log.end_offset)
        assert log.end_offset < leader.end_offset
        while data := await leader.read(log.end_offset, 500, leader.end_offset):
            done = log.append_as_follower(data)
            assert isinstance(done, Appended) or await done
        await check(log, expected)

    run(test)


def test_retention_takes_what_was_aborted_with_its_segment() -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk, config(SMALL))
        await interleaved(log)
        log.reconfigure(config(SMALL, retention_bytes=900))
        assert (await log.enforce_retention()).segments > 3
        start = log.start_offset
        assert names(disk, ".transactions")[0] >= f"{start:020}"
        found = await log.aborted(start, log.end_offset)
        assert found[0] == (C, 0), "it ended behind the start"
        await log.sync()
        for stop in (SimDisk.kill, SimDisk.crash):
            disk = stop(disk)
            log = await opened(disk, config(SMALL))
            told = await log.aborted(start, log.end_offset)
            assert C in {one.producer_id for one in told}, "what is left of it is known to be aborted"
            assert set(told) <= set(found)

    run(test)


# --- following


@pytest.mark.parametrize("size", [1, 300, 10**6])
def test_a_follower_knows_what_its_leader_knows(size: int) -> None:
    async def test(disk: SimDisk) -> None:
        leader, follower = await opened(disk, config(SMALL)), await opened(SimDisk(SeededRng(2)), config(900))
        expected = await interleaved(leader)
        while data := await leader.read(follower.end_offset, size, leader.end_offset):
            done = follower.append_as_follower(data)
            assert isinstance(done, Appended) or await done
        await check(follower, expected)
        for producer in leader.producers:
            known = follower.producers.get(producer.producer_id)
            assert known is not None
            assert known._replace(seen_ms=0) == producer._replace(seen_ms=0)

    run(test)


# --- what may be appended


def test_a_marker_that_was_appended_is_not_appended_again() -> None:
    async def test(disk: SimDisk) -> None:
        log, of = await opened(disk), Writer()
        await put(log, of.data(A), of.end(A, epoch=1), of.plain())
        again = of.end(A, epoch=1)
        done = log.append(again, batch.read_header(again), leader_epoch=0)
        done = done if isinstance(done, Appended) else await done
        assert done.duplicate
        assert done.last_offset == 2, "it is committed at the latest when all of this is"
        assert log.end_offset == 3
        with pytest.raises(InvalidProducerEpoch):
            await put(log, of.data(A))

    run(test)


def test_a_control_batch_that_is_no_marker_is_refused() -> None:
    async def test(disk: SimDisk) -> None:
        log = await opened(disk)
        strange = records.encode(
            [Record(0, 1, b"\x00\x00\x00\x07", b"")], producer_id=A, producer_epoch=0, transactional=True, control=True
        )
        with pytest.raises(InvalidRecord):
            await put(log, bytearray(strange))
        assert log.end_offset == 0
        assert len(log.producers) == 0

    run(test)


@pytest.mark.parametrize("together", [False, True])
def test_a_write_that_fails_leaves_no_transaction_and_ends_none(together: bool) -> None:
    async def test(disk: SimDisk) -> None:
        log, of = await opened(disk, config(mode="os")), Writer()
        await put(log, of.data(A), of.data(B))
        lost = [of.end(A, commit=False), of.data(C), of.data(A)]
        disk.inject(Fault(call="write", errno=errno.ENOSPC, path=".log", times=1 if together else 3))
        if together:  # those in line are written with one call
            syncing = asyncio.ensure_future(log.sync())
            await asyncio.sleep(0)
        for one in lost if not together else []:
            with pytest.raises(StorageFailed):
                await put(log, one)
        if together:
            with pytest.raises(StorageFailed):
                await put(log, *lost)
            await syncing
        assert log.end_offset == 2
        assert await log.aborted(0, 2) == []
        assert log.first_unstable(2) == 0
        assert log.producers.transactions.opened() == [(A, 0), (B, 1)]
        disk.heal()
        await put(log, of.end(A, commit=False), of.end(B))
        assert log.first_unstable(4) is None
        assert await log.aborted(0, 4) == aborted((A, 0))

    run(test)


def test_nothing_is_written_beside_an_open_transaction() -> None:
    async def test(disk: SimDisk) -> None:
        log, of = await opened(disk), Writer()
        await put(log, of.data(A))
        outside = records.encode([Record(0, 1, b"k", b"")], producer_id=A, producer_epoch=0, base_sequence=1)
        with pytest.raises(InvalidTransactionState):
            await put(log, bytearray(outside))
        with pytest.raises(InvalidTransactionState):
            await put(log, of.data(A, epoch=1))
        assert log.end_offset == 1

    run(test)


# --- compaction


def test_compaction_respects_transactions_and_their_files_follow() -> None:
    async def test(disk: SimDisk) -> None:
        settings = config(SMALL, cleanup_policy=frozenset({"compact"}), min_cleanable_dirty_ratio=0.0)
        log, of = await opened(disk, settings), Writer()
        await put(log, of.data(A, key=b"a"), of.data(B, key=b"b"), of.end(A), of.end(B, commit=False))
        for number in range(10):
            await put(log, of.data(A, key=b"a"), of.data(B, key=b"b"), of.end(B, commit=False), of.end(A))
            await put(log, of.data(C, key=b"%d" % number))
        upto = log.end_offset
        assert await log.compact(upto) is not None
        before, of_c = await keys(log)
        assert before.count(b"b") == 10, "only what lies before offset 8, where C is open, was compacted"
        assert of_c == [b"%d" % n for n in range(10)]
        await put(log, of.end(C), of.plain(300))
        await log.sync()
        assert await log.compact(log.end_offset) is not None
        for stop in (None, SimDisk.kill, SimDisk.crash):
            disk = stop(disk) if stop is not None else disk
            log = await opened(disk, settings) if stop is not None else log
            await check(log, [AbortedTransaction(*one[:2]) for one in await replay(log)])
            after, of_c = await keys(log)
            assert after.count(b"b") <= 1, "what was aborted is gone, but for the segment that is written to"
            assert after[-1] == b"a"
            assert of_c == [b"%d" % n for n in range(10)]

    run(test)


async def keys(log: Log) -> tuple[list[bytes | None], list[bytes | None]]:
    """Of A and B, and of C; in the order of offsets."""
    found: tuple[list[bytes | None], list[bytes | None]] = ([], [])
    offset = int(log.start_offset)
    while data := await log.read(offset, 1000, log.end_offset):
        for at, header in batch.headers(data):
            offset = header.last_offset + 1
            if header.producer_id >= 0 and not header.control:
                made = records.decode(bytes(data[at : at + header.size]))
                found[header.producer_id == C].extend(record.key for record in made)
    return found
