"""What is measured: servers that can be started on a folder, and stopped.

Every server listens on loopback alone, on a port the system chose, and writes what it says to `server.log` in its
folder.
"""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

HOST = "127.0.0.1"
START_S_MAX = 120.0  # three JVMs on a busy machine
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


class Running(Protocol):
    """What is loaded: a server, or several that are one to their clients."""

    @property
    def peer(self) -> Peer: ...

    @property
    def address(self) -> str: ...

    @property
    def pids(self) -> list[int]:
        """All processes that do its work."""
        ...

    @property
    def replication(self) -> int:
        """How many copies it keeps of a message."""
        ...


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

    @property
    def pids(self) -> list[int]:
        return [self.pid]

    @property
    def replication(self) -> int:
        return 1

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


def spawn(
    peer: Peer, command: Sequence[str], port: int, data: Path, environment: Mapping[str, str] | None = None
) -> Server:
    """Start a process; `wait_for_port` tells when it serves."""
    data.mkdir(parents=True, exist_ok=True)
    log = data / "server.log"
    known = {**os.environ, **(environment or {})}
    with log.open("ab") as out:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=known)
    return Server(peer, process, port, log)


def launch(peer: Peer, command: Sequence[str], port: int, data: Path) -> Server:
    """Start a process and wait until its port accepts connections."""
    server = spawn(peer, command, port, data)
    try:
        wait_for_port(server)
    except BaseException:
        server.kill()
        raise
    return server


def wait_for_port(server: Server) -> None:
    deadline = time.monotonic() + START_S_MAX
    while not accepts(server.port):
        said = f"it said:\n{server.log.read_text(errors='replace')[-2000:]}"
        if server.process.poll() is not None:
            raise DidNotStart(f"{server.peer.name} ended with code {server.process.returncode}; {said}")
        if time.monotonic() > deadline:
            raise DidNotStart(f"{server.peer.name} did not listen on {server.address} in {START_S_MAX:.0f} s; {said}")
        time.sleep(0.002)


def accepts(port: int) -> bool:
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True
