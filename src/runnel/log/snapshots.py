"""Snapshots of the producer state, so that opening and truncating need not replay the log from its start."""

from runnel.log.checkpoint import read_small, replace, sync_dir
from runnel.log.layout import PRODUCERS, numbered, offsets_of
from runnel.log.producers import Producers
from runnel.log.scan import marker_at, walk_over_rot
from runnel.log.segment import Segment
from runnel.log.transactions import Aborted
from runnel.model.ids import Offset
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
    """The log ends at `end_offset` now: what was taken above it never was.

    Durably, and before anything is appended: one that came back would stand for other batches than were there then.
    """
    taken_above = [offset for offset in offsets_of(disk.list(folder), PRODUCERS) if offset > end_offset]
    for offset in taken_above:
        disk.remove(f"{folder}/{numbered(offset, PRODUCERS)}")
    if taken_above:
        sync_dir(disk, folder)


def load_producers(
    disk: Disk, folder: str, snapshots: list[Offset], segments: list[Segment], end_offset: int, now_ms: int
) -> Producers:
    """The producers as they were before `end_offset`: the newest good snapshot, and the log from there on.

    Which transactions were aborted in the last segment is not told.
    """
    begin, producers = newest_snapshot(disk, folder, snapshots, segments)
    replay(disk, segments, producers, begin, end_offset, now_ms)
    producers.transactions.aborted = Aborted()
    return producers


def newest_snapshot(
    disk: Disk, folder: str, snapshots: list[Offset], segments: list[Segment]
) -> tuple[int, Producers]:  # fmt: skip
    """The newest good one of these snapshots, and its offset; nobody, before everything, if there is none.

    A snapshot from before the log's start is of no use: batches between the two are gone, and a producer of whom only
    the older half is known would be refused for ever.
    """
    for offset in reversed([offset for offset in snapshots if offset >= segments[0].base_offset]):
        data = read_small(disk, f"{folder}/{numbered(offset, PRODUCERS)}")
        found = Producers.from_bytes(data, offset) if data is not None else None
        if found is not None:
            return offset, found
    return 0, Producers()


def replay(
    disk: Disk, segments: list[Segment], producers: Producers, from_offset: int, end_offset: int, now_ms: int
) -> None:
    """Let the batches of [from_offset, end_offset) be followed, as when they were written."""
    for number, segment in enumerate(segments):
        next_base = segments[number + 1].base_offset if number + 1 < len(segments) else end_offset
        if next_base <= from_offset or segment.base_offset >= end_offset:
            continue
        file = disk.open(segment.log_path)
        try:
            for at, header in walk_over_rot(file, 0, segment.size, segment.base_offset, next_base):
                if header.producer_id >= 0 and from_offset <= header.base_offset < end_offset:
                    producers.replay(header, now_ms, marker_at(file, at, header))
        finally:
            file.close()
