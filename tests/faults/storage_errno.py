"""Every error at every place where a log calls its disk.

A script uses a log in all the ways there are: opening, appending, rolling, reading, trimming, truncating, compacting,
healing, closing, opening again. Each line of code that calls the disk on the way is a site. At each site, each error is
raised once, the first time and a later time; writes are also cut short. Whatever it is, it ends in one of these ways:

  went on    the call was about something that can be built again, or is done again later
  refused    the one who asked got StorageFailed, nothing of it was kept, and the next try works
  ended      a sync failed: the broker has to end (Fatal), nothing more is acknowledged

and after a power loss everything that was ever held is there, and nothing is damaged.
"""

import asyncio
import errno
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import NamedTuple

from runnel.log.log import Appended, Log
from runnel.model.errors import Fatal, StorageFailed
from runnel.model.topic_config import FlushMode, TopicConfig
from runnel.record import batch, records
from runnel.record.records import Record
from runnel.testing.clock import ManualClock, SeededRng
from runnel.testing.disk import Fault, SimDisk

FOLDER = "partitions/p-0"
ERRORS = (errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT, errno.EMFILE)
SHORT_BYTES = 30
OURS = f"{os.sep}runnel{os.sep}log{os.sep}"


class Site(NamedTuple):
    """A line of the log's code that calls the disk."""

    call: str
    where: str

    def __str__(self) -> str:
        return f"{self.call} at {self.where}"


class SiteDisk(SimDisk):
    """Knows from where it is called, and fails one of those calls."""

    def __init__(self, seed: int) -> None:
        super().__init__(SeededRng(seed))
        self.sites: Counter[Site] = Counter()
        self.fault: tuple[Site, int, int, int | None] | None = None  # site, which time, errno, bytes that are written
        self.struck = False

    def called(self, call: str, path: str) -> None:
        site = Site(call, caller())
        self.sites[site] += 1
        if self.fault is not None and self.fault[:2] == (site, self.sites[site]):
            self.struck = True
            self.inject(Fault(call, self.fault[2], path=path, short_bytes=self.fault[3]))
        super().called(call, path)


def caller() -> str:
    """The line of the log's code, and the one that called it: small files, syncs and scans have many users."""
    frame, found = sys._getframe(2).f_back, list[str]()
    while frame is not None and len(found) < 2:
        if OURS in frame.f_code.co_filename:
            found.append(f"{frame.f_code.co_filename.rpartition(os.sep)[2]}:{frame.f_lineno}")
        frame = frame.f_back
    return " from ".join(found)


# --- the script


class Use:
    """One life of a log after the other; remembers what was held."""

    def __init__(self, disk: SiteDisk, *, compacted: bool) -> None:
        self.disk = disk
        self.clock = ManualClock()
        self.config = TopicConfig(
            flush_mode=FlushMode.COMMIT, segment_bytes=1_000, index_interval_bytes=100, retention_bytes=4_000,
            retention_ms=-1, min_cleanable_dirty_ratio=0.0,
            cleanup_policy=frozenset({"compact"} if compacted else {"delete"}),
        )  # fmt: skip
        self.written: dict[int, tuple[int, bytes]] = {}  # base offset: key and batch
        self.held: dict[int, tuple[int, bytes]] = {}
        self.fatal: list[Fatal] = []
        self.refused = 0
        self.sequence = 0
        self.log: Log | None = None

    async def open(self) -> None:
        self.log = None
        self.log = await Log.open(self.disk, FOLDER, self.config, clock=self.clock, on_fatal=self.fatal.append)

    def a(self) -> Log:
        if self.log is None:
            raise StorageFailed("it could not be opened")
        return self.log

    async def append(self) -> None:
        log, key = self.a(), self.sequence % 5
        record = Record(0, self.clock.wall_ms(), b"%d" % key, b"%d" % self.sequence * 20, ())
        sequence = max((p.batches[-1].last_sequence + 1 for p in log.producers if p.batches), default=0)
        made = bytearray(records.encode([record], producer_id=7, producer_epoch=0, base_sequence=sequence))
        end, size = log.end_offset, log.size_bytes
        try:
            result = log.append(made, batch.check_produced(made), leader_epoch=1)
            appended = result if isinstance(result, Appended) else await result
        except StorageFailed:
            if not self.fatal:
                assert (log.end_offset, log.size_bytes) == (end, size), "nothing of a refused append is kept"
            raise
        self.sequence += 1
        self.written[appended.base_offset] = (key, bytes(made))

    async def hold(self) -> None:
        await self.a().sync()

    async def read(self) -> None:
        self.disk.chill(lambda path: True)
        log, offset = self.a(), int(self.a().start_offset)
        while data := await log.read(offset, 300, log.end_offset):
            offset = check(data, self.written)
        self.disk.chill(lambda path: False)
        await log.offset_by_time(self.clock.wall_ms())
        await log.offset_of_max_timestamp()

    async def trim(self) -> None:
        log = self.a()
        self.forget(lambda offset: offset < min(log.start_offset + 3, log.held_offset))
        await log.advance_start(min(log.start_offset + 3, log.held_offset))

    async def retain(self) -> None:
        before = dict(self.held)
        self.forget(lambda offset: True)
        try:
            await self.a().enforce_retention()
        finally:
            start = self.a().start_offset
            self.held = {offset: one for offset, one in before.items() if offset >= start}

    async def truncate(self) -> None:
        log = self.a()
        to = max(log.start_offset, log.end_offset - 4)
        self.give_up(to)
        await log.truncate(to)

    async def heal(self) -> None:
        log = self.a()
        to = max(log.start_offset, log.end_offset - 3)
        self.give_up(to)
        await log.heal_from(to)

    async def begin_anew(self) -> None:
        self.give_up(0)
        await self.a().begin_anew(max(0, self.a().start_offset - 1))

    async def compact(self) -> None:
        await self.a().compact()

    async def close(self) -> None:
        await self.a().close()

    def give_up(self, to: int) -> None:
        """What is cut off on purpose may be gone or not."""
        self.written = {offset: one for offset, one in self.written.items() if offset < to}
        self.forget(lambda offset: offset >= to)

    def forget(self, which: Callable[[int], bool]) -> None:
        self.held = {offset: one for offset, one in self.held.items() if not which(offset)}

    async def run(self) -> None:
        """All of it, and then some: what failed the first time works the second time."""
        steps = self.steps()
        for step in [*steps, self.open, self.append, self.append, self.hold, self.read]:
            self.clock.advance(10)
            try:
                await step()
            except StorageFailed:
                self.refused += 1
            except Fatal as error:
                self.fatal.append(error)
            if self.fatal:
                return
            if self.log is not None:
                held = self.log.held_offset
                self.held |= {o: one for o, one in self.written.items() if self.log.start_offset <= o < held}

    def steps(self) -> list[Callable[[], Awaitable[None]]]:
        more = [self.append] * 4
        ends = [self.compact] if self.config.compacts else [self.trim, self.retain, self.truncate, self.heal]
        life = [self.open, *more, self.hold, *more, self.hold, self.read, *more, self.hold]
        for end in ends:
            life += [end, *more, self.hold, self.read]
        return [
            *life,
            self.close,
            self.open,
            self.read,
            *more,
            self.hold,
            self.begin_anew,
            *more,
            self.hold,
            self.close,
        ]


def check(data: bytes | memoryview, written: dict[int, tuple[int, bytes]]) -> int:
    """Whether these batches are what was written, if they are not compacted; where to go on."""
    offset = 0
    for at, header in batch.headers(data):
        if header.count and header.base_offset in written:
            assert bytes(data[at : at + header.size]) == written[header.base_offset][1]
        offset = header.last_offset + 1
    return offset


# --- the matrix


@dataclass
class Matrix:
    """What became of every error at every site."""

    sites: int = 0
    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def table(self) -> str:
        rows = {"sites": self.sites, "cases": self.cases, **self.outcomes, "broken promises": len(self.broken)}
        rows["seconds"] = round(self.seconds)
        return "\n".join([f"  {name:<22}{value:>12}" for name, value in rows.items()] + self.broken[:20])


def run(*, later: bool = True) -> Matrix:
    """Every error at every site: the first time that it is come by, and a `later` time."""
    matrix, began = Matrix(), time.monotonic()
    for compacted in (False, True):
        sites = trace(compacted)
        matrix.sites += len(sites)
        for site, times in sorted(sites.items()):
            for nth in sorted({1, (times + 1) // 2 if later else 1}):
                for number, short in [(number, None) for number in ERRORS] + [(errno.ENOSPC, SHORT_BYTES)] * (
                    site.call == "write"
                ):
                    one(matrix, compacted, site, nth, number, short)
    matrix.seconds = time.monotonic() - began
    return matrix


def trace(compacted: bool) -> Counter[Site]:
    """The sites that the script comes by, and how often, if nothing fails."""
    disk = SiteDisk(1)
    use = Use(disk, compacted=compacted)
    asyncio.run(use.run())
    assert not use.refused
    return Counter(
        {site: times for site, times in disk.sites.items() if site.call not in ("read_cached", "free_bytes")}
    )


def one(matrix: Matrix, compacted: bool, site: Site, nth: int, number: int, short: int | None) -> None:
    matrix.cases += 1
    name = f"{errno.errorcode[number]}{' after a short write' if short is not None else ''} in {site}, time {nth}"
    try:
        matrix.outcomes[asyncio.run(case(compacted, (site, nth, number, short)))] += 1
    except Exception as error:  # noqa: BLE001  (whatever it is, it is a finding)
        matrix.broken.append(f"  {name}: {error!r}")


async def case(compacted: bool, fault: tuple[Site, int, int, int | None]) -> str:
    disk = SiteDisk(1)
    disk.fault = fault
    use = Use(disk, compacted=compacted)
    await use.run()
    if not disk.struck:
        return "not reached"
    if fault[0].call in ("sync", "sync_dir"):
        assert use.fatal, "a failed sync can't be passed over"
    if not use.fatal:
        assert use.log is not None, "it can be opened again"
        assert use.log.held_offset == use.log.end_offset > use.log.start_offset, "appends go on"
    survivor = disk.crash()
    log = await Log.open(survivor, FOLDER, use.config, clock=use.clock)
    assert not log.damage, log.damage
    await holds(log, use)
    return "ended" if use.fatal else "refused" if use.refused else "went on"


async def holds(log: Log, use: Use) -> None:
    """Everything that was held is there; of compacted logs, the last of each key or what came after it."""
    found: dict[int, bytes] = {}
    offset = int(log.start_offset)
    while data := await log.read(offset, 1000, log.end_offset):
        for at, header in batch.headers(data):
            if header.count:
                found[header.base_offset] = bytes(data[at : at + header.size])
            offset = header.last_offset + 1
    wanted = use.held
    if use.config.compacts:
        last: dict[int, int] = {}
        for offset, (key, _) in sorted(use.written.items()):
            last[key] = offset
        wanted = {offset: one for offset, one in use.held.items() if last.get(one[0]) == offset}
    lost = [offset for offset, (_, made) in wanted.items() if found.get(offset) != made]
    assert not lost, f"held and lost: {lost}"


if __name__ == "__main__":
    result = run()
    print(result.table())
    sys.exit(bool(result.broken))
