"""Processes that belong to this one: started here, looked at now and then, ended with it."""

import ctypes
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path

from runnel.dev.brokers import ready_addresses, serve_command
from runnel.model.seams import LOCK_NAME

PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LOG_PREFIX = re.compile(r"^(\S+ \S+ [A-Z]+ +|runnel: )")


class State(StrEnum):
    STARTING = "starting"
    SERVING = "serving"
    STOPPING = "stopping"
    ENDED = "ended"


def end_with_parent() -> None:
    """In a new process: get SIGTERM when the parent dies, however it dies. Linux alone knows this."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    os.setpgid(0, 0)  # Ctrl-C in the terminal is for the parent, which ends its children in order


class BrokerChild:
    """One broker. Both its outputs go to a log; that is also where it says that it is ready."""

    def __init__(self, number: int, folder: Path, kafka: str, options: Sequence[str]) -> None:
        self.number = number
        self.address = kafka
        self.http = ""  # HOST:PORT once it serves, or off
        self.log = folder / f"broker-{number}.log"
        self.folder = folder / f"broker-{number}"
        self.command = serve_command(self.folder, kafka, "--broker-id", str(number), *options)
        self.state = State.STARTING
        self.process: subprocess.Popen[bytes] | None = None
        self._log_start = 0

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process is not None and self.state is not State.ENDED else None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self._log_start = log.tell()
            self.process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, preexec_fn=end_with_parent
            )

    def look(self) -> State:
        """What became of it since the last look."""
        if self.process is None:
            return self.state
        if self.process.poll() is not None:
            self.state = State.ENDED
        elif self.state is State.STARTING and (ready := ready_addresses(self._written())):
            self.address, self.http = ready
            self.command = _at(self.command, {"--kafka": self.address, "--http": self.http})
            self.state = State.SERVING
        return self.state

    def successor(self) -> int | None:
        """The process that has this broker's folder now, which somebody else started after ours had ended."""
        if self.process is None or self.state is not State.ENDED:
            return None
        try:
            holder = int((self.folder / LOCK_NAME).read_bytes())
            os.kill(holder, 0)
        except (OSError, ValueError):
            return None
        return holder if holder != self.process.pid else None

    def end(self) -> None:
        """Ask it to stop in order."""
        if self.look() is not State.ENDED and self.process is not None:
            self.state = State.STOPPING
            self.process.terminate()

    def kill(self) -> None:
        if self.look() is not State.ENDED and self.process is not None:
            self.process.kill()

    def how_it_ended(self) -> str:
        """In words, with what it said last if it did not end by choice."""
        code = self.process.returncode if self.process is not None else None
        if code is None:
            return "was not started"
        if code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return "ended in order" if code == 0 else f"ended with code {code}: {self.last_words()}"

    def last_words(self) -> str:
        lines = [line for line in self._written().decode(errors="replace").splitlines() if line.strip()]
        return _LOG_PREFIX.sub("", lines[-1]).strip() if lines else "it said nothing"

    def _written(self) -> bytes:
        """What this life of it wrote; a log is small, or it would not be looked at."""
        with self.log.open("rb") as log:
            log.seek(self._log_start)
            return log.read()


def _at(command: Sequence[str], places: Mapping[str, str]) -> list[str]:
    """The command with these options: so it can be given again, and clients find the broker where it was."""
    return [places.get(before, word) for before, word in zip(["", *command], command, strict=False)]
