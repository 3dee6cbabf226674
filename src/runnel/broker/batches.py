"""Batches as they lie in the log, offered to a queue and cut out for a receiver: nothing in them is decoded.

Rule 1: what is read is what is offered, and what is sent is cut out of it: the log is read once for a receiver.
Rule 2: a batch is sent if one of its messages was granted, and never twice.
Rule 3: what is read at once is bounded, also if there is no message in it; what may be too large for a turn of the
        loop is looked through off it.
"""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

from runnel.broker.fetch import read_committed
from runnel.broker.offers import whole_offers
from runnel.broker.turns import may_be_large
from runnel.log.log import AbortedTransaction
from runnel.model.errors import OffsetOutOfRange
from runnel.model.ids import Offset
from runnel.model.limits import KIB, MIB
from runnel.queues.values import Granted, Offered, Span
from runnel.record.batch import headers, next_offset, read_header
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
        self._read_bytes = 0

    async def gather(self, spans: Iterable[Span], messages_max: int, bytes_max: int) -> None:
        """Read what lies in some spans, in whole batches, until that is enough."""
        for span in spans:
            at, size = span.first, READ_BYTES
            while at <= span.last:
                data, aborted = await self._read(at, min(size, bytes_max))
                if not data:
                    break
                until = await self._offer(data, aborted, Span(at, span.last), messages_max, bytes_max)
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
        messages_max: int, bytes_max: int,
    ) -> int | None:  # fmt: skip
        """Take over what was read; what comes next, or None if this is enough."""
        self._pieces.append(memoryview(data))
        self._read_bytes += len(data)
        until = next_offset(data)
        inside = Span(span.first, min(span.last, until - 1))
        offers = partial(whole_offers, data, aborted, inside, self._partition.unreadable)
        large = any(may_be_large(header, LARGE_RECORDS) for _, header in headers(data))
        for offer in await self._partition.log.offload(lambda: list(offers())) if large else offers():
            self.offers.append(offer)
            if offer.passes:
                self.messages += offer.last - offer.first + 1
                self.bytes += offer.size
            if self.messages >= messages_max or self.bytes >= bytes_max:
                return None
        return until

    async def fetch(self, grants: Sequence[Granted]) -> None:
        """Read what was granted already."""
        for grant in grants:
            at, size = max(grant.first, self._end), READ_BYTES
            while at <= grant.last:
                data, _ = await self._read(at, size)
                if not data:
                    break
                self._pieces.append(memoryview(data))
                at, size = max(next_offset(data), at + 1), READ_BYTES_MAX

    @property
    def _end(self) -> int:
        return next_offset(self._pieces[-1]) if self._pieces else 0

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
