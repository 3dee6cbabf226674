"""The file system's own limit: the same bytes, written one batch after another, by a program that does nothing else."""

import os
from dataclasses import dataclass

from bench.load import Outcome
from bench.load.drive import Stopwatch

WARM_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Plain:
    """`total` messages of `size` bytes, in writes of `batch` messages each."""

    path: str
    total: int
    size: int
    batch: int
    sync: bool
    seconds: float  # no more is written after so long


def write(job: Plain) -> Outcome:
    """Write to a new file; with `sync`, each write is on the disk before the next begins."""
    chunk = bytes(job.size) * job.batch
    file = os.open(job.path, os.O_CREAT | os.O_TRUNC | os.O_RDWR, 0o600)
    watch, written = Stopwatch(), 0
    while written < job.total and watch.seconds() < job.seconds:
        os.pwrite(file, chunk, written * job.size)
        written += job.batch
        if job.sync:
            os.fdatasync(file)
    outcome = watch.outcome(written)
    os.close(file)
    return outcome


def read(job: Plain) -> Outcome:
    """Read the same file from its start, in reads of the same size."""
    chunk = job.size * job.batch
    file = os.open(job.path, os.O_RDONLY)
    watch, position = Stopwatch(), 0
    while data := os.pread(file, chunk, position):
        position += len(data)
    outcome = watch.outcome(position // job.size)
    os.close(file)
    return outcome


def warm(path: str, size: int) -> None:
    """Touch memory for the page cache: a virtual machine is given its memory when it first uses it, slowly."""
    file = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    for position in range(0, size, WARM_BYTES):
        os.pwrite(file, bytes(WARM_BYTES), position)
    os.close(file)
    os.unlink(path)
