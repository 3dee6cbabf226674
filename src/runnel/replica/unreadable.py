"""The batches of one partition whose records can't be read: their checksum is right, so they are what was sent.

Rule 1: for whoever goes message by message, such a batch holds no message: one producer's nonsense costs the others
        nothing. Who reads whole batches gets it as it is.
Rule 2: each is told of once; of very many, the first ones alone.
"""

import logging
from typing import Final

from runnel.model.errors import InvalidRecord
from runnel.model.seams import Buffer
from runnel.record import records
from runnel.record.batch import BatchHeader, read_header
from runnel.record.records import Record

TOLD_MAX: Final = 100  # of a partition: a producer that sends nothing else is told of often enough by then

logger = logging.getLogger("runnel.replica")


class Unreadable:
    """Tells of them."""

    __slots__ = ("_name", "_told")

    def __init__(self, name: str) -> None:
        self._name = name
        self._told: set[int] = set()

    def records_of(self, batch: Buffer) -> list[Record]:
        """The records of a batch; none if they can't be read."""
        try:
            return records.decode(batch)
        except InvalidRecord as problem:
            self.pass_over(read_header(batch), problem)
            return []

    def pass_over(self, header: BatchHeader, problem: InvalidRecord) -> None:
        """This batch holds no messages."""
        if header.base_offset in self._told or len(self._told) >= TOLD_MAX:
            return
        self._told.add(header.base_offset)
        logger.warning(
            "%s: the batch at offsets %d to %d can't be read (%s): it holds no messages for queues, inboxes, HTTP and"
            " names; see to the producer that sent it",
            self._name, header.base_offset, header.last_offset, problem,
        )  # fmt: skip
