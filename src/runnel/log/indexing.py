"""Writing an index beside its segment, when it is sealed and when it has to be built again.

An index is never worth a failure: if the disk refuses it, its entries stay in memory, or it is built again later.
"""

from contextlib import suppress

from runnel.log import index as indexes
from runnel.log.index import ENTRY_BYTES, RELATIVE_MAX, TAIL_BYTES_MAX, Index
from runnel.log.scan import find_hole, walk
from runnel.log.segment import Hole, Segment
from runnel.model.seams import Disk, File
from runnel.record.batch import BatchHeader


class IndexWriter:
    """Adds entries to an index while its segment is being scanned."""

    def __init__(self, disk: Disk, path: str, base_offset: int, index: Index) -> None:
        self._index = index
        self._base_offset = base_offset
        self._file: File | None = None
        with suppress(OSError):
            self._file = disk.open(path, create=True)
            self._file.truncate(index.count * ENTRY_BYTES)

    def note(self, header: BatchHeader, position: int, expected_offset: int, interval_bytes: int) -> None:
        index = self._index
        if header.base_offset != expected_offset:
            index.gaps = True
        if position >= index.next_at:
            index.note(header.base_offset - self._base_offset, position, header.max_timestamp, interval_bytes)
            if len(index.tail) >= TAIL_BYTES_MAX:
                self._flush()
        elif header.max_timestamp > index.latest_timestamp:
            index.latest_timestamp = header.max_timestamp

    def finish(self, segment: Segment, next_offset: int | None) -> None:
        """Write what is left; with the next segment's base offset the index is sealed."""
        self._flush()
        if self._file is not None:
            if next_offset is not None and not self._index.tail:
                seal(self._file, self._index, segment, next_offset)
            self._file.close()

    def _flush(self) -> None:
        if self._file is not None:
            with suppress(OSError):
                self._index.flush(self._file)


def seal(file: File, index: Index, segment: Segment, next_offset: int) -> None:
    """End an index whose tail was flushed; without this footer it is built again when it is needed."""
    if next_offset - segment.base_offset > RELATIVE_MAX:
        return
    with suppress(OSError):
        footer = indexes.footer(index, segment.size, next_offset - segment.base_offset)
        file.write([footer], index.count * ENTRY_BYTES)
        file.truncate(index.count * ENTRY_BYTES + len(footer))


def load_or_build(
    disk: Disk, segment: Segment, next_offset: int, interval_bytes: int
) -> tuple[Index, tuple[Hole, ...]]:
    """The index of a sealed segment, the one beside it if it is whole and fits, else a new one; and what is rotten."""
    found = None
    with suppress(OSError):
        file = disk.open(segment.index_path)
        try:
            found = indexes.load(file)
        finally:
            file.close()
    if found is None or found.log_bytes != segment.size:
        return build(disk, segment, next_offset, interval_bytes, known_end=_end_by(found, segment))
    index = Index(found.mark, next_at=segment.size)
    index.verified = True
    end = segment.base_offset + found.offsets
    return index, (Hole(segment.size, segment.size, end, next_offset),) if end != next_offset else ()


def _end_by(found: indexes.Footer | None, segment: Segment) -> int | None:
    return None if found is None else segment.base_offset + found.offsets


def build(
    disk: Disk, segment: Segment, next_offset: int, interval_bytes: int, *, known_end: int | None = None
) -> tuple[Index, tuple[Hole, ...]]:
    """A new index for a segment from its batches, and what is rotten between them."""
    index = Index()
    holes: list[Hole] = []
    writer = IndexWriter(disk, segment.index_path, segment.base_offset, index)
    file = disk.open(segment.log_path)
    position, offset = 0, int(segment.base_offset)
    try:
        while position < segment.size:
            for at, header in walk(file, position, segment.size):
                if header.base_offset < offset or header.last_offset >= next_offset:
                    break
                writer.note(header, at, offset, interval_bytes)
                position, offset = at + header.size, header.last_offset + 1
            if position < segment.size:
                holes.append(find_hole(file, position, segment.size, offset, next_offset))
                position, offset = holes[-1].end_position, holes[-1].next_offset
    finally:
        file.close()
        writer.finish(segment, next_offset)
    if known_end is not None and offset < known_end:
        holes.append(Hole(segment.size, segment.size, offset, known_end))
    index.verified = True
    return index, tuple(holes)
