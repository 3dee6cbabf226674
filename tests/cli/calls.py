"""Calling the command line: in this process (quick), or as a process of its own (stdin, signals, pipes)."""

import json
import subprocess
import sys
from typing import Any, NamedTuple, Protocol


class Called(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one JSON value that was printed."""
        return json.loads(self.out)

    @property
    def rows(self) -> list[list[str]]:
        """The words of each line."""
        return [line.split() for line in self.out.splitlines()]


class Call(Protocol):
    def __call__(self, *arguments: str, code: int = 0) -> Called: ...


COMMAND = [sys.executable, "-m", "runnel.cli.main"]


def process(address: str, *arguments: str, stdin: bytes = b"", code: int = 0) -> "subprocess.CompletedProcess[bytes]":
    """Run the command with this on stdin, to its end."""
    done = subprocess.run(
        [*COMMAND, *arguments, "-b", address], input=stdin, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == code, done.stderr.decode()
    return done
