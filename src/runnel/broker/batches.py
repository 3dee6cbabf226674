"""Batches as they lie in the log, offered to a queue and cut out for a receiver: nothing in them is decoded.

Rule 1: what is read is what is offered, and what is sent is cut out of it: the log is read once for a receiver.
Rule 2: a batch is sent if one of its messages was granted, and never twice.
Rule 3: what is read at once is bounded, also if there is no message in it; what may be too large for a turn of the
        loop is looked through off it.
Rule 4: the batches that are sent are not larger together than the receiver asked for, however few of their messages
        are granted; but the first one may be, where the receiver would get nothing else.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from runnel.broker.fetch import read_committed
from runnel.broker.offers import whole_offers
from runnel.broker.turns import may_be_large, off_loop
from runnel.log.log import AbortedTransaction
from runnel.model.errors import OffsetOutOfRange
from runnel.model.ids import Offset
from runnel.model.limits import KIB, MIB
from runnel.queues.values import Granted, Offered, Span
from runnel.record.batch import BatchHeader, headers, next_offset, read_header
from runnel.replica.partition import Partition

READ_BYTES: Final = 128 * KIB  # at first: few consumers take more messages at once
READ_BYTES_MAX: Final = MIB
LARGE_RECORDS: Final = 2_000  # in one batch
GATHER_BYTES_MAX: Final = 4 * MIB  # of what may turn out to be no messages: a transaction that was aborted has any size


class Batches:
    """What was read of one partition, for one receiver."""

    def __init__(self, partition: Partition, *, committed: bool) -> None:
        self._partition = partition
        self._committed = committed
        self._pieces: list[memoryview] = []
        self.offers: list[Offered] = []
        self.messages = 0  # that were offered
        self.bytes = 0
        self.full = False  # a batch was left out, for its size
        self._read_bytes = 0
        self._sent_bytes = 0  # of the batches with something in them that is offered, or was granted
        self._sent_end = 0  # the offset behind the last of them

    async def gather(self, spans: Iterable[Span], messages_max: int, bytes_max: int, *, one: bool = True) -> None:
        """Read what lies in some spans, in whole batches, until that is enough; `one`: rule 4's first may be larger."""
        for span in spans:
            at, size = span.first, READ_BYTES
            while at <= span.last:
                data, aborted = await self._read(at, min(size, bytes_max))
                if not data:
                    break
                until = await self._offer(data, aborted, Span(at, span.last), messages_max, bytes_max, one)
                if until is None or self._read_bytes >= GATHER_BYTES_MAX:
                    return
                at, size = max(until, at + 1), READ_BYTES_MAX

    async def _read(self, at: int, size: int) -> tuple[bytes | memoryview, Sequence[AbortedTransaction]]:
        offset = Offset(at)
        try:
            if self._committed:
                return await read_committed(self._partition, offset, size)
            cached = self._partition.read_cached(offset, size)
            return (await self._partition.read(offset, size) if cached is None else cached), ()
        except OffsetOutOfRange:
            return b"", ()  # retention took it: the machine sees that too

    async def _offer(
        self, data: bytes | memoryview, aborted: Sequence[AbortedTransaction], span: Span,
        messages_max: int, bytes_max: int, one: bool,
    ) -> int | None:  # fmt: skip
        """Take over what was read; what comes next, or None if this is enough."""
        self._pieces.append(memoryview(data))
        self._read_bytes += len(data)
        until = next_offset(data)
        inside = Span(span.first, min(span.last, until - 1))
        offers = partial(whole_offers, data, aborted, inside, self._partition.unreadable)
        found = [header for _, header in headers(data)]
        large = any(may_be_large(header, LARGE_RECORDS) for header in found)
        behind = iter(found)
        for offer in await off_loop(self._partition, found, lambda: list(offers())) if large else offers():
            if offer.passes and offer.first >= self._sent_end:
                batch = next(header for header in behind if header.last_offset >= offer.first)
                if not self._has_room(batch, bytes_max, one):
                    return None
            self.offers.append(offer)
            if offer.passes:
                self.messages += offer.last - offer.first + 1
                self.bytes += offer.size
            if self.messages >= messages_max or self._sent_bytes >= bytes_max:
                return None
        return until

    def _has_room(self, batch: BatchHeader, bytes_max: int, one: bool) -> bool:
        """Whether a batch may be sent beside those before it (rule 4); then it counts."""
        if self._sent_bytes + batch.size > bytes_max and (self._sent_bytes or not one):
            self.full = True
            return False
        self._sent_bytes += batch.size
        self._sent_end = batch.last_offset + 1
        return True

    async def fetch(self, grants: Sequence[Granted], bytes_max: int, *, one: bool = True) -> int:
        """Read the batches of single messages that were granted already; of how many there is room for them."""
        count = 0
        while count < len(grants):
            data, _ = await self._read(grants[count].first, READ_BYTES)
            if not data or next_offset(data) <= grants[count].first:
                count += 1  # it is gone
                continue
            self._pieces.append(memoryview(data))
            for _, batch in headers(data):
                if count == len(grants) or grants[count].first > batch.last_offset:
                    continue
                if not self._has_room(batch, bytes_max, one):
                    return count
                while count < len(grants) and grants[count].first <= batch.last_offset:
                    count += 1
        return count

    def cut(self, grants: Sequence[Granted]) -> bytes | memoryview:
        """The batches in which something was granted, in order."""
        wanted = iter(grants)
        grant = next(wanted, None)
        parts: list[memoryview] = []
        end = -1  # the first offset behind what was cut
        for piece in self._pieces:
            begin: int | None = None
            position = 0
            for position, header in headers(piece):
                while grant is not None and grant.last < header.base_offset:
                    grant = next(wanted, None)
                take = grant is not None and grant.first <= header.last_offset and header.base_offset >= end
                if take and begin is None:
                    begin = position
                elif not take and begin is not None:
                    parts.append(piece[begin:position])
                    begin = None
                end = max(end, header.last_offset + 1) if take else end
            if begin is not None:
                parts.append(piece[begin : position + read_header(piece, position).size])
        return parts[0] if len(parts) == 1 else b"".join(parts)
