"""`make faults-storage`: power losses under load, of all brokers at once.

Real brokers on an ext4 image, in flush.mode commit, and a producer that waits for all in-sync replicas. In the middle
of that the image loses its power, the brokers are killed, the image is mounted anew, and the brokers start again. Then
everything that was ever acknowledged must be there, where it was said to be, once. So on, as often as asked for.
"""

import argparse
import asyncio
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults import sandbox, storage_image
from tests.faults.storage_image import Image

from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster, ClusterSettings
from runnel.client.consumer import Consumer
from runnel.client.errors import Closed
from runnel.client.metadata import TopicPartition
from runnel.client.producer import Producer, ProducerSettings
from runnel.model.errors import RunnelError
from runnel.shell.clock import SystemClock
from runnel.testing.clock import SeededRng
from runnel.testing.process import BrokerProcess
from runnel.testing.zookeeper import ZooKeeper

MODULE = "tests.faults.storage_power"
TOPIC = "t"
PARTITIONS = 4
VALUE_BYTES = 700
WAITING_MAX = 200  # messages on their way
READ_S = 60.0
NOTES_MAX = 20
SHOWN_EVERY = 20  # power losses
LOAD_S = (0.05, 0.6)  # between the first acknowledgement after a start and the next power loss


@dataclass
class Result:
    """What became of a run."""

    cycles: int = 0
    acknowledged: int = 0
    unknown: int = 0  # given up by the producer: may be there or not
    lost: int = 0
    duplicated: int = 0
    inconsistent: int = 0  # offsets that held one value, and later another
    failures: int = 0  # starts that did not end in a broker that serves
    seconds: float = 0.0
    starts_s: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (self.lost or self.duplicated or self.inconsistent or self.failures)

    def note(self, text: str) -> None:
        if len(self.notes) < NOTES_MAX:
            self.notes.append(f"  {text}")

    def table(self) -> str:
        starts = sorted(self.starts_s) or [0.0]
        rows = {
            "power losses": self.cycles, "acknowledged": self.acknowledged, "unknown": self.unknown, "lost": self.lost,
            "duplicated": self.duplicated, "inconsistent offsets": self.inconsistent,
            "recovery failures": self.failures, "start p50 s": f"{starts[len(starts) // 2]:.2f}",
            "start max s": f"{starts[-1]:.2f}", "seconds": f"{self.seconds:.1f}",
        }  # fmt: skip
        return "\n".join([f"  {name:<22}{value:>12}" for name, value in rows.items()] + self.notes)


class Load:
    """One idempotent producer that never stops, through all power losses; what it was told, and what was read."""

    def __init__(self, cluster: Cluster, result: Result) -> None:
        self._cluster = cluster
        self._result = result
        self.acknowledged: dict[tuple[int, int], bytes] = {}  # by partition and offset
        self.read: dict[tuple[int, int], bytes] = {}
        self.progress = asyncio.Event()
        self._unchecked: list[tuple[int, int]] = []
        self._told_since: list[tuple[int, int]] = []
        self._next = 0
        self._room = asyncio.Semaphore(WAITING_MAX)
        self._sending: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Until it is cancelled."""
        settings = ProducerSettings(linger_ms=1, delivery_timeout_ms=600_000)
        producer = Producer(self._cluster, settings)
        try:
            while True:
                await self._room.acquire()
                task = asyncio.create_task(self._send(producer))
                self._sending.add(task)
                task.add_done_callback(self._sending.discard)
        finally:
            await self._finish(producer)

    async def _finish(self, producer: Producer) -> None:
        if self._sending:
            await asyncio.wait(self._sending, timeout=READ_S)
        await producer.close(flush=False)
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    async def _send(self, producer: Producer) -> None:
        number, self._next = self._next, self._next + 1
        value = b"%010d" % number * (VALUE_BYTES // 10)
        try:
            sent = await (await producer.send(TOPIC, value, partition=number % PARTITIONS))
            self._told(sent.partition, sent.offset, value)
            self.progress.set()
        except (RunnelError, Closed) as error:
            self._result.unknown += 1
            self._result.note(f"unknown: {error}")
        finally:
            self._room.release()

    def _told(self, partition: int, offset: int, value: bytes) -> None:
        self._told_since.append((partition, offset))
        if self.acknowledged.setdefault((partition, offset), value) != value:
            self._result.lost += 1
            self._result.note(f"lost: {partition}/{offset} was acknowledged, and again for another message")

    async def check(self, begin: dict[int, int]) -> dict[int, int]:
        """Read from these offsets on until all that is acknowledged by now was seen; where to go on."""
        self._unchecked, self._told_since = self._unchecked + self._told_since, []
        goal = {p: max([o + 1 for q, o in self.acknowledged if q == p], default=0) for p in range(PARTITIONS)}
        async with Consumer(self._cluster) as consumer:
            await consumer.assign({TopicPartition(TOPIC, p): at for p, at in begin.items()})
            end = time.monotonic() + READ_S
            at = dict(begin)
            while any(at[p] < goal[p] for p in goal) and time.monotonic() < end:
                for message in await consumer.poll():
                    assert message.value is not None
                    self._saw(message.partition, message.offset, message.value)
                    at[message.partition] = message.offset + 1
        return at

    def _saw(self, partition: int, offset: int, value: bytes) -> None:
        before = self.read.setdefault((partition, offset), value)
        if before != value:
            self._result.inconsistent += 1
            self._result.note(f"inconsistent: {partition}/{offset} was {before[:10]!r}, is {value[:10]!r}")

    def lost_by_now(self) -> list[tuple[int, int]]:
        """What was acknowledged before the last check, and was not read by it."""
        lost = [place for place in self._unchecked if self.read.get(place) != self.acknowledged[place]]
        self._unchecked = []
        return lost

    def judge(self) -> None:
        """Compare all that was told with all that was read."""
        self._result.acknowledged = len(self.acknowledged)
        lost = [place for place, value in self.acknowledged.items() if self.read.get(place) != value]
        self._result.lost += len(lost)
        for partition, offset in sorted(lost):
            self._result.note(f"lost: {partition}/{offset}")
        self._result.duplicated = len(self.read) - len(set(self.read.values()))


class Rig:
    """Brokers on one image."""

    def __init__(self, folder: Path, brokers: int, stack: ExitStack) -> None:
        self.image = Image(folder)
        environment = {"RUNNEL_LOG_LEVEL": "info"}
        options: list[str] = []
        if brokers > 1:
            (folder / "zookeeper").mkdir()
            options = ["--store", f"zookeeper://{stack.enter_context(ZooKeeper(folder / 'zookeeper')).address}/runnel"]
            environment["RUNNEL_SESSION_MS"] = "2000"
        self.brokers = []
        for number in range(1, brokers + 1):
            (self.image.path / str(number)).mkdir()
            (folder / str(number)).symlink_to(self.image.path / str(number))  # what it logs is not on the image
            own = ["--broker-id", str(number), *options]
            self.brokers.append(BrokerProcess(folder / str(number), *own, environment=environment))

    async def start(self) -> float:
        """Start all at once; how long it took until each lets clients in."""
        began = time.monotonic()
        await asyncio.gather(*(asyncio.to_thread(broker.start) for broker in self.brokers))
        return time.monotonic() - began

    def lose_power(self) -> None:
        """The processors stop with the disk.

        Else a sync that is under way at the cut may return success with nothing kept (seen on Linux 6.18, without any
        broker: jbd2 takes a transaction that it threw away for one that it has written), and be acknowledged.
        """
        for broker in self.brokers:
            stop_at_once(broker.pid)
        self.image.cut()
        self.stop()
        self.image.unmount()
        self.image.mount()

    def stop(self) -> None:
        for broker in self.brokers:
            with contextlib.suppress(AssertionError):  # it was not even started
                broker.kill()


def stop_at_once(pid: int) -> None:
    """Return when no thread of a process runs any more; one inside the kernel stops before it leaves it."""
    os.kill(pid, signal.SIGSTOP)
    while any(state(thread) not in "TtDZ" for thread in Path(f"/proc/{pid}/task").iterdir()):
        time.sleep(0.0005)


def state(thread: Path) -> str:
    """R, S, D, T..., as the kernel says."""
    try:
        return (thread / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


async def campaign(rig: Rig, result: Result, cycles: int, rng: random.Random, flush_mode: str) -> None:
    await rig.start()
    settings = ClusterSettings(retry_timeout_ms=int(READ_S * 1000))
    async with Cluster(
        [broker.kafka for broker in rig.brokers], clock=SystemClock(), rng=SeededRng(1), settings=settings
    ) as cluster:
        await create(cluster, len(rig.brokers), flush_mode)
        load = Load(cluster, result)
        running = asyncio.create_task(load.run())
        at = dict.fromkeys(range(PARTITIONS), 0)
        for _ in range(cycles):
            load.progress.clear()
            await asyncio.wait_for(load.progress.wait(), READ_S)
            await asyncio.sleep(rng.uniform(*LOAD_S))
            await asyncio.to_thread(rig.lose_power)
            result.cycles += 1
            result.starts_s.append(await rig.start())
            at = await load.check(at)
            if lost := load.lost_by_now():
                result.note(f"after power loss {result.cycles}: {len(lost)} are gone, the first is {lost[0]}")
                break
            if result.cycles % SHOWN_EVERY == 0:
                shown = f"  {result.cycles} of {cycles} power losses, {len(load.acknowledged):,} acknowledged"
                print(shown, file=sys.stderr, flush=True)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        load.read, seen = {}, load.read
        await load.check(dict.fromkeys(range(PARTITIONS), 0))
        for (partition, offset), value in seen.items():
            load._saw(partition, offset, value)
        load.judge()


async def create(cluster: Cluster, brokers: int, flush_mode: str) -> None:
    config = {"flush.mode": flush_mode, "segment.bytes": "1048576", "min.insync.replicas": str(min(2, brokers))}
    await Admin(cluster).create_topics([NewTopic(TOPIC, PARTITIONS, brokers, config)])


def run(
    folder: Path, brokers: int, cycles: int, seed: str, flush_mode: str = "commit", keep: Path | None = None
) -> Result:
    """Some power losses; what they did. In another flush mode than commit they must do harm, or nothing is proved."""
    result, began = Result(), time.monotonic()
    with ExitStack() as stack:
        rig = Rig(folder, brokers, stack)
        try:
            asyncio.run(campaign(rig, result, cycles, random.Random(seed), flush_mode))
        except (RuntimeError, TimeoutError) as error:
            result.failures += 1
            result.note(f"failure: {error!r}\n" + "\n".join(b.errors()[-3000:] for b in rig.brokers))
        finally:
            rig.stop()
            if keep is not None and not result.good:
                shutil.copytree(folder, keep, ignore=shutil.ignore_patterns("image", "lost+found"), dirs_exist_ok=True)
            rig.image.unmount()
    result.seconds = time.monotonic() - began
    return result


def problem() -> str | None:
    """Why there can be no power losses here, or None."""
    return storage_image.missing() or sandbox.missing()


def main() -> int:
    parser = argparse.ArgumentParser(prog="make faults-storage", description=__doc__)
    parser.add_argument("--cycles", type=int, default=10)
    parser.add_argument("--brokers", type=int, default=1)
    parser.add_argument("--seed", default="")
    parser.add_argument("--keep", type=Path, help="where brokers' files and logs go after a failure")
    parser.add_argument("--flush-mode", default="commit", help="os: to see that a power loss is one")
    options = parser.parse_args()
    if not sandbox.inside():
        if why := problem():
            print(f"runnel: NO POWER LOSSES in this run: {why}", file=sys.stderr)
            return 1
        sandbox.enter(MODULE, sys.argv[1:])
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    seed = options.seed or str(random.SystemRandom().randrange(1_000_000))
    print(f"{options.cycles} power losses of {options.brokers} broker(s) under load, seed {seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="runnel-power-") as folder:
        result = run(Path(folder), options.brokers, options.cycles, seed, options.flush_mode, options.keep)
    print(result.table())
    return 0 if result.good else 1


if __name__ == "__main__":
    sys.exit(main())
