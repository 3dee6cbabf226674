"""Where a state machine's decisions are kept: the seam below `Shard`.

A journal belongs to one leader epoch of one partition. What it refuses with NotLeader or FencedEpoch, it will not do in
this epoch any more.
"""

import asyncio
from collections.abc import Callable
from typing import Protocol

from runnel.broker.turns import by_turns
from runnel.model.errors import NotCoordinator, NotLeader, RecordUnreadable, RetriableError
from runnel.model.ids import Epoch, Offset
from runnel.model.limits import MIB
from runnel.model.seams import Clock
from runnel.model.step import Record
from runnel.record import records
from runnel.record.batch import read_header
from runnel.replica.partition import Partition

COMMIT_TIMEOUT_S = 30.0
TURN = 500  # records in one go: a few milliseconds
READ_BYTES_MAX = 4 * MIB


class Journal(Protocol):
    """The records of one state machine."""

    name: str
    epoch: Epoch
    gone: type[RetriableError]  # what is raised to those who ask a machine that is not here any more

    def is_held(self) -> bool:
        """Whether this broker may still decide, as far as it knows."""

    def belongs_to(self, partition: Partition | None) -> bool:
        """Whether this is the journal of a partition which is led here, in its present epoch."""

    async def read(self, take: Callable[[bytes, bytes | None], None]) -> None:
        """Hand over all records, once it is certain which they are.

        A record that `take` refuses with RecordUnreadable is set aside, and the next one is handed over.
        """

    async def append(self, decided: list[Record]) -> None:
        """Keep these, all or none; returns when they are kept for good."""


class Led:
    """What journals of partitions that are led here have in common."""

    gone: type[RetriableError] = NotCoordinator

    def __init__(self, partition: Partition, name: str) -> None:
        self._partition = partition
        self.name = name
        self.epoch = partition.leader_epoch

    def is_held(self) -> bool:
        return self._partition.is_leader and self._partition.leader_epoch == self.epoch

    def belongs_to(self, partition: Partition | None) -> bool:
        return partition is self._partition and self.epoch == partition.leader_epoch


class PartitionJournal(Led):
    """A partition that is led here, all of whose records are the machine's."""

    def __init__(self, partition: Partition, clock: Clock) -> None:
        super().__init__(partition, partition.name)
        self._clock = clock

    async def read(self, take: Callable[[bytes, bytes | None], None]) -> None:
        await self._settled()
        unreadable = self._partition.unreadable
        offset = self._partition.log.start_offset
        while offset < self._partition.high_watermark:
            data = memoryview(await self._partition.read(offset, READ_BYTES_MAX))
            while data:
                header = read_header(data)
                async for record in by_turns(unreadable.records_of(data[: header.size]), TURN):
                    try:
                        take(_key_of(record), record.value)
                    except RecordUnreadable as problem:
                        unreadable.set_aside(problem, record.offset)
                offset = Offset(header.last_offset + 1)
                data = data[header.size :]

    async def _settled(self) -> None:
        """Wait until all that is in the log now is committed: what is read must neither go away again nor come late.

        That is what this leader found, and decisions of which nobody could say whether they were kept.
        """
        await self._committed(self._partition.log.end_offset)

    async def append(self, decided: list[Record]) -> None:
        now = self._clock.wall_ms()
        rows = [records.Record(Offset(i), now, key, value, ()) for i, (key, value) in enumerate(decided)]
        batch = memoryview(bytearray(records.encode(rows)))
        if not self.is_held():
            raise NotLeader(f"{self.name} is not led here in epoch {self.epoch} any more")
        begun = self._partition.append(batch, read_header(batch), own=True)
        appended = await begun if isinstance(begun, asyncio.Future) else begun
        await self._committed(Offset(appended.last_offset + 1))

    async def _committed(self, end: Offset) -> None:
        waiting = self._partition.committed(end, self.epoch, COMMIT_TIMEOUT_S)
        if waiting is not None:
            await waiting


def _key_of(record: records.Record) -> bytes:
    if record.key is None:
        raise RecordUnreadable("it has no key: no coordinator writes such a record")
    return record.key
