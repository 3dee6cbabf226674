"""A Runnel broker as its users have it: a process of its own, reached through its port.

The suites that need one (compat, fuzz, the traps of the Kafka door) import this module; the process they start is the
only one they end.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

START_S_MAX = 60.0  # far more than a start takes: a loaded machine is slow, a broken one never answers
STOP_S_MAX = 30.0


def free_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(condition: Callable[[], bool], what: str, *, limit_s: float = 60.0) -> None:
    """Return as soon as the condition holds; fail with `what` when it does not for a very long time."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"waited {limit_s:.0f} s in vain: {what}")
        time.sleep(0.02)


class RealBroker:
    """One `runnel serve` process."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.output = data.parent / f"{data.name}.log"
        runnel = Path(sys.executable).with_name("runnel")
        command = [str(runnel), "serve", "--data", str(data), "--kafka", self.address, *options]
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        try:
            wait_until(self._accepts, f"a connection to {' '.join(command)}", limit_s=START_S_MAX)
        except BaseException:
            self.stop()
            raise

    def _accepts(self) -> bool:
        if self.process.poll() is not None:
            raise RuntimeError(f"the broker ended with {self.process.returncode}:\n{self.output.read_text()[-4000:]}")
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def connect(self, *, timeout_s: float = 30.0) -> socket.socket:
        """A new plain connection."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s)

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.process.poll() is None

    def resident_bytes(self) -> int:
        """The memory the process holds now."""
        statm = Path(f"/proc/{self.process.pid}/statm").read_text()
        return int(statm.split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def stop(self) -> int:
        """End it as a user would (SIGTERM); the exit code, negative if it had to be killed."""
        if self.alive:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()
