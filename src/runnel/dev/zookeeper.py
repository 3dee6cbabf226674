"""A real ZooKeeper on loopback: where its jars are found, and one server as a process.

    python -m runnel.dev.zookeeper       fetches jars (5 MB, by `mvn`) into build/zookeeper, unless there are some

It needs `java`. Jars are taken from the first of: the folder that RUNNEL_ZOOKEEPER_JARS names, the installed pyspark
(its wheel ships ZooKeeper), Debian's package, build/zookeeper of a checkout.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

HOST = "127.0.0.1"
READY_S = 60.0  # generous: a busy machine may be slow
STOP_S = 10.0
JARS_VARIABLE = "RUNNEL_ZOOKEEPER_JARS"
DEBIAN_JAR = Path("/usr/share/java/zookeeper.jar")  # its manifest names what else it needs
BUILT_JARS = Path(__file__).resolve().parents[3] / "build" / "zookeeper"
POM = Path(__file__).with_name("zookeeper.pom.xml")
MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
JVM = [
    "-Xms16m", "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:ActiveProcessorCount=2",
    "-Dzookeeper.preAllocSize=256", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
]  # fmt: skip

INSTALL_JAVA = "java was not found: install a Java runtime (Debian: apt-get install openjdk-17-jre-headless)"
INSTALL_JARS = (
    "no jars of ZooKeeper were found: install Debian's (apt-get install zookeeper) or pyspark's (pip install pyspark),"
    f" run 'make setup-zookeeper' in a checkout of Runnel, or name a folder of jars in {JARS_VARIABLE}"
)


# --- finding it
def classpath() -> str | None:
    """What java is to load, or None if there is no ZooKeeper on this machine."""
    if named := os.environ.get(JARS_VARIABLE):
        return f"{named}/*" if _holds_zookeeper(Path(named)) else None
    for folder in _pyspark_jars():
        if _holds_zookeeper(folder):
            return f"{folder}/*"
    if DEBIAN_JAR.exists():
        return str(DEBIAN_JAR)
    return f"{BUILT_JARS}/*" if _holds_zookeeper(BUILT_JARS) else None


def _holds_zookeeper(folder: Path) -> bool:
    return any(folder.glob("zookeeper-[0-9]*.jar"))


def _pyspark_jars() -> Iterator[Path]:
    """The folder of jars in pyspark; it is looked for, not imported."""
    spec = find_spec("pyspark")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        yield Path(folder) / "jars"


def missing() -> str | None:
    """Why no ZooKeeper can be had, and what to do about it; None if one can."""
    if shutil.which("java") is None:
        return INSTALL_JAVA
    if classpath() is not None:
        return None
    named = os.environ.get(JARS_VARIABLE)
    return f"{JARS_VARIABLE} names {named}, which holds no zookeeper-*.jar" if named else INSTALL_JARS


def fetch() -> str | None:
    """Have jars: in build/zookeeper, unless they are elsewhere; returns why that can't be, or None."""
    if missing() is None:
        return None
    if shutil.which("mvn") is None:
        return f"{missing()}. To fetch jars, install Maven (Debian: apt-get install maven)"
    copy = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={BUILT_JARS}"]
    done = subprocess.run(["mvn", "-q", "-B", "-f", str(POM), *copy], capture_output=True, text=True, check=False)
    return missing() if done.returncode == 0 else f"mvn could not fetch the jars: {done.stdout.strip()[-300:]}"


# --- running it
def settings(tick_ms: int) -> list[str]:
    """The lines of zoo.cfg that every server here has: nothing listens but loopback."""
    return [
        f"clientPortAddress={HOST}",
        f"tickTime={tick_ms}",
        "initLimit=50",
        "syncLimit=20",
        "maxSessionTimeout=60000",
        "maxClientCnxns=0",
        "admin.enableServer=false",
        "4lw.commands.whitelist=srvr",
        "autopurge.snapRetainCount=3",
        "autopurge.purgeInterval=1",
    ]


class ZooKeeperServer:
    """One process. It keeps its port and its data when it is killed and started again."""

    def __init__(self, folder: Path, lines: list[str], port: int, *, power_safe: bool) -> None:
        self.port = port
        self._folder = folder
        self._settings = folder / "zoo.cfg"
        self._power_safe = power_safe
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)  # it keeps names, settings and secrets
        self._settings.write_text("\n".join([f"dataDir={folder}", f"clientPort={port}", *lines, ""]))

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def start(self, in_child: Callable[[], None] | None = None) -> None:
        """Start the process; `wait` tells when it serves. `in_child` runs in the new process before java does."""
        sync = [] if self._power_safe else ["-Dzookeeper.forceSync=no"]  # a kill loses nothing either way
        command = ["java", *JVM, *sync, "-cp", str(classpath()), MAIN_CLASS, str(self._settings)]
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=in_child
            )

    def wait(self) -> None:
        """Return once clients are served."""
        deadline = time.monotonic() + READY_S
        while self.mode() is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"ZooKeeper did not become ready:\n{self.log()}")
            time.sleep(0.02)

    def mode(self) -> str | None:
        """standalone, leader or follower; None while it does not serve."""
        return mode_of(HOST, self.port)

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

    def stop(self) -> None:
        """SIGTERM, as an operator; one that does not listen is killed."""
        self.process.terminate()
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def pause(self) -> None:
        """Stop the process where it is, as if the machine hung: its connections stay open, nothing is answered."""
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)


def mode_of(host: str, port: int) -> str | None:
    """What a server says it is: standalone, leader or follower; None while it does not serve."""
    return said(host, port, "srvr", "Mode: ")


def said(host: str, port: int, command: str, label: str) -> str | None:
    """What a server tells under a label, asked by one of its four-letter words; None if it does not tell."""
    try:
        with socket.create_connection((host, port), 1) as connection:
            connection.sendall(command.encode())
            answer = b""
            while piece := connection.recv(4096):
                answer += piece
    except OSError:
        return None
    told = [line.removeprefix(label) for line in answer.decode().splitlines() if line.startswith(label)]
    return told[0] if told else None


def free_ports(count: int) -> list[int]:
    """Ports of loopback that nobody has, at least not now."""
    taken = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in taken]
    for each in taken:
        each.close()
    return ports


def main() -> int:
    """Fetch the jars, or say why that can't be."""
    if problem := fetch():
        print(f"runnel: no ZooKeeper: {problem}", file=sys.stderr)  # noqa: T201  (a command of its own)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
