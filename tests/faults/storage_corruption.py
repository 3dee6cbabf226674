"""`make faults-corruption`: what a log does when its files are not what was written.

A log is prepared once, in three states (stopped cleanly, killed under way, compacted), and each case hurts a copy of
it: flipped bits, bytes overwritten, files cut short, lengthened, exchanged or gone. Then it is opened, read from end to
end, healed with the batches of an unhurt peer, and opened again.

Whatever happens: it opens; not one batch is served that is not what was written; whatever is missing is reported,
unless the files that could have told it were hurt as well; and after healing it is equal to its peer, with the same
exception.
"""

import argparse
import asyncio
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from runnel.log.log import Appended, Log
from runnel.model.errors import Corruption
from runnel.model.topic_config import FlushMode, TopicConfig
from runnel.record import batch, records
from runnel.record.records import Record
from runnel.shell.disk import RealDisk
from runnel.testing.clock import ManualClock

FOLDER = "partitions/p-0"
BATCHES = 160
INTERVAL_BYTES = 400
SEGMENT_BYTES = 4_000
WITNESSES = ("checkpoint", "synced", ".index")  # they know what should be there
NOTES_MAX = 20


@dataclass
class Result:
    """What became of all cases."""

    cases: int = 0
    batches_served: int = 0
    bad_served: int = 0  # batches that are not what was written
    skipped: int = 0  # offsets that were passed over in silence
    not_opened: int = 0
    not_healed: int = 0
    damage_reported: int = 0  # cases
    unharmed: int = 0  # cases in which all could be built again
    unknown: int = 0  # cases in which nothing was left that knew of what is missing
    put_aside: int = 0  # cases in which rotten files were kept
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (self.bad_served or self.skipped or self.not_opened or self.not_healed)

    def note(self, text: str) -> None:
        if len(self.notes) < NOTES_MAX:
            self.notes.append(f"  {text}")

    def table(self) -> str:
        rows = {
            "cases": self.cases, "batches served": self.batches_served, "bad batches served": self.bad_served,
            "offsets skipped": self.skipped, "not opened": self.not_opened, "not healed": self.not_healed,
            "damage reported in": self.damage_reported, "built again in full": self.unharmed,
            "nobody knew of it in": self.unknown, "rot put aside in": self.put_aside, "seconds": f"{self.seconds:.1f}",
        }  # fmt: skip
        return "\n".join([f"  {name:<22}{value:>12}" for name, value in rows.items()] + self.notes)


# --- the log that is hurt


@dataclass
class Prepared:
    """A data folder, and what is in its log."""

    name: str
    root: Path
    batches: dict[int, bytes] = field(default_factory=dict)  # by base offset
    end: int = 0


def config(*, compacted: bool = False) -> TopicConfig:
    policy = frozenset({"compact" if compacted else "delete"})
    return TopicConfig(
        flush_mode=FlushMode.COMMIT, segment_bytes=SEGMENT_BYTES, index_interval_bytes=INTERVAL_BYTES,
        cleanup_policy=policy, min_cleanable_dirty_ratio=0.0,
    )  # fmt: skip


async def opened(disk: RealDisk, settings: TopicConfig) -> Log:
    return await Log.open(disk, FOLDER, settings, clock=ManualClock())


async def prepare(root: Path, name: str) -> Prepared:
    """Fill a log: batches of several sizes, epochs and producers, in many segments."""
    disk = RealDisk(str(root))
    settings = config(compacted=name == "compacted")
    log = await opened(disk, settings)
    rng = random.Random(name)
    for number in range(BATCHES):
        one = [Record(i, 1000 + number, b"k%d" % rng.randrange(60), rng.randbytes(rng.randrange(200)), ()) for i in
               range(rng.randrange(1, 4))]  # fmt: skip
        made = bytearray(records.encode(one, producer_id=rng.randrange(3), producer_epoch=number, base_sequence=0))
        result = log.append(made, batch.check_produced(made), leader_epoch=number // 50)
        if not isinstance(result, Appended):
            await result
        await log.idle()
    if name == "compacted":
        await log.compact()
    prepared = Prepared(name, root, await content(log), log.end_offset)
    if name == "killed":
        disk._threads.shutdown()  # nothing is closed: the files stay as they are
        return prepared
    await log.close()
    disk.close()
    return prepared


async def content(log: Log) -> dict[int, bytes]:
    found, offset = {}, int(log.start_offset)
    while data := await log.read(offset, 10**6, log.end_offset):
        for at, header in batch.headers(data):
            found[header.base_offset] = bytes(data[at : at + header.size])
            offset = header.last_offset + 1
    return found


# --- injuries: each hurts one file


def flip(path: Path, rng: random.Random) -> None:
    """One bit."""
    data = bytearray(path.read_bytes())
    if data:
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)


def overwrite(path: Path, rng: random.Random) -> None:
    """A stretch of zeros, of noise, or of what stands elsewhere in the file."""
    data = bytearray(path.read_bytes())
    if not data:
        return
    size, at = rng.choice([4, 61, 512]), rng.randrange(len(data))
    elsewhere = rng.randrange(len(data))
    stretch = rng.choice([bytes(size), rng.randbytes(size), bytes(data[elsewhere : elsewhere + size])])
    end = min(len(data), at + len(stretch))
    data[at:end] = stretch[: end - at]
    path.write_bytes(data)


def cut(path: Path, rng: random.Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: rng.randrange(len(data) + 1)])


def lengthen(path: Path, rng: random.Random) -> None:
    """Noise, zeros, or bytes of its own begin follow."""
    data = path.read_bytes()
    path.write_bytes(data + rng.choice([bytes(100), rng.randbytes(100), data[:300]]))


def remove(path: Path, rng: random.Random) -> None:
    path.unlink()


def exchange(path: Path, rng: random.Random) -> None:
    """The content of a neighbour of the same kind."""
    others = sorted(other for other in path.parent.iterdir() if other.suffix == path.suffix and other != path)
    if others:
        path.write_bytes(rng.choice(others).read_bytes())


INJURIES: tuple[Callable[[Path, random.Random], None], ...] = (
    flip, flip, flip, overwrite, cut, cut, lengthen, remove, exchange
)  # fmt: skip


def hurt(folder: Path, rng: random.Random) -> list[tuple[str, str]]:
    """One to three injuries, mostly to segments; which, to which files."""
    done = []
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        names = sorted(path.name for path in folder.iterdir())
        wanted = rng.choice([".log", ".log", ".log", ""])
        name = rng.choice([name for name in names if name.endswith(wanted)] or names)
        injury = rng.choice(INJURIES)
        injury(folder / name, rng)
        done.append((injury.__name__, name))
    return done


# --- one case


class Case:
    """A copy of a prepared log, and what was done to it."""

    def __init__(self, prepared: Prepared, root: Path, rng: random.Random, result: Result, name: str) -> None:
        self.prepared = prepared
        self.root = root
        self.result = result
        self.name = name
        shutil.copytree(prepared.root, root)
        self.done = hurt(root / FOLDER, rng)
        self.settings = config(compacted=prepared.name == "compacted")
        self.silent: set[int] = set()  # batches that were neither served nor refused

    def complain(self, what: str) -> None:
        hurts = ", ".join(f"{injury} {name}" for injury, name in self.done)
        self.result.note(f"{self.name} ({self.prepared.name}: {hurts}): {what}")

    async def run(self) -> None:
        self.result.cases += 1
        disk = RealDisk(str(self.root))
        try:
            await self._with_log(await opened(disk, self.settings))
            log = await opened(disk, self.settings)
            await self._compare(log, "after it was healed and opened again")
            await log.close()
        except Exception as error:  # noqa: BLE001  (whatever it is, it is a finding)
            self.result.not_opened += 1
            self.complain(repr(error))
        finally:
            disk.close()

    async def _with_log(self, log: Log) -> None:
        await self._sweep(log)
        harmed = bool(log.damage)
        self.result.damage_reported += harmed
        self.result.unharmed += not harmed and log.end_offset == self.prepared.end and not self.silent
        await log.heal_from(log.intact_until)
        await self._fetch(log)
        await self._compare(log, "after it was healed")
        self.result.put_aside += any(path.suffix == ".damaged" for path in (self.root / FOLDER).iterdir())
        await log.close()

    async def _compare(self, log: Log, when: str) -> None:
        """It is its peer's equal, but for what nobody knew to be missing."""
        found, written = await content(log), self.prepared.batches
        other = {base for base in found.keys() | written.keys() if found.get(base) != written.get(base)}
        if other - self.silent or log.damage:
            self.result.not_healed += 1
            self.complain(f"not equal to its peer {when}")

    async def _sweep(self, log: Log) -> None:
        """Read from end to end; compare with what was written, and with what is reported."""
        offset, refused = int(log.start_offset), set[int]()
        served: set[int] = set()
        while offset < log.end_offset:
            try:
                data = await log.read(offset, 1500, log.end_offset)
            except Corruption as error:
                refused.update(range(error.first_offset, error.next_offset))
                offset = error.next_offset
                continue
            if not data:
                break
            for at, header in batch.headers(data):
                self._served(header.base_offset, bytes(data[at : at + header.size]))
                served.add(header.base_offset)
                offset = header.last_offset + 1
        self._missing(log, served | refused)

    def _served(self, base: int, data: bytes) -> None:
        self.result.batches_served += 1
        if self.prepared.batches.get(base) != data:
            self.result.bad_served += 1
            self.complain(f"served other bytes than were written at offset {base}")

    def _missing(self, log: Log, told: set[int]) -> None:
        self.silent = self.prepared.batches.keys() - told
        if self.silent and any(name.endswith(WITNESSES) for _, name in self.done):
            self.result.unknown += 1
        elif self.silent:
            self.result.skipped += len(self.silent)
            first = sorted(self.silent)[:5]
            self.complain(f"passed over {first}... in silence, log {log.start_offset} to {log.end_offset}")

    async def _fetch(self, log: Log) -> None:
        """Get from the peer what is missing, as a follower does."""
        for base, data in sorted(self.prepared.batches.items()):
            if base >= log.end_offset:
                result = log.append_as_follower(data)
                if not isinstance(result, Appended):
                    await result
        await log.idle()


async def campaign(folder: Path, cases: Iterable[int], seed: str, result: Result) -> None:
    states = [await prepare(folder / name, name) for name in ("clean", "killed", "compacted")]
    for number in cases:
        rng = random.Random(f"{seed}/{number}")
        case = Case(rng.choice(states), folder / "case", rng, result, f"{seed}/{number}")
        await case.run()
        shutil.rmtree(folder / "case")


def run(folder: Path, cases: Iterable[int], seed: str) -> Result:
    result, began = Result(), time.monotonic()
    asyncio.run(campaign(folder, cases, seed, result))
    result.seconds = time.monotonic() - began
    return result


def main() -> int:
    parser = argparse.ArgumentParser(prog="make faults-corruption", description=__doc__)
    parser.add_argument("--cases", type=int, default=50)
    parser.add_argument("--seed", default="")
    parser.add_argument("--only", type=int, help="one case")
    options = parser.parse_args()
    seed = options.seed or str(random.SystemRandom().randrange(1_000_000))
    print(f"{options.cases} hurt logs, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="runnel-corruption-") as folder:
        cases = range(options.cases) if options.only is None else [options.only]
        result = run(Path(folder), cases, seed)
    print(result.table())
    return 0 if result.good else 1


if __name__ == "__main__":
    sys.exit(main())
