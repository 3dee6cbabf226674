"""The batches and records of one partition that can't be read: their checksum is right, so they are what was sent.

Rule 1: for whoever goes message by message, such a batch holds no message: one producer's nonsense costs the others
        nothing. Who reads whole batches gets it as it is.
Rule 2: a batch whose records are larger than `bytes_max` when they are decompressed is one of these: what a few bytes
        can become must not cost the others their memory.
Rule 3: a record of an internal topic that its coordinator can't take over is set aside: it stays in the log, and the
        records beside it are served.
Rule 4: each is told of once, and counted once; of very many, the first ones alone.
"""

import logging
from collections.abc import Hashable
from typing import Final

from runnel.model.errors import InvalidRecord, RecordUnreadable
from runnel.model.seams import Buffer
from runnel.record import records
from runnel.record.batch import BatchHeader, read_header
from runnel.record.records import Record

TOLD_MAX: Final = 100  # of a partition: a producer that sends nothing else is told of often enough by then
COUNTED_MAX: Final = 10_000  # places that are remembered, so that reading again does not count them again

logger = logging.getLogger("runnel.replica")


class Unreadable:
    """Tells of them, and counts them."""

    __slots__ = ("_name", "_places", "bytes_max", "count")

    def __init__(self, name: str, bytes_max: int = records.RECORDS_BYTES_MAX) -> None:
        self._name = name
        self.bytes_max = bytes_max  # of the records of one batch, decompressed
        self._places: set[Hashable] = set()
        self.count = 0  # records, as far as they are counted

    def records_of(self, batch: Buffer) -> list[Record]:
        """The records of a batch; none if they can't be read."""
        try:
            return records.decode(batch, bytes_max=self.bytes_max)
        except InvalidRecord as problem:
            self.pass_over(read_header(batch), problem)
            return []

    def pass_over(self, header: BatchHeader, problem: InvalidRecord) -> None:
        """This batch holds no messages."""
        if self._is_to_be_told(header.base_offset, header.count):
            logger.warning(
                "%s: the batch at offsets %d to %d can't be read (%s): it holds no messages for coordinators, queues,"
                " inboxes, HTTP and names; see to the producer that sent it",
                self._name, header.base_offset, header.last_offset, problem,
            )  # fmt: skip

    def set_aside(self, problem: RecordUnreadable, offset: int) -> None:
        """Rule 3, for the record at this offset."""
        self.set_aside_at(problem, offset, f"the record at offset {offset}")

    def set_aside_at(self, problem: RecordUnreadable, place: Hashable, name: str) -> None:
        """Rule 2, for a record with another place than an offset; `name` says which one it is."""
        if self._is_to_be_told(place, 1):
            logger.error("%s: %s is set aside, all others are served: %s", self._name, name, problem)

    def _is_to_be_told(self, place: Hashable, count: int) -> bool:
        """Count what is there, unless it was; whether it is one of the first."""
        if place in self._places or len(self._places) >= COUNTED_MAX:
            return False
        self._places.add(place)
        self.count += max(count, 1)
        return len(self._places) <= TOLD_MAX
