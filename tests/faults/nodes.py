"""A broker or a ZooKeeper as a process that faults are done to. It keeps its address and its data when it dies."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.faults.wall_clock import WallClock

from runnel.dev import zookeeper as real
from runnel.dev.brokers import ready_addresses, serve_command

READY_S = 60.0  # generous: a busy machine may be slow
POLL_S = 0.02


@dataclass(frozen=True)
class Place:
    """Where a node runs: its host's address, the ports it has there, and how a command gets to that host."""

    name: str
    host: str
    ports: tuple[int, ...]
    prefix: Sequence[str] = ()

    @property
    def address(self) -> str:
        return f"{self.host}:{self.ports[0]}"


class Node:
    """A process at a place. While somebody holds it down, nobody starts it."""

    def __init__(self, place: Place, folder: Path, environment: Mapping[str, str] | None = None) -> None:
        self.place, self.folder = place, folder
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._held = 0
        self._pauses = 0
        self._lock = threading.RLock()
        folder.mkdir(parents=True, exist_ok=True)

    def __str__(self) -> str:
        return self.place.name

    def command(self) -> list[str]:
        raise NotImplementedError

    def serves(self) -> bool:
        """Whether it lets clients in."""
        raise NotImplementedError

    @property
    def output(self) -> Path:
        return self.folder / "output"

    def log(self) -> str:
        """The end of what it wrote."""
        return self.output.read_text(errors="replace")[-4000:] if self.output.exists() else ""

    # --- its life
    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self} was not started"
        return self._process.pid

    def start(self) -> None:
        with self._lock, self.output.open("ab") as output:
            assert not self.running
            self._process = subprocess.Popen(
                [*self.place.prefix, *self.command()],
                stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=self._environment,
            )  # fmt: skip

    def revive(self) -> int | None:
        """Start it again if it ended and nobody holds it down; its exit code if so."""
        with self._lock:
            if self._process is None or self._held or self.running:
                return None
            code = int(self._process.returncode)
            self.start()
            return code

    def wait(self, limit_s: float = READY_S) -> None:
        """Return once it serves; it may end and be started again meanwhile."""
        deadline = time.monotonic() + limit_s
        while not self.serves():
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self} did not become ready:\n{self.log()}")
            time.sleep(POLL_S)

    def send(self, number: signal.Signals) -> None:
        if self.running:
            os.kill(self.pid, number)

    def end(self, number: signal.Signals = signal.SIGKILL) -> int | None:
        """End it by a signal and wait for that; the exit code. One that hangs can't be asked, and is killed."""
        if self._process is None:
            return None
        self.send(signal.SIGKILL if self._pauses else number)
        try:
            return self._process.wait(READY_S)
        except subprocess.TimeoutExpired:
            self.send(signal.SIGKILL)
            self._process.wait(READY_S)
            raise RuntimeError(f"{self} did not end:\n{self.log()}") from None

    # --- faults, until the end of the block
    @contextmanager
    def down(self, number: signal.Signals = signal.SIGKILL) -> Iterator[int | None]:
        """It is ended, and stays so."""
        with self._lock:
            self._held += 1
        try:
            yield self.end(number)
        finally:
            with self._lock:
                self._held -= 1
            self.revive()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """It hangs: its connections stay open, nothing is answered."""
        self._pauses += 1
        self.send(signal.SIGSTOP)
        try:
            yield
        finally:
            self._pauses -= 1
            self.send(signal.SIGCONT)


class BrokerNode(Node):
    """A broker. What it prints when it is ready is looked for behind what earlier lives printed."""

    def __init__(
        self, number: int, place: Place, folder: Path, environment: Mapping[str, str], clock: WallClock | None = None
    ) -> None:
        super().__init__(place, folder, {**environment, **(clock.environment if clock else {})})
        self.number = number
        self.clock = clock
        self.disk_full = False
        self._born_at = 0

    @property
    def data(self) -> Path:
        return self.folder / "disk" / "data"

    def command(self) -> list[str]:
        self._born_at = self.output.stat().st_size if self.output.exists() else 0
        return serve_command(self.data, self.place.address, "--broker-id", str(self.number))

    def serves(self) -> bool:
        if not self.running:
            return False
        with self.output.open("rb") as output:
            output.seek(self._born_at)
            return ready_addresses(output.read()) is not None


class ZooKeeperNode(Node):
    """A server of the ensemble; ports are for clients, for the leader and for elections."""

    def __init__(self, number: int, place: Place, folder: Path, lines: Sequence[str]) -> None:
        super().__init__(place, folder)
        self._settings = folder / "zoo.cfg"
        (folder / "data").mkdir(exist_ok=True)
        (folder / "data" / "myid").write_text(str(number))
        own = [f"dataDir={folder / 'data'}", f"clientPort={place.ports[0]}", f"clientPortAddress={place.host}"]
        self._settings.write_text("\n".join([*own, *lines, ""]))

    def command(self) -> list[str]:
        quick = "-Dzookeeper.forceSync=no"  # a kill loses nothing either way
        return ["java", *real.JVM, quick, "-cp", str(real.classpath()), real.MAIN_CLASS, str(self._settings)]

    def serves(self) -> bool:
        return self.mode() is not None

    def mode(self) -> str | None:
        return real.mode_of(self.place.host, self.place.ports[0])


def zookeeper_lines(places: Sequence[Place], tick_ms: int) -> list[str]:
    """What zoo.cfg says on every server."""
    common = [line for line in real.settings(tick_ms) if not line.startswith("clientPortAddress")]
    peers = [f"server.{n}={place.host}:{place.ports[1]}:{place.ports[2]}" for n, place in enumerate(places, 1)]
    return [*common, *peers]
