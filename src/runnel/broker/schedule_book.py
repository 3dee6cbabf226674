"""Records of one partition in one leader epoch: appended in the order of asking, several at a time.

Rule 1: what is asked to be kept in one turn of the loop is one batch.
Rule 2: whoever asked is told where its first record lies, when all of them are committed in this leader epoch.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from runnel.broker.loads import loads
from runnel.log.log import Appended
from runnel.model.errors import NotLeader, RunnelError, as_value
from runnel.model.ids import Epoch, Offset
from runnel.model.limits import MIB
from runnel.model.seams import Clock
from runnel.record import records
from runnel.record.batch import read_header
from runnel.replica.partition import Partition

BATCH_BYTES: Final = MIB
COMMIT_S: Final = 30.0

Row: TypeAlias = tuple[bytes, bytes | None, records.Headers]  # key, value and headers


class _Entry(NamedTuple):
    rows: Sequence[Row]
    future: "asyncio.Future[int]"


class Book:
    """Of one partition, in one leader epoch."""

    def __init__(self, partition: Partition, clock: Clock) -> None:
        self.partition = partition
        self.epoch: Epoch = partition.leader_epoch
        self._clock = clock
        self._new: list[_Entry] = []
        self._writes: set[asyncio.Task[None]] = set()

    @property
    def stands(self) -> bool:
        return self.partition.is_leader and self.partition.leader_epoch == self.epoch

    async def keep(self, rows: Sequence[Row]) -> int:
        """The offset of the first record, once all are committed; the others follow it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[int] = loop.create_future()
        if not self._new:
            loop.call_soon(self._flush)
        self._new.append(_Entry(rows, future))
        return await future

    async def settled(self) -> Offset:
        """Where the log ends, once all that it has now is committed."""
        end = self.partition.log.end_offset
        await self._committed(end)
        return end

    def _flush(self) -> None:
        new, self._new = self._new, []
        for load in loads(new, _size, BATCH_BYTES):
            task = asyncio.get_running_loop().create_task(self._write(load))
            self._writes.add(task)
            task.add_done_callback(self._writes.discard)

    async def _write(self, load: list[_Entry]) -> None:
        error: RunnelError = NotLeader(f"{self.partition.name}: the append was ended: ask again")
        try:
            base = await self._append([row for entry in load for row in entry.rows])
        except RunnelError as problem:
            error = as_value(problem)
        else:
            for entry in load:
                if not entry.future.done():
                    entry.future.set_result(base)
                base += len(entry.rows)
            return
        finally:
            for entry in load:
                if not entry.future.done():
                    entry.future.set_exception(as_value(error))

    async def _append(self, rows: Sequence[Row]) -> int:
        if not self.stands:
            raise NotLeader(f"{self.partition.name} is not led here in epoch {self.epoch} any more: ask again")
        self.partition.must_have_enough()
        now = self._clock.wall_ms()
        encoded = records.encode([records.Record(n, now, *row) for n, row in enumerate(rows)])
        batch = memoryview(bytearray(encoded))
        begun = self.partition.append(batch, read_header(batch), own=True)
        appended = begun if isinstance(begun, Appended) else await begun
        await self._committed(Offset(appended.last_offset + 1))
        return appended.base_offset

    async def _committed(self, end: Offset) -> None:
        waiting = self.partition.committed(end, self.epoch, COMMIT_S)
        if waiting is not None:
            await waiting


def _size(entry: _Entry) -> int:
    return sum(len(key) + len(value or b"") for key, value, _ in entry.rows)
