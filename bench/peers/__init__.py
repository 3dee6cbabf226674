"""What is measured: servers that can be started on a folder, and stopped.

Every server listens on loopback alone, on a port the system chose, and writes what it says to `server.log` in its
folder.
"""

import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

HOST = "127.0.0.1"
START_S_MAX = 60.0
STOP_S_MAX = 30.0
BUILD = Path("build") / "peers"  # what is downloaded; never committed


Protocols: TypeAlias = Literal["kafka", "redis", "nats"]


class Flush(Enum):
    """What has happened to a message when its acknowledgement leaves."""

    OS = "os"  # written to the page cache; the kernel syncs when it likes
    INTERVAL = "interval"  # written; synced about once a second
    COMMIT = "commit"  # synced to the disk


class Peer(Protocol):
    """One kind of server."""

    name: str
    protocol: Protocols

    def missing(self) -> str | None:
        """Why it can't be had on this machine, or None if it can; fetches it if that is possible."""
        ...

    def version(self) -> str: ...

    def guarantee(self, flush: Flush) -> str | None:
        """How it gives this guarantee, in its own words; None if it can't."""
        ...

    def topic_config(self, flush: Flush) -> dict[str, str]:
        """What a topic is created with to get this guarantee; empty where the whole server is started for it."""
        ...

    def start(self, data: Path, flush: Flush) -> "Server": ...


class DidNotStart(Exception): ...


@dataclass(slots=True)
class Server:
    """A running server. `address` is what clients connect to."""

    peer: Peer
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        return self.process.pid

    def stop(self) -> None:
        """Ask it to end cleanly; kill it if it does not."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL: a crash, as far as the server can tell."""
        self._end(signal.SIGKILL)

    def _end(self, how: signal.Signals) -> None:
        if self.process.poll() is None:
            self.process.send_signal(how)
        try:
            self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def free_port() -> int:
    """A port nobody listens on. Another process may take it before it is used: then the start fails, visibly."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def launch(peer: Peer, command: Sequence[str], port: int, data: Path) -> Server:
    """Start a process and wait until its port accepts connections."""
    data.mkdir(parents=True, exist_ok=True)
    log = data / "server.log"
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    server = Server(peer, process, port, log)
    try:
        wait_for_port(server)
    except BaseException:
        server.kill()
        raise
    return server


def wait_for_port(server: Server) -> None:
    deadline = time.monotonic() + START_S_MAX
    while not accepts(server.port):
        if server.process.poll() is not None:
            said = server.log.read_text(errors="replace")[-2000:]
            raise DidNotStart(f"{server.peer.name} ended with code {server.process.returncode}; it said:\n{said}")
        if time.monotonic() > deadline:
            raise DidNotStart(f"{server.peer.name} did not listen on {server.address} within {START_S_MAX:.0f} s")
        time.sleep(0.002)


def accepts(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True
