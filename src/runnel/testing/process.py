"""A broker of one's own, as a process: for tests that want the real thing."""

import os
import select
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from runnel.dev.brokers import Ready, ready_addresses, serve_command

READY_S = 60.0  # generous: a busy machine may be slow, a broken broker ends at once


class BrokerProcess:
    """`runnel serve` on a free port of loopback, until the end of the block."""

    def __init__(self, data: Path, *options: str, environment: Mapping[str, str] | None = None, port: int = 0) -> None:
        self.data = data
        self._options: Sequence[str] = options
        self._environment = {**os.environ, **(environment or {})}
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None
        self.kafka = ""
        self.http = ""  # HOST:PORT of the HTTP door

    def start(self) -> None:
        """Start, or start again on the same port, and wait until clients are let in."""
        where = ["--http", self.http] if self.http else []
        command = serve_command(self.data, self.kafka or f"127.0.0.1:{self._port}", *where, *self._options)
        errors = (self.data.parent / f"{self.data.name}.stderr").open("a")
        with errors:
            self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, env=self._environment)
        self.kafka, self.http = self._addresses()

    def _addresses(self) -> Ready:
        """Where clients are let in, out of what the broker prints when it is ready."""
        output = self.process.stdout
        assert output is not None
        printed = b""
        while select.select([output], [], [], READY_S)[0] and (piece := os.read(output.fileno(), 4096)):
            printed += piece
            if addresses := ready_addresses(printed):
                return addresses
        raise RuntimeError(f"the broker did not become ready:\n{self.errors()}")

    def errors(self) -> str:
        """What the broker wrote to stderr so far."""
        return (self.data.parent / f"{self.data.name}.stderr").read_text()

    @property
    def process(self) -> "subprocess.Popen[bytes]":
        assert self._process is not None, "the broker was not started"
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM, as an operator; returns the exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        process = self.process
        if process.poll() is None:
            process.send_signal(number)
        code = process.wait(READY_S)
        if process.stdout is not None:
            process.stdout.close()
        return code

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()
