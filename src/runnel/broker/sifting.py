"""Records that are taken out of a producer's batch before it is appended, on topics that ask for it.

Rule 1: a record that is not due yet waits in the schedule (`delay.enable`); one whose name came within the window is
        in the log already (`dedup.window.ms`). All others stay where they are.
Rule 2: a record is taken out as compaction would: the batch keeps its offsets, its sequences, its producer and its
        compression; one that is left without records is appended empty.
Rule 3: what waits is kept before the rest is appended, under an id that follows from producer and sequence: a batch
        that is sent again parks the same messages. A batch that is in the log, or is out of order, parks none.
Rule 4: a transaction can't be delayed, as nobody knows yet whether it will be; its names do not count.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from runnel.broker.once import Once
from runnel.broker.once_line import Claims
from runnel.broker.schedule import Schedule
from runnel.log.log import Appended
from runnel.log.producers import SEQUENCES
from runnel.model.errors import InvalidRecord, RunnelError
from runnel.model.once import WINDOW
from runnel.model.schedule import Parked
from runnel.model.seams import Clock, Rng
from runnel.queues.delay import NEEDLES, due_of, waiting_headers
from runnel.record.batch import BatchHeader, check_produced, read_header
from runnel.record.names import NEEDLE, name_of
from runnel.record.records import Record, decode, emptied, open_batch, spans, thinned
from runnel.replica.partition import Partition


class Sifted(NamedTuple):
    """What is left of a batch, and the names in it."""

    batch: memoryview
    header: BatchHeader
    claims: Claims | None
    times: Mapping[int, int]

    def follow(self, begun: "Appended | asyncio.Future[Appended] | RunnelError") -> None:
        """The batch is appended now, or is not."""
        if self.claims is not None:
            self.claims.follow(begun, self.times)


class Sifting:
    """Looks into batches."""

    def __init__(self, once: Once, schedule: Schedule, clock: Clock, rng: Rng) -> None:
        self._once = once
        self._schedule = schedule
        self._clock = clock
        self._rng = rng

    async def sift(self, partition: Partition, batch: memoryview, timeout_ms: int) -> Sifted | None:
        """What is to be appended instead of a batch; None if it is to be appended, or refused, as it is."""
        header = check_produced(batch)
        partition.must_lead()
        found = self._found(partition, batch, header)
        if not found:
            return None
        late = self._late(partition, header, found)
        claims = await self._claim(partition, header, found, late)
        try:
            if late:
                await self._park(partition, header, late, timeout_ms)
        except BaseException:
            if claims is not None:
                claims.give_up()
            raise
        out = late.keys() | (claims.duplicates if claims is not None else ())
        left = batch if not out else memoryview(bytearray(_without(batch, out)))
        return Sifted(left, read_header(left), claims, {number: one.timestamp for number, one in found.items()})

    def _found(self, partition: Partition, batch: memoryview, header: BatchHeader) -> dict[int, Record]:
        """The records of a batch, by their place, if there is anything to look at and it would be appended."""
        config = partition.config
        needles = (NEEDLES if config.delay_enable else ()) + ((NEEDLE,) if config.dedup_window_ms else ())
        section = open_batch(batch)[1]
        if header.size > config.max_message_bytes or not any(needle in section for needle in needles):
            return {}
        if header.producer_id >= 0 and not _would_be_new(partition, header):
            return {}
        return {record.offset - header.base_offset: record for record in decode(batch)}

    def _late(
        self, partition: Partition, header: BatchHeader, found: Mapping[int, Record]
    ) -> dict[int, tuple[int, Record]]:
        """Those that are not due yet, each with its time."""
        if not partition.config.delay_enable:
            return {}
        now = self._clock.wall_ms()
        late = {n: (due, one) for n, one in found.items() if (due := due_of(one.headers, now)) is not None}
        if late and header.transactional:
            raise InvalidRecord(f"{partition.name}: a message of a transaction can't be delayed: send it without one")
        return late

    async def _claim(
        self, partition: Partition, header: BatchHeader, found: Mapping[int, Record], late: Mapping[int, object]
    ) -> Claims | None:
        if not partition.config.dedup_window_ms or header.transactional:
            return None
        names = {n: name for n, one in found.items() if n not in late and (name := name_of(one.headers)) is not None}
        return await self._once.line(partition).claim(names) if names else None

    async def _park(
        self, partition: Partition, header: BatchHeader, late: Mapping[int, tuple[int, Record]], timeout_ms: int
    ) -> None:
        parked = [
            Parked(
                self._id(header, number, record), due, record.key, record.value,
                list(waiting_headers(record.headers, due)), WINDOW, name_of(record.headers) is None,
            )
            for number, (due, record) in late.items()
        ]  # fmt: skip
        await self._schedule.park(partition.key.topic_id, partition.key.number, parked, timeout_ms=timeout_ms)

    def _id(self, header: BatchHeader, number: int, record: Record) -> str:
        if (name := name_of(record.headers)) is not None:
            return name
        if header.producer_id < 0:
            return self._rng.token(16).hex()
        return f"{header.producer_id}.{header.producer_epoch}.{(header.base_sequence + number) % SEQUENCES}"


def _would_be_new(partition: Partition, header: BatchHeader) -> bool:
    """Whether the log does not have this batch of an idempotent producer, and may take it."""
    try:
        return partition.log.producers.check(header) is None
    except RunnelError:
        return partition.log.busy  # the batches before it may still wait in line


def _without(batch: memoryview, out: Sequence[int] | set[int]) -> bytes:
    header, section, found = spans(batch)
    kept = [span for span in found if span.offset - header.base_offset not in out]
    return thinned(header, section, kept) if kept else emptied(header)
