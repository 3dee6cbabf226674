"""What a filter leaves of batches, for readers of the Kafka protocol.

Rule 1: records are taken out as compaction would: the rest keeps its offsets, and a batch of which everything passes,
        its bytes. But a batch ends with its last record that is left: that is where its readers stand then. Control
        batches go: they mean something only beside the records that they end.
Rule 2: a batch that has nothing of what the filter needs is passed over as a whole, without being taken apart.
Rule 3: a batch whose records can't be read is passed on as it is: who reads the source would get it too.
Rule 4: much work is done in turns, so that others have theirs; what is too large for a turn, or may be, off the loop.
"""

import asyncio
from collections.abc import Sequence
from typing import Final, NamedTuple

from runnel.broker.turns import may_be_large, off_loop
from runnel.client.isolation import Aborted
from runnel.log.log import AbortedTransaction
from runnel.model.errors import InvalidRecord
from runnel.record import records
from runnel.record.batch import BatchHeader, headers
from runnel.record.control import COMMIT, control_key
from runnel.record.records import Record
from runnel.replica.partition import Partition
from runnel.route.filter import Filter
from runnel.route.message import view_of

TURN_RECORDS: Final = 1_000  # looked at in one go, about 3 ms
LARGE_RECORDS: Final = 2_000
NO_TIMESTAMP: Final = -1


class Left(NamedTuple):
    """What is left of a batch, and the offset behind its last record."""

    data: bytes
    end: int


class Thinning:
    """Takes out what does not pass, for one partition."""

    def __init__(self, chosen: Filter, partition: Partition) -> None:
        self._passes = chosen.passes
        self._needs = chosen.needs
        self._partition = partition
        self._bytes_max = partition.unreadable.bytes_max

    async def thin(
        self, data: bytes | memoryview, aborted: Sequence[AbortedTransaction] | None, since: int
    ) -> list[Left]:
        """What is left of whole batches from an offset on; `aborted`: of these transactions nothing is wanted."""
        judged = Aborted((one.first_offset, one.producer_id) for one in aborted or ())
        view = memoryview(data)
        wanted = [
            (view[position : position + header.size], header)
            for position, header in headers(view)
            if not (aborted is not None and judged.judge(header)) and not header.control
        ]
        if any(may_be_large(header, LARGE_RECORDS) for _, header in wanted):
            large = [header for _, header in wanted]
            found = await off_loop(
                self._partition, large, lambda: [self._left(raw, header, since) for raw, header in wanted]
            )
        else:
            found = await self._in_turns(wanted, since)
        return [left for left in found if left is not None]

    async def _in_turns(self, wanted: Sequence[tuple[memoryview, BatchHeader]], since: int) -> list[Left | None]:
        found, turn = [], 0
        for raw, header in wanted:
            turn += header.count
            if turn > TURN_RECORDS:
                turn = header.count
                await asyncio.sleep(0)
            found.append(self._left(raw, header, since))
        return found

    def _left(self, raw: memoryview, header: BatchHeader, since: int) -> Left | None:
        """What is left of one batch; None if nothing is."""
        passes, topic, number = self._passes, self._partition.topic, self._partition.key.number
        try:
            section = records.open_batch(raw, bytes_max=self._bytes_max)[1]
            if self._needs and not any(need in section for need in self._needs):
                return None  # five times cheaper than to take it apart
            found = records.decode_section(header, section)
            kept = [one.offset for one in found if passes(view_of(one, topic, number)) and one.offset >= since]
            if not kept:
                return None
            if len(kept) < len(found) or kept[-1] < header.last_offset:
                return _thinned(raw, frozenset(kept), kept[-1])
        except InvalidRecord:
            pass
        return Left(bytes(raw), header.last_offset + 1)


def _thinned(raw: memoryview, kept: frozenset[int], last: int) -> Left:
    header, section, spans = records.spans(raw)
    header = header._replace(last_offset_delta=last - header.base_offset)
    return Left(records.thinned(header, section, [span for span in spans if span.offset in kept]), last + 1)


def passed_over(offset: int, leader_epoch: int) -> bytes:
    """A batch at the last offset that was looked at, of which readers see nothing but where it ends.

    Empty batches are allowed there; but librdkafka takes an answer with nothing else for a message that is too large
    for its buffer, doubles that, and fails in the end. It knows control batches, as all do who know transactions. This
    one is of no producer, so it ends no transaction.
    """
    record = Record(offset, NO_TIMESTAMP, control_key(COMMIT), b"\x00" * 6)
    return records.encode([record], base_offset=offset, leader_epoch=leader_epoch, control=True)
