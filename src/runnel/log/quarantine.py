"""Putting a damaged segment aside before a log is cut: what could still be looked into is not thrown away.

Rule 1: what lies behind the cut in its segment is copied, and synced, before anything is cut. Whole segments are
        renamed after the cut is decided.
Rule 2: what the disk refuses to read is left out: zeros stand in its place.
Rule 3: nobody reads or removes these files but the operator. One that is put aside again replaces the older one.
"""

import errno

from runnel.log.checkpoint import sync, sync_dir
from runnel.log.layout import DAMAGED, TMP, numbered
from runnel.log.segment import Segment
from runnel.model.limits import MIB
from runnel.model.seams import Disk, File


def aside_path(segment: Segment) -> str:
    return f"{segment.folder}/{numbered(segment.base_offset, DAMAGED)}"


def set_aside(disk: Disk, segment: Segment, position: int) -> None:
    """Copy what a segment has from `position` on."""
    if segment.size > position:
        _copy(disk, segment, position, aside_path(segment))
        sync_dir(disk, segment.folder)


def _copy(disk: Disk, segment: Segment, position: int, path: str) -> None:
    source, copy = disk.open(segment.log_path), disk.open(path + TMP, create=True)
    try:
        copy.truncate(0)
        for at in range(position, segment.size, MIB):
            copy.write((_read(source, min(MIB, segment.size - at), at),), at - position)
        sync(copy)
    finally:
        source.close()
        copy.close()
    disk.rename(path + TMP, path)


def _read(source: File, size: int, position: int) -> bytes:
    try:
        return source.read(size, position)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        return bytes(size)
