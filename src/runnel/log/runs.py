"""Which offsets have a key of this hash: sorted runs on disk, each over one stretch of a log.

Rule 1: a run is a function of the log: whatever is wrong with it, it is thrown away and built again from there.
Rule 2: a run is written beside, then renamed. It is not synced: what a power loss leaves of it has wrong checksums.
Rule 3: of a run, memory holds one entry of each page. Finding reads the page that has the first wanted one, and those
        behind it as far as they are wanted.
Rule 4: runs that lie side by side are merged by pages, in memory that does not grow with them. A merge is a generator
        that stops behind each page: it holds the interpreter for a millisecond at a time.

The bytes are drawn in docs/formats/key-index.md.
"""

import re
import sys
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Iterator, Sequence
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from runnel.model.seams import Disk, File

PAGE: Final = 2048  # entries: 16 KiB are read to find one
ENTRY_BYTES: Final = 8
SPAN_MAX: Final = 1 << 32  # offsets that one run can tell apart
SUFFIX: Final = ".keys"
TMP: Final = ".tmp"

_MAGIC: Final = b"RNLKEYS1"
_FENCE: Final = Struct("<QI")  # the first entry of a page, the checksum of the page
_FOOTER: Final = Struct("<qqiQI8s")  # first offset, end offset, epoch of the last, entries, checksum of the rest, magic
_NAME: Final = re.compile(r"(\d{20})-(\d{20})\.keys")

Entries: TypeAlias = "array[int] | list[int]"  # hash << 32 | offset - first, ascending
Read: TypeAlias = Callable[[int, int], bytes | memoryview]  # size, position
Steps: TypeAlias = "Generator[None, None, Run]"  # a page each; what is made in the end


class Rotten(Exception):
    """The run is not what was written: throw it away."""


class Run(NamedTuple):
    """One run: all keys of the messages in [first, end), of which the last is of this leader epoch."""

    path: str
    first: int
    end: int
    epoch: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which no run needs
    fences: "array[int]"  # the first entry of each page
    checks: "array[int]"

    def page_place(self, page: int) -> tuple[int, int]:
        """Size and position of a page."""
        return min(PAGE, self.count - page * PAGE) * ENTRY_BYTES, page * PAGE * ENTRY_BYTES

    def page(self, page: int, data: bytes | memoryview) -> "array[int]":
        """The entries of a page, out of its bytes."""
        if len(data) != self.page_place(page)[0] or crc32c(data) != self.checks[page]:
            raise Rotten(f"page {page} of {self.path} is not what was written")
        entries = array("Q", bytes(data))
        if sys.byteorder == "big":
            entries.byteswap()
        return entries

    def first_page(self, entry: int) -> int:
        """The page that the first entry not below this one may be in."""
        return max(0, bisect_left(self.fences, entry) - 1)


def name_of(first: int, end: int) -> str:
    return f"{first:020}-{end:020}{SUFFIX}"


def write(disk: Disk, folder: str, first: int, end: int, epoch: int, parts: Iterator[Entries]) -> Steps:
    """Write a run of entries that come in order, in parts of any size. Each step blocks."""
    path = f"{folder}/{name_of(first, end)}"
    file = disk.open(path + TMP, create=True)
    try:
        file.truncate(0)
        count, fences, checks = yield from _write_pages(file, parts)
        rest = b"".join(_FENCE.pack(*pair) for pair in zip(fences, checks, strict=True))
        plain = _FOOTER.pack(first, end, epoch, count, 0, _MAGIC)
        footer = _FOOTER.pack(first, end, epoch, count, crc32c(plain, crc32c(rest)), _MAGIC)
        file.write([rest, footer], count * ENTRY_BYTES)
    finally:
        file.close()
    disk.rename(path + TMP, path)
    return Run(path, first, end, epoch, count, fences, checks)


def _write_pages(file: File, parts: Iterator[Entries]) -> "Generator[None, None, tuple[int, array[int], array[int]]]":
    count, fences, checks = 0, array("Q"), array("Q")
    for page in _paged(parts):
        fences.append(page[0])
        if sys.byteorder == "big":
            page.byteswap()
        data = page.tobytes()
        checks.append(crc32c(data))
        file.write([data], count * ENTRY_BYTES)
        count += len(page)
        yield
    return count, fences, checks


def step(steps: Steps) -> Run | None:
    """One step; what is made, if it was the last."""
    try:
        next(steps)
    except StopIteration as end:
        made: Run = end.value
        return made
    return None


def whole(steps: Steps) -> Run:
    """All steps at once."""
    while (made := step(steps)) is None:
        continue
    return made


def _paged(parts: Iterator[Entries]) -> "Iterator[array[int]]":
    """The same entries, in whole pages; the last may be shorter."""
    page = array("Q")
    for part in parts:
        page.extend(part)
        while len(page) >= PAGE:
            yield page[:PAGE]
            page = page[PAGE:]
    if page:
        yield page


def load(disk: Disk, path: str) -> Run:
    """Open a run: its footer and fences. Raises Rotten if it is not one. Blocks."""
    file = disk.open(path)
    try:
        size = file.size()
        return _parsed(path, size, file.read)
    except StructError:
        raise Rotten(f"{path} is too short") from None
    finally:
        file.close()


def _parsed(path: str, size: int, read: Read) -> Run:
    end_bytes = bytes(read(_FOOTER.size, max(0, size - _FOOTER.size)))
    first, end, epoch, count, crc, magic = _FOOTER.unpack(end_bytes)
    pages = -(-count // PAGE)
    if magic != _MAGIC or size != count * ENTRY_BYTES + pages * _FENCE.size + _FOOTER.size:
        raise Rotten(f"{path} is not a run")
    rest = bytes(read(pages * _FENCE.size, count * ENTRY_BYTES))
    if crc32c(_FOOTER.pack(first, end, epoch, count, 0, magic), crc32c(rest)) != crc:
        raise Rotten(f"the end of {path} is not what was written")
    pairs = list(_FENCE.iter_unpack(rest))
    return Run(path, first, end, epoch, count, array("Q", [p[0] for p in pairs]), array("Q", [p[1] for p in pairs]))


def load_all(disk: Disk, folder: str) -> list[Run]:
    """The runs in a folder that lie side by side, oldest first; whatever else is there is removed. Blocks."""
    runs: list[Run] = []
    for name in sorted(disk.list(folder), key=_longest_first):
        try:
            if not _NAME.fullmatch(name):
                raise Rotten(f"{name} is half written")
            run = load(disk, f"{folder}/{name}")
            if runs and run.first != runs[-1].end:
                raise Rotten(f"{name} does not go on where the one before it ends")
            runs.append(run)
        except Rotten:
            disk.remove(f"{folder}/{name}")
    return runs


def _longest_first(name: str) -> tuple[str, int]:
    """By first offset; what was merged stands before what it was merged of."""
    match = _NAME.fullmatch(name)
    return (match[1], -int(match[2])) if match else (name, 0)


# --- finding
def find(run: Run, key_hash: int, offset: int, limit: int, read: Read) -> list[int]:
    """The first offsets, `limit` at most, from `offset` on, that a key of this hash is at; ascending."""
    low = key_hash << 32
    wanted = low | max(0, offset - run.first)
    if offset >= run.end:
        return []
    found: list[int] = []
    for page in range(run.first_page(wanted), len(run.fences)):
        if run.fences[page] >= low + SPAN_MAX or len(found) >= limit:
            break
        entries = run.page(page, read(*run.page_place(page)))
        begin, end = bisect_left(entries, wanted), bisect_left(entries, low + SPAN_MAX)
        found += [run.first + (entry - low) for entry in entries[begin : min(end, begin + limit - len(found))]]
    return found


# --- merging
def merge(disk: Disk, folder: str, runs: Sequence[Run]) -> Steps:
    """One run for several that lie side by side. Each step blocks; the old ones stay."""
    first, last = runs[0], runs[-1]
    files = [disk.open(run.path) for run in runs]
    try:
        pages = [_shifted(run, file.read, run.first - first.first) for run, file in zip(runs, files, strict=True)]
        return (yield from write(disk, folder, first.first, last.end, last.epoch, _merged(pages)))
    finally:
        for file in files:
            file.close()


def _shifted(run: Run, read: Read, shift: int) -> Iterator[Entries]:
    """The pages of a run, with offsets as those of the merged run."""
    for page in range(len(run.fences)):
        entries = run.page(page, read(*run.page_place(page)))
        yield [entry + shift for entry in entries] if shift else entries


def _merged(inputs: Sequence[Iterator[Entries]]) -> Iterator[Entries]:
    """All entries in order: what can't be followed by anything smaller any more, again and again."""
    left = [(page, source) for source in inputs if (page := next(source, None))]
    while left:
        bound = min(page[-1] for page, _ in left)
        out: list[int] = []
        still = []
        for page, source in left:
            cut = bisect_right(page, bound)
            out += page[:cut]
            rest: Entries | None = page[cut:] if cut < len(page) else next(source, None)
            if rest:
                still.append((rest, source))
        left = still
        out.sort()
        yield out
