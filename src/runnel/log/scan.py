"""Going through the batches of a segment file, in big reads, off the loop.

Rule 1: a batch counts only if it is whole, of our format, and has the checksum it says.
Rule 2: nothing here decides what a bad batch means: whether it is a torn tail or rot is the caller's to know.
"""

from collections.abc import Callable, Iterator

from crc32c import crc32c

from runnel.log.segment import Hole
from runnel.model.limits import MIB
from runnel.model.seams import Buffer, File
from runnel.record.batch import CONTROL, CRC_STARTS, HEADER_BYTES, MAGIC, MAGIC_AT, BatchHeader, intact, read_header
from runnel.record.control import Marker, marker_in

CHUNK_BYTES = 4 * MIB


def walk(file: File, position: int, end: int, *, check_crc: bool = True) -> Iterator[tuple[int, BatchHeader]]:
    """Each batch of [position, end) and where it begins; ends before the first one that is not good."""
    want = CHUNK_BYTES
    while position < end:
        chunk = file.read(min(want, end - position), position)
        view, at, size = memoryview(chunk), 0, 0
        while len(chunk) - at >= HEADER_BYTES:
            header = read_header(chunk, at)
            size = header.size
            if size < HEADER_BYTES or header.magic != MAGIC or header.last_offset_delta < 0:
                return
            if at + size > len(chunk):
                break
            if check_crc and crc32c(view[at + CRC_STARTS : at + size]) != header.crc:
                return
            yield position + at, header
            at += size
        if at == 0 and (size <= len(chunk) or position + size > end or len(chunk) < min(want, end - position)):
            return
        want = max(CHUNK_BYTES, size) if at == 0 else CHUNK_BYTES
        position += at


def walk_over_rot(
    file: File, position: int, end: int, offset: int, next_base: int
) -> Iterator[tuple[int, BatchHeader]]:
    """Each batch whose header can be made out; checksums are not looked at, what is unreadable is left out."""
    while position < end:
        for at, header in walk(file, position, end, check_crc=False):
            if header.base_offset < offset or header.last_offset >= next_base:
                break
            if header.base_offset > offset and misplaced(file.read, header.last_offset, offset, at + header.size, end):
                break
            yield at, header
            position, offset = at + header.size, header.last_offset + 1
        if position < end:
            hole = find_hole(file, position, end, offset, next_base)
            position, offset = hole.end_position, hole.next_offset


def marker_at(file: File, position: int, header: BatchHeader) -> Marker | None:
    """What the control batch at `position` says; None if it is none, or nobody can read it."""
    return marker_in(file.read(header.size, position)) if header.attributes & CONTROL else None


def misplaced(read: Callable[[int, int], Buffer | None], last: int, due: int, after: int, end: int) -> bool:
    """Whether a batch that leaves a gap, and ends with offset `last`, can't stand where it stands.

    Offsets lie outside the checksum. If the batch behind it would fit into the gap, there is none: its offset is wrong.
    """
    data = read(HEADER_BYTES, after) if after + HEADER_BYTES <= end else None
    if data is None or len(data) < HEADER_BYTES:
        return False
    following = read_header(data)
    return following.magic == MAGIC and following.size >= HEADER_BYTES and due <= following.base_offset <= last


def find_hole(file: File, position: int, end: int, first_offset: int, end_offset: int) -> Hole:
    """How far the damage reaches that begins at `position`: up to the next good batch, or to the end."""
    bad = file.read(HEADER_BYTES, position)
    if len(bad) == HEADER_BYTES:
        claimed = position + read_header(bad).size
        if claimed > position and (found := _good_at(file, claimed, end, first_offset, end_offset)) is not None:
            return Hole(position, claimed, first_offset, found)
    at = position + 1
    while at < end:
        chunk = file.read(min(CHUNK_BYTES, end - at), at)
        hit = chunk.find(MAGIC, MAGIC_AT)
        while hit >= 0:
            candidate = at + hit - MAGIC_AT
            if (found := _good_at(file, candidate, end, first_offset, end_offset)) is not None:
                return Hole(position, candidate, first_offset, found)
            hit = chunk.find(MAGIC, hit + 1)
        if len(chunk) <= MAGIC_AT:
            break
        at += len(chunk) - MAGIC_AT
    return Hole(position, end, first_offset, end_offset)


def _good_at(file: File, position: int, end: int, first_offset: int, end_offset: int) -> int | None:
    """The base offset of the good batch at `position`; None if there is none that could stand there.

    The batch that begins with `first_offset` is the rotten one: a copy of it that lies elsewhere was moved, and so may
    be all behind it that indexes know by its place.
    """
    data = file.read(HEADER_BYTES, position) if position + HEADER_BYTES <= end else b""
    if len(data) < HEADER_BYTES:
        return None
    header = read_header(data)
    plausible = first_offset < header.base_offset <= header.last_offset < end_offset
    if not plausible or header.size < HEADER_BYTES or position + header.size > end:
        return None
    if not intact(file.read(header.size, position), header) or not _followed(file, position, header, end):
        return None
    return header.base_offset


def _followed(file: File, position: int, header: BatchHeader, end: int) -> bool:
    """Whether another header or the end follows: else it is a batch that somebody sent as the value of a record."""
    after = position + header.size
    if after == end:
        return True
    data = file.read(HEADER_BYTES, after)
    if len(data) < HEADER_BYTES:
        return False
    following = read_header(data)
    return following.magic == MAGIC and following.base_offset > header.last_offset and following.size >= HEADER_BYTES
