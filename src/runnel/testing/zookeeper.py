"""A ZooKeeper of one's own on loopback: one server or several, real ones, for tests and for trying things out.

    python -m runnel.testing.zookeeper          fetches the jars (5 MB, by `mvn`) into build/zookeeper, once

It needs `java`. Another set of jars can be named in RUNNEL_ZOOKEEPER_JARS: a folder, such as `jars` in pyspark.
Ticks are short, so that sessions of less than a second are possible; memory is bounded; nothing listens but loopback.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time  # noqa: TID251  (waits for a real process; never simulated)
from pathlib import Path
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"
READY_S = 60.0  # generous: a busy machine may be slow
JARS_VARIABLE = "RUNNEL_ZOOKEEPER_JARS"
POM = Path(__file__).with_name("zookeeper.pom.xml")
BUILT_JARS = Path(__file__).resolve().parents[3] / "build" / "zookeeper"
MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
JVM = [
    "-Xms16m", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:ActiveProcessorCount=2",
    "-Dzookeeper.preAllocSize=256", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
]  # fmt: skip


def jars() -> Path:
    """The folder that the jars are taken from."""
    return Path(os.environ.get(JARS_VARIABLE) or BUILT_JARS)


def missing() -> str | None:
    """Why no ZooKeeper can be had, and what to do about it; None if one can."""
    if shutil.which("java") is None:
        return "java was not found: install a Java runtime (Debian: apt-get install openjdk-17-jre-headless)"
    if not any(jars().glob("zookeeper-[0-9]*.jar")):
        return (
            f"there is no zookeeper-*.jar in {jars()}: run `make setup-zookeeper`, or name a folder in {JARS_VARIABLE}"
        )
    return None


def fetch() -> str | None:
    """Have the jars in build/zookeeper; returns why that can't be, or None."""
    if missing() is None:
        return None
    if shutil.which("mvn") is None:
        return "mvn was not found: install Maven (Debian: apt-get install maven)"
    copy = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={BUILT_JARS}"]
    done = subprocess.run(["mvn", "-q", "-B", "-f", str(POM), *copy], capture_output=True, text=True, check=False)
    return missing() if done.returncode == 0 else f"mvn could not fetch the jars: {done.stdout.strip()[-300:]}"


class ZooKeeperServer:
    """One process. It keeps its port and its data when it is killed and started again."""

    def __init__(self, folder: Path, settings: str, port: int, *, power_safe: bool) -> None:
        self.port = port
        self._folder = folder
        self._settings = folder / "zoo.cfg"
        self._power_safe = power_safe
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._settings.write_text(f"dataDir={folder}\nclientPort={port}\n{settings}")

    def start(self) -> None:
        """Start the process; `wait` tells when it serves."""
        sync = [] if self._power_safe else ["-Dzookeeper.forceSync=no"]  # a kill loses nothing either way
        command = ["java", *JVM, *sync, "-cp", f"{jars()}/*", MAIN_CLASS, str(self._settings)]
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def wait(self) -> None:
        """Return once clients are served."""
        deadline = time.monotonic() + READY_S
        while self.mode() is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"ZooKeeper did not become ready:\n{self.log()}")
            time.sleep(0.02)

    def mode(self) -> str | None:
        """standalone, leader or follower; None while it does not serve."""
        for line in self._ask(b"srvr").splitlines():
            if line.startswith("Mode: "):
                return line.removeprefix("Mode: ")
        return None

    def _ask(self, word: bytes) -> str:
        try:
            with socket.create_connection((HOST, self.port), 1) as connection:
                connection.sendall(word)
                answer = b""
                while piece := connection.recv(4096):
                    answer += piece
                return answer.decode()
        except OSError:
            return ""

    def log(self) -> str:
        """What the server wrote, as far as it is still there."""
        return (self._folder / "server.log").read_text(errors="replace")[-4000:]

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "the server was not started"
        return self._process

    def kill(self) -> None:
        """SIGKILL, as a crash; also ends a server that is paused."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(READY_S)

    def pause(self) -> None:
        """Stop the process where it is, as if the machine hung: its connections stay open, nothing is answered."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


class ZooKeeper:
    """One server, or an ensemble of them, until the end of the block."""

    def __init__(self, folder: Path, servers: int = 1, *, tick_ms: int = 100, power_safe: bool = False) -> None:
        ports = _free_ports(3 * servers)
        lines = [f"server.{n + 1}={HOST}:{ports[3 * n + 1]}:{ports[3 * n + 2]}" for n in range(servers)]
        settings = "\n".join([
            f"clientPortAddress={HOST}",
            f"tickTime={tick_ms}",
            "initLimit=50",
            "syncLimit=20",
            "maxSessionTimeout=60000",
            "maxClientCnxns=0",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr",
            *(lines if servers > 1 else []),
        ])  # fmt: skip
        self.servers = [
            ZooKeeperServer(folder / str(n + 1), settings, ports[3 * n], power_safe=power_safe) for n in range(servers)
        ]
        for number in range(servers):
            (folder / str(number + 1) / "myid").write_text(str(number + 1))

    @property
    def address(self) -> str:
        """host:port,host:port"""
        return ",".join(f"{HOST}:{server.port}" for server in self.servers)

    def start(self) -> None:
        """Start all servers, again if need be, and wait until they serve."""
        for server in self.servers:
            server.start()
        for server in self.servers:
            server.wait()

    def leader(self) -> ZooKeeperServer:
        """The server that leads; the only one, if there is one."""
        return next(server for server in self.servers if server.mode() in ("leader", "standalone"))

    def kill(self) -> None:
        for server in self.servers:
            server.kill()

    def pause(self) -> None:
        for server in self.servers:
            server.pause()

    def resume(self) -> None:
        for server in self.servers:
            server.resume()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()


def _free_ports(count: int) -> list[int]:
    """Ports that nobody has, at least not now."""
    taken = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in taken]
    for each in taken:
        each.close()
    return ports


def main() -> int:
    """Fetch the jars, or say why that can't be."""
    if problem := fetch():
        print(f"runnel: no ZooKeeper for tests: {problem}", file=sys.stderr)  # noqa: T201  (a command of its own)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
