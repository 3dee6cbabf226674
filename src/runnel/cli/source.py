"""Where `runnel produce` gets its lines: stdin or files, read without blocking the loop."""

import asyncio
import os
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from runnel.cli.output import bytes_text, note, progress

CHUNK_BYTES = 256 * 1024
STDIN = "-"


async def lines(paths: tuple[str, ...], delimiter: bytes) -> AsyncIterator[bytes]:
    """What stands between delimiters, in stdin or in the files one after the other."""
    if not paths and sys.stdin.isatty():
        note("Type messages, one a line; end with Ctrl-D.")
    with _Meter(paths or (STDIN,)) as meter:
        for path in paths or (STDIN,):
            rest = b""
            async for chunk in _chunks(path):
                *whole, rest = (rest + chunk).split(delimiter)
                for line in whole:
                    yield line
                meter.add(len(chunk))
            if rest:
                yield rest


async def given(messages: tuple[str, ...]) -> AsyncIterator[bytes]:
    """Messages that were given as arguments."""
    for text in messages:
        yield text.encode()


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
