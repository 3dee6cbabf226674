"""A log against a model of it: random appends, rolls, truncations, trims, crashes and reopenings.

The promise: what was synced survives a power cut, what was written survives the death of the process, an offset
always means the same message, and whatever was not acknowledged disappears as a whole tail or not at all. Whoever reads
what is committed sees what committed transactions wrote, and nothing of others, whatever files were lost.
"""

import asyncio
import contextlib
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.helpers.examples import EXAMPLES

from runnel.log.log import Appended, Log
from runnel.log.producers import Producers
from runnel.model.errors import Fatal, OffsetOutOfRange, OutOfOrderSequence, StorageFailed
from runnel.model.topic_config import FlushMode, TopicConfig
from runnel.record import batch, records
from runnel.record.control import marker, marker_in
from runnel.record.records import Record
from runnel.shell.disk import RealDisk
from runnel.testing.clock import ManualClock, SeededRng
from runnel.testing.disk import Fault, PowerCut, SimDisk

T = TypeVar("T")
FOLDER = "partitions/p-0"
TRANSACTIONAL = (11, 12, 13)  # producers
KEYS = [b"a", b"b", b"c", b"d", b"a longer key than sixteen bytes"]


class LogMachine(RuleBasedStateMachine):
    """Everything but compaction."""

    compacted = False

    @initialize(seed=st.integers(0, 2**32), mode=st.sampled_from(FlushMode), size=st.sampled_from([700, 3000, 10**6]))
    def begin(self, seed: int, mode: FlushMode, size: int) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(lambda loop, context: None)  # zombies die with PowerCut, unheard
        self.clock = ManualClock()
        self.disk = self.new_disk(seed)
        policy = frozenset({"compact"}) if self.compacted else frozenset({"delete"})
        self.config = TopicConfig(
            flush_mode=mode, segment_bytes=size, index_interval_bytes=200, retention_bytes=-1, retention_ms=-1,
            min_cleanable_dirty_ratio=0.0, cleanup_policy=policy,
        )  # fmt: skip
        self.batches: list[bytes] = []  # as they are in the log
        self.start = 0
        self.start_kept = 0  # as far as somebody was told that it stays, or something was synced since
        self.epoch = 0
        self.synced = 0  # nothing below may ever get lost
        self.sequences: dict[int, int] = {}
        self.producer_epochs: dict[int, int] = {}
        self.compacted_upto = 0
        self.killing = False  # what strikes in the middle of work: kills, or power cuts
        self.log: Log = self.run(self.open)

    def new_disk(self, seed: int) -> SimDisk:
        return SimDisk(SeededRng(seed))

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            try:
                self.bury()
            finally:
                self.loop.close()

    # --- running it

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run until it is done or the power is cut."""

        async def wrapped() -> T:
            return await work()

        task = self.loop.create_task(wrapped())
        while not task.done():
            if self.disk.dead:
                raise PowerCut
            self.loop.run_until_complete(asyncio.sleep(0))
        return task.result()

    async def open(self) -> Log:
        return await Log.open(self.disk, FOLDER, self.config, clock=self.clock, on_fatal=lambda error: None)

    def bury(self) -> None:
        """End whatever the dead process still had under way."""
        self.disk.dead = True
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        while asyncio.all_tasks(self.loop):
            self.loop.run_until_complete(asyncio.sleep(0))

    def attempt(self, work: Callable[[], Awaitable[Any]], cut_at: int | None) -> bool:
        """Whether it was done before the process ended, at the so-many-th call of the disk from now."""
        if cut_at is not None:
            self.end_at(cut_at)
        try:
            self.run(work)
        except PowerCut:
            assert cut_at is not None
            self.recover(power=not self.killing, midway=True)
            return False
        self.disk.heal()
        return True

    def end_at(self, nth: int) -> None:
        self.disk.inject(Fault(call="", nth=nth, power_cut=not self.killing, killed=self.killing))

    # --- what is done to it

    def make(self, count: int, size: int, key: int, producer: int | None) -> bytearray:
        self.clock.advance(1)
        now = self.clock.wall_ms()
        made = [Record(i, now, KEYS[(key + i) % len(KEYS)], bytes([key]) * size, ()) for i in range(count)]
        if producer is None:
            return bytearray(records.encode(made))
        sequence = self.sequences.get(producer, 0)
        self.sequences[producer] = sequence + count
        return bytearray(records.encode(made, producer_id=producer, producer_epoch=0, base_sequence=sequence))

    async def send(self, batches: list[bytearray]) -> list[Appended]:
        pending = [self.log.append(b, self.header_of(b), leader_epoch=self.epoch) for b in batches]
        return [p if isinstance(p, Appended) else await p for p in pending]

    def header_of(self, raw: bytearray) -> batch.BatchHeader:
        header = batch.read_header(raw)
        return header if header.control else batch.check_produced(raw)

    @rule(
        specs=st.lists(
            st.tuples(st.integers(1, 3), st.integers(0, 300), st.integers(0, 4), st.sampled_from([None, None, 7, 8])),
            min_size=1, max_size=6,
        ),
        cut_at=st.one_of(st.none(), st.none(), st.integers(1, 12)),
    )  # fmt: skip
    def append(self, specs: list[tuple[int, int, int, int | None]], cut_at: int | None) -> None:
        self.append_all([self.make(*spec) for spec in specs], cut_at)

    @rule(
        steps=st.lists(
            st.tuples(st.sampled_from(TRANSACTIONAL), st.sampled_from("dddcaCA"), st.integers(0, 4)),
            min_size=1, max_size=8,
        ),
        cut_at=st.one_of(st.none(), st.none(), st.integers(1, 12)),
    )  # fmt: skip
    def transact(self, steps: list[tuple[int, str, int]], cut_at: int | None) -> None:
        """Batches and markers of interleaved transactions; a capital letter ends the epoch too."""
        made, is_open = [], {pid for pid, first in self.transactions()[0]}
        known = {pid for pid in TRANSACTIONAL if self.log.producers.get(pid) is not None}
        for pid, kind, key in steps:
            if kind == "d":
                made.append(self.make_transactional(pid, key))
                is_open.add(pid)
                known.add(pid)
            elif pid in is_open:
                if pid not in known:
                    self.sequences[pid] = 0  # its batches are gone, and so is what was known of it: a marker says less
                    known.add(pid)
                made.append(self.make_marker(pid, commit=kind in "cC", bump=kind.isupper()))
                is_open.remove(pid)
        self.append_all(made, cut_at)

    def make_transactional(self, pid: int, key: int) -> bytearray:
        self.clock.advance(1)
        sequence, now = self.sequences.get(pid, 0), self.clock.wall_ms()
        self.sequences[pid] = sequence + 1
        return bytearray(
            records.encode(
                [Record(0, now, KEYS[key], b"%d of %d" % (sequence, pid))], producer_id=pid, base_sequence=sequence,
                producer_epoch=self.producer_epochs.get(pid, 0), transactional=True,
            )
        )  # fmt: skip

    def make_marker(self, pid: int, *, commit: bool, bump: bool) -> bytearray:
        self.clock.advance(1)
        epoch = self.producer_epochs.get(pid, 0) + bump
        self.producer_epochs[pid] = epoch
        self.sequences[pid] = 0 if bump else self.sequences.get(pid, 0)
        return marker(pid, epoch, commit=commit, coordinator_epoch=0, timestamp_ms=self.clock.wall_ms())

    def append_all(self, made: list[bytearray], cut_at: int | None) -> None:
        results: list[Appended] = []

        async def work() -> None:
            results.extend(await self.send(made))

        before = self.end
        self.pending = [bytes(b) for b in made]
        if self.attempt(work, cut_at):
            due = before
            for buffer, appended in zip(made, results, strict=True):
                assert not appended.duplicate
                assert appended.base_offset == due
                due = appended.last_offset + 1
                self.batches.append(bytes(buffer))
            assert self.log.end_offset == due
        self.pending = []

    @rule(producer=st.sampled_from([7, 8]))
    def retry(self, producer: int) -> None:
        """The last batch of a producer, sent again, is answered with its first offset."""
        known = [b for b in self.present() if batch.read_header(b).producer_id == producer]
        if not known or self.compacted:
            return
        header = batch.read_header(known[-1])
        again = bytearray(known[-1])
        end = self.log.end_offset
        (appended,) = self.run(lambda: self.send([again]))
        assert appended.duplicate
        assert (appended.base_offset, appended.last_offset) == (header.base_offset, header.last_offset)
        assert self.log.end_offset == end

    @rule()
    def out_of_order(self) -> None:
        """A sequence that skips one is refused, and leaves nothing behind."""
        if 7 not in {batch.read_header(b).producer_id for b in self.present()}:
            return
        made = records.encode(
            [Record(0, 1, b"a", b"", ())], producer_id=7, producer_epoch=0, base_sequence=self.sequences[7] + 1
        )
        with pytest.raises(OutOfOrderSequence):
            self.run(lambda: self.send([bytearray(made)]))

    @rule()
    def new_leader(self) -> None:
        self.epoch += 1

    @rule(cut_at=st.one_of(st.none(), st.integers(1, 6)))
    def sync(self, cut_at: int | None) -> None:
        if self.attempt(self.log.sync, cut_at):
            assert self.log.synced_offset == self.log.end_offset

    @precondition(lambda self: not self.compacted)
    @rule(back=st.integers(0, 12), cut_at=st.one_of(st.none(), st.integers(1, 15)))
    def truncate(self, back: int, cut_at: int | None) -> None:
        target = max(self.end - back, self.start)
        kept = [b for b in self.batches if batch.read_header(b).last_offset < target]
        new_end = max(batch.read_header(kept[-1]).last_offset + 1 if kept else 0, self.start)
        self.synced = min(self.synced, new_end)  # it may be gone, whether the cut was finished or not
        if self.attempt(lambda: self.log.truncate(target), cut_at):
            end = batch.read_header(kept[-1]).last_offset + 1 if kept else 0
            self.batches = kept if end >= self.start else []  # nothing is left: not even the producers
            self.forget_sequences()

    @rule(part=st.integers(0, 10), cut_at=st.one_of(st.none(), st.integers(1, 10)))
    def advance_start(self, part: int, cut_at: int | None) -> None:
        target = self.start + (self.log.held_offset - self.start) * part // 10
        self.start_goal = target
        if self.attempt(lambda: self.log.advance_start(target), cut_at):
            self.start = self.start_kept = max(self.start, target)
        self.start_goal = 0

    @precondition(lambda self: not self.compacted)
    @rule(keep=st.integers(0, 4000), cut_at=st.one_of(st.none(), st.integers(1, 12)))
    def retention(self, keep: int, cut_at: int | None) -> None:
        settings = {f: getattr(self.config, f) for f in self.config.__slots__}
        self.log.reconfigure(TopicConfig(**{**settings, "retention_bytes": keep}))
        bound = self.log.held_offset
        self.start_goal = bound
        if self.attempt(lambda: self.log.enforce_retention(bound), cut_at):
            assert self.start <= self.log.start_offset <= bound
            self.start = self.start_kept = self.log.start_offset
            self.log.reconfigure(self.config)
        self.start_goal = 0

    @precondition(lambda self: self.compacted)
    @rule(cut_at=st.one_of(st.none(), st.integers(1, 40)))
    def compact(self, cut_at: int | None) -> None:
        upto = self.log.held_offset
        self.compacted_upto = max(self.compacted_upto, upto)
        self.attempt(self.log.compact, cut_at)

    @rule()
    def reopen(self) -> None:
        self.run(self.log.close)
        scanned_before = len(self.disk.calls)
        self.log = self.run(self.open)
        touched = {path for call, path in self.disk.calls[scanned_before:] if call == "read" and path.endswith(".log")}
        assert not touched, "after a clean stop nothing is scanned"
        assert self.log.end_offset == self.end

    @rule()
    def kill(self) -> None:
        self.recover(power=False)

    @rule(suffix=st.sampled_from([".transactions", ".producers", ".index"]), garbage=st.booleans())
    def lose_files(self, suffix: str, garbage: bool) -> None:
        """Everything but the batches can be lost."""
        self.run(self.log.close)
        for name in [name for name in self.disk.list(FOLDER) if name.endswith(suffix)]:
            if garbage:
                file = self.disk.open(f"{FOLDER}/{name}")
                file.write([b"garbage"], file.size() // 2)
                file.close()
            else:
                self.disk.remove(f"{FOLDER}/{name}")
        self.log = self.run(self.open)
        assert self.log.end_offset == self.end

    @rule()
    def crash(self) -> None:
        self.recover(power=True)

    @rule(killing=st.booleans())
    def aim(self, killing: bool) -> None:
        """From now on the process is killed in the middle of work, or the power is cut."""
        self.killing = killing

    @rule(nth=st.integers(1, 30))
    def end_while_opening(self, nth: int) -> None:
        self.bury()
        self.disk = self.disk.kill()
        self.end_at(nth)
        with contextlib.suppress(PowerCut):
            self.log = self.run(self.open)
        self.disk.heal()
        self.recover(power=not self.killing)

    @precondition(lambda self: self.config.flush_mode is not FlushMode.OS)
    @rule(nth=st.integers(1, 3))
    def lose_a_sync(self, nth: int) -> None:
        """It fails, memory keeps what the disk never gets, and the next life may count on what it finds."""
        self.disk.inject(Fault("sync", path=".log", nth=nth, loses=True))
        with contextlib.suppress(Fatal, StorageFailed):
            self.append_all([self.make(1, 100, 0, None)], None)
            self.run(self.log.sync)
        self.disk.heal()
        self.recover(power=False, midway=True)

    def recover(self, *, power: bool, midway: bool = False) -> None:
        old = self.log if hasattr(self, "log") else None
        synced = max(self.synced, 0)
        self.bury()
        self.disk = self.disk.crash() if power else self.disk.kill()
        self.log = self.run(self.open)
        end = self.log.end_offset
        assert end >= synced, "what was synced is there"
        if not power and not midway and old is not None and not self.pending_now():
            assert end == self.end, "what was written survives the death of the process"
        self.adopt(end)

    def pending_now(self) -> list[bytes]:
        return getattr(self, "pending", [])

    def adopt(self, end: int) -> None:
        """The log has what it has: the model follows, if that is what was sent, up to some batch."""
        goal = getattr(self, "start_goal", 0)
        assert self.start_kept <= self.log.start_offset <= max(self.start, goal)
        self.start = self.log.start_offset
        for pending in self.pending_now():
            if self.end < end:
                made = bytearray(pending)
                header = batch.read_header(made)
                batch.patch(made, self.end, self.epoch)
                assert self.end + header.last_offset_delta < end, "a batch is there as a whole or not at all"
                self.batches.append(bytes(made))
        self.pending = []
        while self.batches and self.end > end:
            self.batches.pop()
        assert self.end == end or not self.batches or self.compacted
        self.forget_sequences()

    def forget_sequences(self) -> None:
        self.sequences, self.producer_epochs = {}, {}
        for b in self.batches:
            header = batch.read_header(b)
            if header.producer_id >= 0:
                if header.producer_epoch != self.producer_epochs.get(header.producer_id, 0):
                    self.sequences[header.producer_id] = 0
                    self.producer_epochs[header.producer_id] = header.producer_epoch
                if not header.control:
                    self.sequences[header.producer_id] = header.base_sequence + header.count
        for producer in self.log.producers:
            if not producer.batches:  # only a marker is left of it
                self.sequences[producer.producer_id] = 0

    def transactions(self) -> tuple[list[tuple[int, int]], list[tuple[int, int, int]]]:
        """Producer id and first offset of those that are open; with the offset of the marker, of those aborted."""
        is_open: dict[int, int] = {}
        aborted = []
        for b in self.batches:
            header = batch.read_header(b)
            if header.control:
                first = is_open.pop(header.producer_id, -1)
                said = marker_in(b)
                assert said is not None
                if first >= 0 and not said.commit:
                    aborted.append((header.producer_id, first, header.base_offset))
            elif header.transactional:
                is_open.setdefault(header.producer_id, header.base_offset)
        return list(is_open.items()), aborted

    # --- what must hold

    def present(self) -> list[bytes]:
        """The batches that are in the log as a whole."""
        return [b for b in self.batches if batch.read_header(b).base_offset >= self.start]

    @property
    def end(self) -> int:
        last = batch.read_header(self.batches[-1]).last_offset + 1 if self.batches else 0
        return max(last, self.start)

    @invariant()
    def offsets_agree(self) -> None:
        if not hasattr(self, "log"):
            return
        if self.log.synced_offset > self.synced:
            self.synced, self.start_kept = self.log.synced_offset, self.start
        if self.disk.dead:  # it ended after the answer was given
            self.recover(power=not self.killing, midway=True)
        assert self.log.start_offset == self.start
        assert self.log.start_offset <= self.log.synced_offset <= self.log.end_offset == self.end
        assert not self.log.damage

    @rule(part=st.integers(0, 20), bytes_max=st.sampled_from([1, 400, 10**6]))
    def read(self, part: int, bytes_max: int) -> None:
        offset = self.start + (self.end - self.start) * part // 20
        data = self.run(lambda: self.log.read(offset, bytes_max, self.end))
        if self.compacted:
            return
        whole = [b for b in self.batches if batch.read_header(b).last_offset >= offset]
        joined = b"".join(whole)
        assert bytes(data) == joined[: len(data)]
        assert bool(data) == bool(whole)

    @rule()
    def read_all(self) -> None:
        found = self.run(self.everything)
        expected = [b for b in self.batches if batch.read_header(b).last_offset >= self.start]
        if not self.compacted:
            assert found == expected
            return
        sent = {r.offset: r for b in expected for r in records.decode(b)}
        kept = {r.offset: r for b in found for r in records.decode(b)}
        assert kept.items() <= sent.items()
        decided = {r.offset: r for b in expected if self.counts(b) for r in records.decode(b)}
        latest = {r.key: r for r in decided.values()}
        for offset, record in sent.items():
            if offset >= max(self.compacted_upto, self.start) or latest.get(record.key) == record:
                assert kept.get(offset) == record

    def counts(self, raw: bytes) -> bool:
        """Whether a batch is no marker, and of no transaction that is open or was aborted."""
        header = batch.read_header(raw)
        is_open, aborted = self.transactions()
        return not header.control and not (
            header.transactional
            and (
                any(pid == header.producer_id and first <= header.base_offset for pid, first in is_open)
                or any(pid == header.producer_id and first <= header.base_offset < end for pid, first, end in aborted)
            )
        )

    @rule(part=st.integers(0, 20), bytes_max=st.sampled_from([1, 400, 10**6]))
    def read_committed(self, part: int, bytes_max: int) -> None:
        """What a consumer sees that is told of aborted transactions: all that counts, and nothing else."""
        stable = self.log.first_unstable(self.end)
        upto = self.end if stable is None else int(stable)
        first = self.start + (upto - self.start) * part // 20
        seen = self.run(lambda: self.consume(first, bytes_max, upto))
        counting = [b for b in self.batches if self.counts(b)]
        expected = [r for b in counting for r in records.decode(b) if first <= r.offset < upto]
        if self.compacted:
            assert {r.offset: r for r in seen}.items() <= {r.offset: r for r in expected}.items()
            assert {r.key: r for r in seen} == {r.key: r for r in expected}
        else:
            assert seen == expected

    async def consume(self, offset: int, bytes_max: int, upto: int) -> list[Record]:
        seen, first = [], offset
        while data := await self.log.read(offset, bytes_max, upto):
            found = list(batch.headers(data))
            end = found[-1][1].last_offset + 1
            cached = self.log.aborted_cached(offset, end)
            aborted = await self.log.aborted(offset, end)
            assert cached is None or cached == aborted
            assert self.log.aborted_cached(offset, end) == aborted
            skipped: set[int] = set()
            for at, header in found:
                raw = bytes(data[at : at + header.size])
                skipped |= {pid for pid, begin in aborted if begin <= header.last_offset}
                aborted = [one for one in aborted if one.first_offset > header.last_offset]
                if header.control:
                    skipped.discard(header.producer_id)
                elif header.producer_id not in skipped:
                    seen += [r for r in records.decode(raw) if r.offset >= first]
            offset = end
        return seen

    @invariant()
    def nothing_open_is_stable(self) -> None:
        if not hasattr(self, "log") or self.disk.dead:
            return
        is_open, _ = self.transactions()
        unstable = self.log.first_unstable(self.end)
        remaining = [
            header.base_offset
            for header in map(batch.read_header, self.present())
            if header.transactional and not header.control and (header.producer_id, header.base_offset) in is_open
        ]
        if not is_open:
            assert unstable is None
        elif remaining:
            assert unstable is not None
            assert self.start <= unstable <= min(remaining)

    async def everything(self) -> list[bytes]:
        found, offset = [], int(self.log.start_offset)
        while data := await self.log.read(offset, 1000, self.log.end_offset):
            for at, header in batch.headers(data):
                found.append(bytes(data[at : at + header.size]))
                offset = header.last_offset + 1
        return found

    @rule(part=st.integers(0, 20))
    def find_by_time(self, part: int) -> None:
        if self.compacted:
            return
        all_records = [r for b in self.batches for r in records.decode(b) if r.offset >= self.start]
        if not all_records:
            assert self.run(lambda: self.log.offset_by_time(0)) is None
            return
        wanted = all_records[(len(all_records) - 1) * part // 20].timestamp
        first = next(r for r in all_records if r.timestamp >= wanted)
        found = self.run(lambda: self.log.offset_by_time(wanted))
        assert found is not None
        assert found[:2] == (first.offset, first.timestamp)

    @rule()
    def state_is_a_function_of_the_log(self) -> None:
        if self.compacted:
            return
        replayed = Producers()
        for b in self.present():
            replayed.replay(batch.read_header(b), 0, marker_in(b))
        for producer in replayed:  # of those that retention removed it may know more
            known = self.log.producers.get(producer.producer_id)
            assert known is not None
            assert known.epoch == producer.epoch
            assert not producer.batches or known.batches[-len(producer.batches) :] == producer.batches
            assert (known.txn_first_offset < 0) == (producer.txn_first_offset < 0)
        for b in self.present():
            header = batch.read_header(b)
            assert self.log.epochs.epoch_of(header.base_offset) == header.leader_epoch

    @rule()
    def out_of_range(self) -> None:
        for offset in (self.start - 1, self.end + 1):
            with contextlib.suppress(OffsetOutOfRange):
                self.run(lambda offset=offset: self.log.read(offset, 100, self.end))  # type: ignore[misc]
                raise AssertionError(f"offset {offset} was read")


class CompactedLogMachine(LogMachine):
    """With compaction, without truncation."""

    compacted = True


class KillableDisk(RealDisk):
    """A real disk whose process may die, as far as a test can see; the power stays on."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.root = root
        self.dead = False
        self.calls: list[tuple[str, str]] = []

    def inject(self, fault: Fault) -> None:
        """No fault can be injected here."""

    def heal(self) -> None:
        """Nothing ever fails here."""

    def kill(self) -> "KillableDisk":
        self.close()
        return KillableDisk(self.root)

    crash = kill


class RealLogMachine(LogMachine):
    """The same on a real disk, without power cuts."""

    def new_disk(self, seed: int) -> SimDisk:
        self.root = tempfile.TemporaryDirectory()
        return cast(SimDisk, KillableDisk(self.root.name))

    def teardown(self) -> None:
        super().teardown()
        if hasattr(self, "root"):
            cast(KillableDisk, self.disk).close()
            self.root.cleanup()


MODEST = settings(
    max_examples=EXAMPLES, stateful_step_count=30, suppress_health_check=list(HealthCheck), print_blob=True
)
TestLog = LogMachine.TestCase
TestLog.settings = MODEST
TestRealLog = RealLogMachine.TestCase
TestRealLog.settings = settings(MODEST, max_examples=EXAMPLES // 5, stateful_step_count=20)
TestCompactedLog = CompactedLogMachine.TestCase
TestCompactedLog.settings = MODEST
