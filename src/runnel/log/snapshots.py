"""Snapshots of the producer state, so that opening and truncating need not replay the log from its start."""

from runnel.log.checkpoint import replace
from runnel.log.layout import PRODUCERS, numbered, offsets_of
from runnel.log.producers import Producers
from runnel.model.seams import Disk

SNAPSHOTS_MAX = 3  # the newest, and two to fall back to when it rots or the log is truncated


def is_worth_saving(producers: Producers) -> bool:
    """Most partitions have no idempotent producers, and need no file to say so."""
    return not producers.empty


def save_snapshot(disk: Disk, folder: str, offset: int, producers: Producers) -> None:
    """Off the loop: ten thousand producers take tens of milliseconds to write down."""
    replace(disk, folder, numbered(offset, PRODUCERS), producers.to_bytes(offset))
    for old in offsets_of(disk.list(folder), PRODUCERS)[:-SNAPSHOTS_MAX]:
        disk.remove(f"{folder}/{numbered(old, PRODUCERS)}")


def drop_snapshots(disk: Disk, folder: str, end_offset: int) -> None:
    """The log ends at `end_offset` now: what was taken above it never was."""
    for offset in offsets_of(disk.list(folder), PRODUCERS):
        if offset > end_offset:
            disk.remove(f"{folder}/{numbered(offset, PRODUCERS)}")
