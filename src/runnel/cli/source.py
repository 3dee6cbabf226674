"""Where `runnel produce` gets its lines: stdin or files, read without blocking the loop."""

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import click

from runnel.cli.output import bytes_text, note, progress
from runnel.model.limits import FRAME_BYTES_MAX

CHUNK_BYTES = 256 * 1024
LINE_BYTES_MAX = FRAME_BYTES_MAX  # a message has to fit into a request
JSON_BYTES_MAX = 6 * FRAME_BYTES_MAX  # in JSON a byte may be written as \u0000
STDIN = "-"


async def lines(paths: tuple[str, ...], delimiter: bytes, *, bytes_max: int) -> AsyncIterator[bytes]:
    """What stands between delimiters, in stdin or in the files one after the other."""
    if not paths and sys.stdin.isatty():
        note("Type messages, one a line; end with Ctrl-D.")
    with _Meter(paths or (STDIN,)) as meter:
        for path in paths or (STDIN,):
            cutter = _Cutter(delimiter, bytes_max, "stdin" if path == STDIN else path)
            async for chunk in _chunks(path):
                for line in cutter.feed(chunk):
                    yield line
                meter.add(len(chunk))
            if cutter.rest:
                yield bytes(cutter.rest)


async def given(messages: tuple[str, ...]) -> AsyncIterator[bytes]:
    """Messages that were given as arguments."""
    for text in messages:
        yield text.encode()


class _Cutter:
    """Cuts what comes in chunks at its delimiters; each byte is looked at once, however long a line is."""

    def __init__(self, delimiter: bytes, bytes_max: int, where: str) -> None:
        self._delimiter = delimiter
        self._bytes_max = bytes_max
        self._where = where
        self._count = 0
        self.rest = bytearray()

    def feed(self, chunk: bytes) -> Iterator[bytes]:
        """The lines that this chunk ends."""
        looked_at = max(0, len(self.rest) - len(self._delimiter) + 1)
        self.rest += chunk
        if self.rest.find(self._delimiter, looked_at) >= 0:
            *whole, rest = bytes(self.rest).split(self._delimiter)
            self.rest = bytearray(rest)
            for line in whole:
                self._check(len(line))
                self._count += 1
                yield line
        self._check(len(self.rest))

    def _check(self, size: int) -> None:
        if size > self._bytes_max:
            raise click.ClickException(
                f"line {self._count + 1} of {self._where} is above {bytes_text(self._bytes_max)}, and no message may"
                " be: cut it, or say with -D what ends a message"
            )


class _Meter:
    """Progress through plain files; a pipe has no end that could be known, and shows none."""

    def __init__(self, paths: tuple[str, ...]) -> None:
        self._total = sum(_size(path) for path in paths)
        self._done = 0
        self._progress = progress() if self._total > CHUNK_BYTES else None

    def __enter__(self) -> "_Meter":
        if self._progress is not None:
            self._task = self._progress.add_task("produce", total=self._total, rate="")
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def add(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            rate = f"{bytes_text(self._done)} of {bytes_text(self._total)}"
            self._progress.update(self._task, completed=self._done, rate=rate)


def _size(path: str) -> int:
    status = os.fstat(sys.stdin.fileno()) if path == STDIN else os.stat(path)
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


@contextmanager
def _opened(path: str) -> Iterator[int]:
    if path == STDIN:
        yield sys.stdin.fileno()
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


async def _chunks(path: str) -> AsyncIterator[bytes]:
    """Bytes as they come."""
    with _opened(path) as fd:
        while True:
            await _readable(fd)
            chunk = os.read(fd, CHUNK_BYTES)
            if not chunk:
                return
            yield chunk


async def _readable(fd: int) -> None:
    """Wait for input. A plain file always has some, and the loop refuses to watch it."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    try:
        loop.add_reader(fd, ready.set)
    except OSError:
        await asyncio.sleep(0)
        return
    try:
        await ready.wait()
    finally:
        loop.remove_reader(fd)
