"""Writing an index beside its segment, when it is sealed and when it has to be built again.

An index is never worth a failure: if the disk refuses it, its entries stay in memory, or it is built again later.
"""

from contextlib import suppress

from runnel.log import index as indexes
from runnel.log.index import ENTRY_BYTES, RELATIVE_MAX, TAIL_BYTES_MAX, Footer, Index
from runnel.log.scan import find_hole, misplaced, walk
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


def footer_of(disk: Disk, segment: Segment) -> Footer | None:
    """What the index beside a segment says of it; None if there is none, or it is not whole."""
    try:
        file = disk.open(segment.index_path)
    except OSError:
        return None
    try:
        return indexes.load_footer(file)
    except OSError:
        return None
    finally:
        file.close()


def fits(footer: Footer | None, segment: Segment, next_offset: int) -> bool:
    """Whether the segment is as long as when its index was sealed, and the next one begins where it ended."""
    return (
        footer is not None and footer.log_bytes == segment.size and segment.base_offset + footer.offsets == next_offset
    )


def unscanned(
    footer: Footer | None, segment: Segment, end: int, next_offset: int, *, gapless: bool = False
) -> Hole | None:
    """What is missing at the end of a segment that was scanned up to `end`, if its index knew more.

    An index that claims more than there is room for is from before a truncation, and says nothing. Without one nobody
    knows, but in a log that is `gapless`, which was never compacted, a segment ends where the next one begins.
    """
    first = next_offset
    known = footer is not None and segment.base_offset + footer.offsets <= next_offset
    if footer is not None and known and footer.log_bytes == segment.size:
        first = segment.base_offset + footer.offsets
    elif gapless or (footer is not None and known and footer.log_bytes > segment.size):
        first = end
    return Hole(segment.size, segment.size, first, next_offset) if first < next_offset else None


def load_or_build(
    disk: Disk, segment: Segment, next_offset: int, interval_bytes: int, *, gapless: bool = False
) -> tuple[Index, tuple[Hole, ...]]:
    """The index of a sealed segment, the one beside it if it is whole and fits, else a new one; and what is rotten."""
    found = None
    with suppress(OSError):
        file = disk.open(segment.index_path)
        try:
            found = indexes.load(file)
        finally:
            file.close()
    if found is None or not fits(found, segment, next_offset):
        return build(disk, segment, next_offset, interval_bytes, sealed=found, gapless=gapless)
    index = Index(found.mark, next_at=segment.size)
    index.verified = True
    return index, ()


def build(
    disk: Disk,
    segment: Segment,
    next_offset: int,
    interval_bytes: int,
    *,
    sealed: Footer | None = None,
    gapless: bool = False,
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
                after = at + header.size
                if header.base_offset > offset and misplaced(
                    file.read, header.last_offset, offset, after, segment.size
                ):
                    break
                writer.note(header, at, offset, interval_bytes)
                position, offset = after, header.last_offset + 1
            if position < segment.size:
                holes.append(find_hole(file, position, segment.size, offset, next_offset))
                position, offset = holes[-1].end_position, holes[-1].next_offset
    finally:
        file.close()
        writer.finish(segment, next_offset)
    if (rest := unscanned(sealed, segment, offset, next_offset, gapless=gapless and not index.gaps)) is not None:
        holes.append(rest)
    index.verified = True
    return index, tuple(holes)
