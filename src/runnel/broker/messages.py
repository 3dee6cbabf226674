"""The messages of partitions, one by one: what queues deliver out of the batches of the log.

Rule 1: a message is what a reader of committed transactions gets: nothing below the log's start, nothing at or above
        the last stable offset, no marker, nothing of a transaction that was aborted, nothing of a batch that can't be
        read.
Rule 2: whatever offset of a stretch has no message in it never will have one: compaction took it, or it never was one.
Rule 3: what was encoded here is not decoded again. A batch of the same producer, sequence and checksum is the same.
Rule 4: what was decoded is kept for a while, in bounded memory, so that who takes one message after the other does not
        have a batch decoded for each. It is not kept beyond a change of the log (a cut, retention, compaction). Of
        more than can be kept, a part is: the messages from the one on that was asked for.
Rule 5: much is decoded in turns, so that others have theirs; what is too large for a turn, or may be, off the loop.
"""

import asyncio
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from operator import attrgetter, itemgetter
from typing import Final, NamedTuple

from runnel.broker.fetch import read_committed
from runnel.broker.turns import RECORD_BYTES, may_be_large, off_loop
from runnel.client.isolation import Aborted
from runnel.log.log import AbortedTransaction
from runnel.model.ids import Offset
from runnel.model.limits import KIB, MIB
from runnel.model.seams import Buffer
from runnel.record.batch import COMPRESSION_MASK, BatchHeader, headers, read_header
from runnel.record.records import Record, record_of
from runnel.replica.partition import Partition
from runnel.replica.unreadable import Unreadable

READ_BYTES: Final = 128 * KIB  # of batches at once: few enough to be decoded while the loop waits
KEPT_BYTES_MAX: Final = 32 * MIB
ENCODED_BYTES_MAX: Final = 4 * MIB  # of batches that were encoded here and not read yet
TURN_RECORDS: Final = 2_000  # decoded in one go, about 3 ms: then others have a turn

_first, _offset = attrgetter("first"), itemgetter(0)


class Stretch:
    """All messages with offsets in [first, end)."""

    __slots__ = ("end", "first", "generation", "records", "size")

    def __init__(
        self, first: int, end: int, found: Sequence[Record], generation: int = 0, size: int | None = None
    ) -> None:
        self.first = first
        self.end = end
        self.records = found
        self.generation = generation
        self.size = RECORD_BYTES * len(found) + (sum(map(size_of, found)) if size is None else size)

    def part(self, offset: int, bytes_max: int) -> "Stretch":
        """What it has from this offset on, with as many messages as there is room for; one at least."""
        at = until = bisect_left(self.records, offset, key=_offset)
        size = 0
        while until < len(self.records) and (until == at or size < bytes_max):
            size += RECORD_BYTES + size_of(self.records[until])
            until += 1
        first = offset if at else self.first
        end = self.records[until].offset if until < len(self.records) else self.end
        found = self.records[at:until]
        return Stretch(first, end, found, self.generation, size - RECORD_BYTES * len(found))

    def since(self, offset: int) -> Sequence[Record]:
        """The messages from this offset on."""
        return self.records if offset <= self.first else self.records[bisect_left(self.records, offset, key=_offset) :]

    def get(self, offset: int) -> Record | None:
        """The message at this offset, if there is one."""
        records = self.records
        at = offset - self.first
        if 0 <= at < len(records) and records[at][0] == offset:  # there is no gap before it, as mostly
            return records[at]
        at = bisect_left(records, offset, key=_offset)
        return records[at] if at < len(records) and records[at][0] == offset else None


def size_of(record: Record) -> int:
    """The bytes of a message that its sender gave it."""
    size = len(record.key or b"") + len(record.value or b"")
    return size + sum(len(name) + len(value or b"") for name, value in record.headers) if record.headers else size


class Encoded:
    """Batches that this broker has just encoded, and is about to read: what is in them is known (rule 3)."""

    __slots__ = ("_bytes", "_known")

    def __init__(self) -> None:
        self._known: dict[tuple[int, int, int], Sequence[Record]] = {}  # the oldest first
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._known)

    def note(self, batch: Buffer, found: Sequence[Record]) -> None:
        """Its records, at whatever offsets without gaps."""
        if self._bytes + len(batch) > ENCODED_BYTES_MAX:  # nobody reads them: the leader is elsewhere, or far behind
            self._known.clear()
            self._bytes = 0
        self._known[_identity(read_header(batch))] = found
        self._bytes += len(batch)

    def take(self, header: BatchHeader) -> list[Record] | None:
        """What is in a batch of this header, if it is known; it is forgotten then."""
        found = self._known.pop(_identity(header), None)
        if found is None:
            return None
        self._bytes -= header.size
        moved = header.base_offset - found[0].offset
        return [record_of((at + moved, when, key, value, more)) for at, when, key, value, more in found]


def _identity(header: BatchHeader) -> tuple[int, int, int]:
    return header.producer_id, header.base_sequence, header.crc


class _Batch(NamedTuple):
    """One whose messages are wanted; what is in it, if that is known."""

    header: BatchHeader
    raw: memoryview
    known: list[Record] | None


async def _opened(partition: Partition, wanted: Sequence[_Batch]) -> tuple[list[Record], int]:
    """The messages in batches, and the bytes of these."""
    unreadable = partition.unreadable
    if any(one.known is None and may_be_large(one.header, TURN_RECORDS) for one in wanted):
        unknown = [one.header for one in wanted if one.known is None]
        return await off_loop(partition, unknown, lambda: _joined([_decoded(one, unreadable) for one in wanted]))
    parts: list[tuple[list[Record], int]] = []
    turn = 0
    for one in wanted:
        turn += one.header.count
        if turn > TURN_RECORDS and parts:
            turn = one.header.count
            await asyncio.sleep(0)
        parts.append(_decoded(one, unreadable))
    return _joined(parts)


def _decoded(one: _Batch, unreadable: Unreadable) -> tuple[list[Record], int]:
    found = one.known or unreadable.records_of(one.raw)
    return found, sum(map(size_of, found)) if one.header.attributes & COMPRESSION_MASK else one.header.size


def _joined(parts: Sequence[tuple[list[Record], int]]) -> tuple[list[Record], int]:
    if len(parts) == 1:
        return parts[0]
    return [record for found, _ in parts for record in found], sum(size for _, size in parts)


class Messages:
    """Reads and decodes, for all queues of a broker."""

    def __init__(self, kept_bytes_max: int = KEPT_BYTES_MAX) -> None:
        self._kept_bytes_max = kept_bytes_max
        self._kept_bytes = 0
        self.encoded = Encoded()
        self._kept: OrderedDict[Stretch, Partition] = OrderedDict()  # the one that was used last at the end
        self._places: dict[Partition, list[Stretch]] = {}

    @property
    def kept_bytes(self) -> int:
        return self._kept_bytes

    async def read(self, partition: Partition, offset: int, bytes_max: int = READ_BYTES) -> Stretch:
        """The stretch that has this offset in it; an empty one that ends there if nothing is committed beyond."""
        if (kept := self.cached(partition, offset)) is not None:
            return kept
        generation = partition.log.generation
        data, aborted = await read_committed(partition, Offset(offset), bytes_max)
        stretch = await self._decoded(partition, data, aborted, offset, generation)
        if stretch.size > self._kept_bytes_max // 4:
            stretch = stretch.part(offset, self._kept_bytes_max // 4)  # all of it would push out what others need
        if stretch.end > offset and partition.log.generation == generation:
            self._keep(partition, stretch)
        return stretch

    async def _decoded(
        self, partition: Partition, data: bytes | memoryview, aborted: Sequence[AbortedTransaction], offset: int,
        generation: int,
    ) -> Stretch:  # fmt: skip
        judged = Aborted((one.first_offset, one.producer_id) for one in aborted)
        view = memoryview(data)
        wanted: list[_Batch] = []
        first = end = offset
        for position, header in headers(view):
            first = min(first, header.base_offset)
            end = max(end, header.last_offset + 1)
            if not judged.judge(header) and not header.control:
                raw = view[position : position + header.size]
                wanted.append(_Batch(header, raw, self.encoded.take(header)))
        found, size = await _opened(partition, wanted)
        return Stretch(first, end, found, generation, size)

    def cached(self, partition: Partition, offset: int) -> Stretch | None:
        """The stretch that has this offset in it, if it is kept."""
        if not partition.keeps(offset):
            return None
        places = self._places.get(partition)
        at = bisect_right(places, offset, key=_first) if places else 0
        if not places or at == 0 or places[at - 1].end <= offset:
            return None
        stretch = places[at - 1]
        if stretch.generation != partition.log.generation:
            self.forget(partition)
            return None
        self._kept.move_to_end(stretch)
        return stretch

    def forget(self, partition: Partition) -> None:
        """Its log is another one now, or nobody reads it any more."""
        for stretch in self._places.pop(partition, ()):
            del self._kept[stretch]
            self._kept_bytes -= stretch.size

    def _keep(self, partition: Partition, stretch: Stretch) -> None:
        if stretch.size > self._kept_bytes_max:
            return  # one message
        places = self._places.setdefault(partition, [])
        at = bisect_left(places, stretch.first, key=_first)
        if at < len(places) and places[at].first == stretch.first:
            self._drop(places[at])  # a shorter one: the batch it ended with was the last one then
            places = self._places.setdefault(partition, [])
        places.insert(at, stretch)
        self._kept[stretch] = partition
        self._kept_bytes += stretch.size
        while self._kept_bytes > self._kept_bytes_max:
            self._drop(next(iter(self._kept)))

    def _drop(self, stretch: Stretch) -> None:
        partition = self._kept.pop(stretch)
        self._kept_bytes -= stretch.size
        places = self._places[partition]
        places.remove(stretch)
        if not places:
            del self._places[partition]
