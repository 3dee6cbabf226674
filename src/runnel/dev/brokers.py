"""A broker as a process: the command that starts it, and how it says that it is ready."""

import re
import sys
from pathlib import Path
from typing import NamedTuple

ANY_PORT = "127.0.0.1:0"
_READY = re.compile(rb"^ +kafka +(\S+) .*\n +http +(?:http://)?(\S+).*\n", re.MULTILINE)


class Ready(NamedTuple):
    """Where clients are let in."""

    kafka: str
    http: str  # HOST:PORT, or off


def serve_command(data: Path, kafka: str, *options: str) -> list[str]:
    """`runnel serve` with the Python that runs this; the HTTP door is anywhere, unless the options say where."""
    serve = [sys.executable, "-m", "runnel.cli.main", "serve", "--data", str(data), "--kafka", kafka]
    return [*serve, *(() if "--http" in options else ("--http", ANY_PORT)), *options]


def ready_addresses(printed: bytes) -> Ready | None:
    """Where clients are let in, once the broker has printed it."""
    found = _READY.search(printed)
    return Ready(found[1].decode(), found[2].decode().rstrip(":")) if found else None
