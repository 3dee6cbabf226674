"""What becomes of a producer's batch before it is appended, on topics that ask for it: records are taken out.

Rule 1: a record that is not due yet waits in the schedule (`delay.enable`); one whose name came within the window is
        in the log already (`dedup.window.ms`). All others stay where they are.
Rule 2: a record is taken out as compaction would: the batch keeps its offsets, its sequences, its producer and its
        compression; one that is left without records is appended empty.
Rule 3: what waits is kept before the rest is appended, under an id that follows from producer and sequence: a batch
        that is sent again parks the same messages. A batch that is in the log, or is out of order, parks none.
Rule 4: a transaction can't be delayed, as nobody knows yet whether it will be; its names do not count.
Rule 5: what is left is compressed as the topic says (`recompression`).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Set
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final, NamedTuple, TypeVar

from runnel.broker.once import Once
from runnel.broker.once_line import Claims
from runnel.broker.recompression import Recompression
from runnel.broker.schedule import Schedule
from runnel.broker.turns import may_be_large, off_loop
from runnel.log.log import Appended
from runnel.log.producers import SEQUENCES
from runnel.model.errors import InvalidRecord, RunnelError
from runnel.model.once import WINDOW
from runnel.model.schedule import Parked
from runnel.model.seams import Clock, Rng
from runnel.model.topic_config import TopicConfig
from runnel.queues.delay import NEEDLES, due_of, waiting_headers
from runnel.record.batch import BatchHeader, check_produced, read_header
from runnel.record.names import NEEDLE, name_of
from runnel.record.records import Record, decode, emptied, open_batch, spans, thinned
from runnel.replica.partition import Partition

T = TypeVar("T")
SMALL: Final = 500  # records that are looked at, or parked, in one go: about 10 ms of the loop


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

    def give_up(self) -> None:
        """The batch is not appended."""
        if self.claims is not None:
            self.claims.give_up()


class _Found(NamedTuple):
    """What a look into a batch found, by the places of its records."""

    late: dict[int, tuple[int, Record]]  # not due yet, each with its time
    names: dict[int, str]  # of the others
    times: dict[int, int]


class Sifting:
    """Looks into batches."""

    def __init__(self, once: Once, schedule: Schedule, recompression: Recompression, clock: Clock, rng: Rng) -> None:
        self._once = once
        self._schedule = schedule
        self._recompression = recompression
        self._clock = clock
        self._rng = rng

    def room(
        self, batches: Iterable[tuple[Partition | RunnelError, memoryview | None]]
    ) -> AbstractAsyncContextManager[None]:
        """For what the batches of one request become, until they are in the log or in line for it."""
        return self._recompression.room(batches)

    async def sift(self, partition: Partition, batch: memoryview, timeout_ms: int) -> Sifted | None:
        """What is to be appended instead of a batch; None if it is to be appended, or refused, as it is."""
        header = check_produced(batch)
        partition.must_lead()
        if header.size > partition.config.max_message_bytes or not _would_be_new(partition, header):
            return None
        taken = None
        if partition.config.takes_records_out:
            taken = await self._take_out(partition, batch, header, timeout_ms)
        return await self._compressed(partition, taken or Sifted(batch, header, None, {})) or taken

    async def _compressed(self, partition: Partition, sifted: Sifted) -> Sifted | None:
        """The same in the codec of its topic; None if it has that."""
        try:
            packed = await self._recompression.pack(partition, sifted.batch, sifted.header)
        except BaseException:
            sifted.give_up()
            raise
        return None if packed is None else sifted._replace(batch=packed, header=read_header(packed))

    async def _take_out(
        self, partition: Partition, batch: memoryview, header: BatchHeader, timeout_ms: int
    ) -> Sifted | None:
        """The batch without records that wait, or are in the log already; None if there is nothing to look at."""
        look = partial(_look, batch, partition.config, self._clock.wall_ms(), partition.unreadable.bytes_max)
        found = await _off_loop(partition, header, look)
        if found is None:
            return None
        if found.late and header.transactional:
            reason = f"{partition.name}: a message of a transaction can't be delayed: send it without one"
            raise InvalidRecord(reason, dict.fromkeys(found.late, reason))
        claims = None
        if found.names and not header.transactional:
            claims = await self._once.line(partition).claim(found.names)
        try:
            left = await self._left(partition, batch, header, found, claims, timeout_ms)
        except BaseException:
            if claims is not None:
                claims.give_up()
            raise
        return Sifted(left, read_header(left), claims, found.times)

    async def _left(
        self, partition: Partition, batch: memoryview, header: BatchHeader, found: _Found, claims: Claims | None,
        timeout_ms: int,
    ) -> memoryview:  # fmt: skip
        out = found.late.keys() | (claims.duplicates if claims is not None else ())
        if not out:
            return batch
        if found.late:
            await self._park(partition, header, found.late, timeout_ms)
        return memoryview(bytearray(await _off_loop(partition, header, partial(_without, batch, out))))

    async def _park(
        self, partition: Partition, header: BatchHeader, late: Mapping[int, tuple[int, Record]], timeout_ms: int
    ) -> None:
        """Have messages wait, a part of them in each turn of the loop."""
        places, (topic_id, number) = list(late), partition.key
        parks = []
        for first in range(0, len(places), SMALL):
            part = [self._parked(header, n, *late[n]) for n in places[first : first + SMALL]]
            park = self._schedule.park(topic_id, number, part, timeout_ms=timeout_ms)
            parks.append(asyncio.get_running_loop().create_task(park))
            await asyncio.sleep(0)
        await asyncio.gather(*parks)

    def _parked(self, header: BatchHeader, number: int, due_ms: int, record: Record) -> Parked:
        name = name_of(record.headers)
        headers = list(waiting_headers(record.headers, due_ms))
        id = name if name is not None else self._id(header, number)
        return Parked(id, due_ms, record.key, record.value, headers, WINDOW, replaces=name is None)

    def _id(self, header: BatchHeader, number: int) -> str:
        if header.producer_id < 0:
            return self._rng.token(16).hex()
        return f"{header.producer_id}.{header.producer_epoch}.{(header.base_sequence + number) % SEQUENCES}"


async def _off_loop(partition: Partition, header: BatchHeader, work: Callable[[], T]) -> T:
    """Large batches are not looked through on the loop."""
    return await off_loop(partition, [header], work) if may_be_large(header, SMALL) else work()


def _would_be_new(partition: Partition, header: BatchHeader) -> bool:
    """Whether the log does not have this batch, and may take it."""
    if header.producer_id < 0:
        return True
    try:
        return partition.log.producers.check(header) is None
    except RunnelError:
        return partition.log.busy  # the batches before it may still wait in line


def _look(batch: memoryview, config: TopicConfig, now_ms: int, bytes_max: int) -> _Found | None:
    """The records that may have to be taken out; None if there is nothing to look at."""
    needles = (NEEDLES if config.delay_enable else ()) + ((NEEDLE,) if config.dedup_window_ms else ())
    header, section = open_batch(batch, bytes_max=bytes_max)
    if not any(needle in section for needle in needles):
        return None
    found = _Found({}, {}, {})
    wrong: dict[int, str] = {}
    for record in decode(batch):
        number = record.offset - header.base_offset
        found.times[number] = record.timestamp
        if not record.headers:
            continue
        try:
            due_ms = due_of(record.headers, now_ms) if config.delay_enable else None
        except InvalidRecord as error:
            wrong[number] = str(error)
            continue
        if due_ms is not None:
            found.late[number] = due_ms, record
        elif config.dedup_window_ms and (name := name_of(record.headers)) is not None:
            found.names[number] = name
    if wrong:
        raise InvalidRecord(next(iter(wrong.values())), wrong)
    return found


def _without(batch: memoryview, out: Set[int]) -> bytes:
    header, section, found = spans(batch)
    kept = [span for span in found if span.offset - header.base_offset not in out]
    return thinned(header, section, kept) if kept else emptied(header)
