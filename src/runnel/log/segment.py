"""One segment: a file of batches, the files beside it, and what is known to be rotten in it."""

from typing import NamedTuple

from runnel.log.index import Index
from runnel.log.layout import INDEX, LOG, TRANSACTIONS, numbered
from runnel.model.ids import Offset


class Hole(NamedTuple):
    """Bytes that are not what was written, and the offsets that were in them."""

    position: int
    end_position: int
    first_offset: int
    next_offset: int


class Segment:
    """The batches from `base_offset` on, up to the next segment."""

    __slots__ = (
        "base_offset", "created_ms", "crowded", "folder", "holes", "index", "index_path", "log_path", "sealed_latest",
        "size", "transactions_path",
    )  # fmt: skip

    def __init__(self, folder: str, base_offset: int, size: int, created_ms: int, index: Index | None) -> None:
        self.folder = folder
        self.log_path = f"{folder}/{numbered(base_offset, LOG)}"
        self.index_path = f"{folder}/{numbered(base_offset, INDEX)}"
        self.transactions_path = f"{folder}/{numbered(base_offset, TRANSACTIONS)}"
        self.base_offset = Offset(base_offset)
        self.size = size
        self.created_ms = created_ms
        self.index = index  # None: sealed, and not looked at yet
        self.sealed_latest: int | None = None  # its latest timestamp, while the index is not looked at
        self.holes: tuple[Hole, ...] = ()
        self.crowded = False  # to be rolled: too many transactions were aborted in it, or a roll was begun

    @property
    def paths_beside(self) -> tuple[str, str]:
        """The files that are built again from it."""
        return self.index_path, self.transactions_path

    def hole_at(self, position: int) -> Hole | None:
        for hole in self.holes:
            if hole.position <= position < hole.end_position:
                return hole
        return None

    def holes_below(self, position: int) -> tuple[Hole, ...]:
        return tuple(hole for hole in self.holes if hole.position < position)
