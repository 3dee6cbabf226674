"""What the replicas of a partition hold, read from their simulated disks behind their back: that takes no time.

Whole batches with a right checksum count, in order; what follows the first that is none does not. A copy is read on
from where it was read before, unless what was read has changed.
"""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from runnel.log.layout import LOG
from runnel.model.ids import PartitionKey
from runnel.record.batch import BatchHeader, read_header
from runnel.record.control import Marker, marker_in
from runnel.testing.disk import SimDisk, _Folder, _Inode

_FRONT = Struct(">qiibIhi")  # base offset, length, leader epoch, magic, checksum, attributes, last offset delta
FRAMING_BYTES, HEADER_BYTES, CRC_STARTS, IDENTITY_BYTES = 12, 61, 21, 21


class Batch(NamedTuple):
    base: int
    last: int
    epoch: int
    crc: int


class Copy:
    """The batches of one partition on one disk."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.places: dict[int, int] = {}  # base offset -> index
        self.life = 0  # grows when what was read before does not hold any more
        self._files: list[tuple[str, _Inode]] = []
        self._read_to = 0  # in the last file
        self._mark: tuple[int, bytes] = (0, b"")  # the last batch read: where, and how it begins

    @property
    def end(self) -> int:
        return self.batches[-1].last + 1 if self.batches else 0

    def refresh(self, disk: SimDisk, folder: str) -> None:
        files = _log_files(disk, folder)
        if not self._goes_on(files):
            self.life += 1
            self.batches.clear()
            self.places.clear()
            self._files, self._read_to, self._mark = [], 0, (0, b"")
        begin = len(self._files) - 1 if self._files else 0
        for file in files[begin:]:
            if not self._files or file != self._files[-1]:
                self._files.append(file)
                self._read_to, self._mark = 0, (0, b"")
            self._read(file[1].now)

    def _goes_on(self, files: list[tuple[str, _Inode]]) -> bool:
        if not self._files:
            return True
        at, begin = self._mark
        known = files[: len(self._files)]
        return known == self._files and self._files[-1][1].now[at : at + len(begin)] == begin

    def _read(self, data: bytearray) -> None:
        for at, batch in _batches(data, self._read_to):
            if self.batches and batch.base <= self.batches[-1].last:
                return  # a file of another time: recovery has not removed it yet
            self.places[batch.base] = len(self.batches)
            self.batches.append(batch)
            size = FRAMING_BYTES + int.from_bytes(data[at + 8 : at + 12], "big")
            self._read_to, self._mark = at + size, (at, bytes(data[at : at + IDENTITY_BYTES]))

    def has(self, batch: Batch, below: int) -> bool:
        """Whether this very batch is there, and ends below an offset."""
        place = self.places.get(batch.base)
        return place is not None and self.batches[place] == batch and batch.last < below


def folder_of(key: PartitionKey) -> str:
    return f"partitions/{key}"


def headers_of(disk: SimDisk, folder: str) -> Iterator[tuple[BatchHeader, Marker | None]]:
    """The header of every batch, in order, and what it says if it ends a transaction."""
    for _, inode in _log_files(disk, folder):
        for at, _ in _batches(inode.now, 0):
            header = read_header(bytes(inode.now[at : at + HEADER_BYTES]))
            yield header, marker_in(bytes(inode.now[at : at + header.size])) if header.control else None


def _log_files(disk: SimDisk, folder: str) -> list[tuple[str, _Inode]]:
    found: _Folder | _Inode | None = disk._root
    for name in folder.split("/"):
        found = found.now.get(name) if isinstance(found, _Folder) else None
    if not isinstance(found, _Folder):
        return []
    files = [(name, inode) for name, inode in found.now.items() if name.endswith(LOG) and isinstance(inode, _Inode)]
    return sorted(files, key=lambda file: file[0])


def _batches(data: bytearray, at: int) -> Iterator[tuple[int, Batch]]:
    while at + HEADER_BYTES <= len(data):
        base, length, epoch, magic, crc, _, delta = _FRONT.unpack_from(data, at)
        end = at + FRAMING_BYTES + length
        if magic != 2 or length + FRAMING_BYTES < HEADER_BYTES or end > len(data):
            return
        if crc32c(bytes(data[at + CRC_STARTS : end])) != crc:
            return
        yield at, Batch(base, base + delta, epoch, crc)
        at = end
