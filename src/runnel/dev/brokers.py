"""A broker as a process: the command that starts it, and how it says that it is ready."""

import re
import sys
from pathlib import Path

_READY = re.compile(rb"^ +kafka +(\S+) .*\n", re.MULTILINE)


def serve_command(data: Path, kafka: str, *options: str) -> list[str]:
    """`runnel serve` with the Python that runs this."""
    return [sys.executable, "-m", "runnel.cli.main", "serve", "--data", str(data), "--kafka", kafka, *options]


def ready_address(printed: bytes) -> str | None:
    """Where clients are let in, once the broker has printed it."""
    found = _READY.search(printed)
    return found[1].decode() if found else None
