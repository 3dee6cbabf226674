"""Small files that are replaced as a whole: written beside, synced, renamed, and the folder synced.

The checkpoint says what a crash can't have touched: everything below the recovery point survived. It is not revoked
when the log is written to: a log that grew since then has a longer file than the checkpoint says, and is scanned from
there on; one that did not grow was stopped cleanly. Truncation lowers the recovery point before it cuts.
"""

from typing import Literal

import msgspec
from crc32c import crc32c

from runnel.log.layout import CHECKPOINT, TMP
from runnel.model.errors import Fatal
from runnel.model.limits import MIB
from runnel.model.seams import Disk, File

CHUNK_BYTES = MIB
_TITLE = b"runnel checkpoint 1 crc32c="


class IndexMark(msgspec.Struct, frozen=True):
    """The index of the segment with the recovery point, as it was at that point."""

    count: int
    crc: int
    latest_timestamp: int
    gaps: bool


class Checkpoint(msgspec.Struct, frozen=True):
    """What was known when it was written."""

    start_offset: int  # nothing below is to be seen again
    recovery_offset: int  # everything below is durable
    segment: int  # base offset of the segment that holds the recovery point
    position: int  # where in that segment the recovery point lies
    created_ms: int  # when that segment was begun
    snapshot: bool  # whether there were idempotent producers, so that a snapshot at the recovery point belongs to it
    cleaned_offset: int  # compaction has been here
    index: IndexMark
    epochs: list[tuple[int, int]]  # leader epoch, its first offset
    cuts: int = 0  # truncations so far: marks from before the last one do not count
    damage: list[tuple[int, int, str, int]] = []  # first offset, next offset, file, byte
    anew: Literal["", "removed", "aside"] = ""  # decided, not done yet: the log begins at its start, and all this goes


# Made here, before there are threads: what msgspec knows of a type it builds at the first use, and a second thread that
# comes upon it half built crashes the process. Logs are opened in several threads at once.
_decoder = msgspec.json.Decoder(Checkpoint)


def save(disk: Disk, folder: str, checkpoint: Checkpoint) -> None:
    body = msgspec.json.encode(checkpoint)
    replace(disk, folder, CHECKPOINT, b"%s%08x\n%s\n" % (_TITLE, crc32c(body), body))


def load(disk: Disk, folder: str) -> Checkpoint | None:
    """The checkpoint; None if there is none, or it is not what was written."""
    data = read_small(disk, f"{folder}/{CHECKPOINT}")
    if data is None:
        return None
    title, _, body = data.rstrip(b"\n").partition(b"\n")
    if title != b"%s%08x" % (_TITLE, crc32c(body)):
        return None
    try:
        return _decoder.decode(body)
    except msgspec.DecodeError:
        return None


def replace(disk: Disk, folder: str, name: str, data: bytes, *, durable: bool = True) -> None:
    """Put `data` into a file so that, whatever happens, it holds the old content or the new one."""
    path = f"{folder}/{name}"
    file = disk.open(path + TMP, create=True)
    try:
        file.truncate(0)
        file.write([data], 0)
        if durable:
            sync(file)
    finally:
        file.close()
    disk.rename(path + TMP, path)
    if durable:
        sync_dir(disk, folder)


def read_small(disk: Disk, path: str) -> bytes | None:
    """The whole of a small file; None if it is not there."""
    try:
        file = disk.open(path)
    except FileNotFoundError:
        return None
    try:
        return file.read(file.size(), 0)
    finally:
        file.close()


def write_again(file: File, position: int, end: int) -> None:
    """Let the next sync cover this part of a file, even if one failed that should have: it took the pages for clean."""
    for at in range(position, end, CHUNK_BYTES):
        file.write([file.read(min(CHUNK_BYTES, end - at), at)], at)


def sync(file: File) -> None:
    """fdatasync; a failure ends the broker, because the next one may report success with the bytes gone."""
    try:
        file.sync()
    except OSError as error:
        raise Fatal(
            f"fdatasync of {file.path} failed ({error.strerror}): what the disk holds is uncertain. "
            "The broker ends; check the disk, then start it again: it recovers from what is really there"
        ) from error


def sync_dir(disk: Disk, folder: str) -> None:
    try:
        disk.sync_dir(folder)
    except OSError as error:
        raise Fatal(
            f"fsync of the folder {folder} failed ({error.strerror}): what the disk holds is uncertain. "
            "The broker ends; check the disk, then start it again: it recovers from what is really there"
        ) from error
