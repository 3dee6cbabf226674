"""Messages that arrive one by one go into a partition in batches: group commit for doors without batches.

Rule 1: what arrives in one turn of the loop, or while the batch before is on its way, goes as one batch. So a message
        alone does not wait, and many cost one append and one sync. Behind a batch of many the next one waits a few
        milliseconds more, the longer the more come in a second, unless as much has come as fits into one: the more
        come, the fewer batches they are to cost.
Rule 2: messages of one partition keep the order in which they arrived here.
Rule 3: a batch is that of an idempotent producer: however often it has to be sent, it is in the log once. When nobody
        knows what became of one, the next batches are those of another producer.
Rule 4: a message that is refused costs nobody else: those that were in one batch with it go without it.
Rule 5: what waits is bounded: beyond it, senders are told to come back later.
"""

import asyncio
from collections.abc import Awaitable, Callable
from math import sqrt
from typing import Final, Protocol, TypeAlias

from msgspec import Struct

from runnel.broker.messages import Encoded
from runnel.broker.produce import ACKS_ALL, Produced
from runnel.model.errors import (
    BatchTooLarge,
    DuplicateSequence,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTimestamp,
    OutOfOrderSequence,
    RequestTimedOut,
    RunnelError,
    TooBusy,
    UnknownProducer,
    as_value,
)
from runnel.model.ids import PartitionKey, ProducerId
from runnel.model.limits import KIB, MIB
from runnel.record.records import Headers, Record, encode, record_of

BATCH_BYTES: Final = 512 * KIB  # as many messages as fit: who reads one of them reads the batch
WAITING_BYTES_MAX: Final = 64 * MIB  # of one partition
TIMEOUT_MS: Final = 30_000
PACE: Final = 1e-5  # from one batch to the next in seconds, for each message a second: 10 ms for a thousand
PACE_S_MAX: Final = 0.030
SEQUENCES: Final = 1 << 31  # they begin again at 0 then, as in Kafka's clients
OVERHEAD_BYTES: Final = 100  # of a record in a batch, about

Append: TypeAlias = Callable[[PartitionKey, memoryview, int, int], Awaitable[Produced]]
NewProducer: TypeAlias = Callable[[], Awaitable[ProducerId]]

ONES_FAULT: Final = (InvalidRecord, InvalidTimestamp, BatchTooLarge)  # of a batch: nothing of it was kept
FORGOTTEN: Final = (OutOfOrderSequence, UnknownProducer, InvalidProducerEpoch, DuplicateSequence)


class Sender(Protocol):
    """Who is told what became of a message, once, in the loop. It must not raise: others are told after it."""

    def kept(self, offset: int) -> None: ...

    def failed(self, error: RunnelError) -> None: ...


class _Waiting(Struct, frozen=True, eq=False):
    """A message that is to be sent."""

    record: Record  # its offset is the number of messages before it that came here
    size: int
    sender: Sender


class _Promise:
    """A sender that waits."""

    __slots__ = ("future",)

    def __init__(self, future: "asyncio.Future[int]") -> None:
        self.future = future

    def kept(self, offset: int) -> None:
        if not self.future.done():
            self.future.set_result(offset)

    def failed(self, error: RunnelError) -> None:
        if not self.future.done():
            self.future.set_exception(as_value(error))


class Mailing:
    """The messages of one partition that are on their way."""

    def __init__(
        self, key: PartitionKey, append: Append, new_producer: NewProducer, bytes_max: int = MIB,
        encoded: Encoded | None = None,
    ) -> None:  # fmt: skip
        self._key = key
        self._append = append
        self._new_producer = new_producer
        self._bytes_max = bytes_max
        self._encoded = encoded  # of who reads what is sent here
        self._loop = asyncio.get_running_loop()
        self._waiting: list[_Waiting] = []
        self._count = 0  # of all that ever came
        self._bytes = 0
        self._sending: asyncio.Task[None] | None = None
        self._enough: asyncio.Future[None] | None = None  # for a batch, while more is let come
        self._closed: RunnelError | None = None  # why
        self._producer: ProducerId | None = None
        self._sequence = 0

    @property
    def idle(self) -> bool:
        return self._sending is None

    def put(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int) -> "asyncio.Future[int]":
        """Send a message; its offset, once it is committed."""
        promise = _Promise(self._loop.create_future())
        self.post(key, value, headers, timestamp_ms, promise)
        return promise.future

    def post(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int, sender: Sender) -> None:
        """Send a message; its sender is told its offset, once it is committed."""
        if self._closed is not None:
            raise self._closed
        size = OVERHEAD_BYTES + len(key or b"") + len(value or b"")
        for name, text in headers:
            size += len(name) + len(text or b"")
        if size > self._bytes_max:
            raise BatchTooLarge(f"the message has {size} bytes, {self._bytes_max} are allowed: send a smaller one")
        if self._bytes + size > WAITING_BYTES_MAX:
            raise TooBusy(
                f"{WAITING_BYTES_MAX // MIB} MiB of messages wait to be written already: nothing of this one was kept,"
                " send it again later"
            )
        record = record_of((self._count, timestamp_ms, key, value, headers))
        self._waiting.append(_Waiting(record, size, sender))
        self._count += 1
        self._bytes += size
        if self._sending is None:
            self._sending = self._loop.create_task(self._send_all())
        elif self._enough is not None and self._bytes >= BATCH_BYTES and not self._enough.done():
            self._enough.set_result(None)

    def close(self, error: RunnelError) -> None:
        """The partition is gone: whoever waits hears why, and whoever comes."""
        self._closed = error
        if self._sending is not None:
            self._sending.cancel()
        self._fail(self._waiting, error)
        self._waiting = []

    async def _send_all(self) -> None:
        """As long as something waits. The task begins in the next turn of the loop: this one may bring more."""
        try:
            while self._waiting:
                batch, began = self._take(), self._loop.time()
                await self._deliver(batch)
                await self._pace(began, len(batch))
        finally:
            self._sending = None

    async def _deliver(self, batch: list[_Waiting]) -> None:
        """Send a batch, and tell each what came of it, once."""
        parts = [batch]
        try:
            while parts:
                parts[-1:] = await self._try(parts[-1])
        except asyncio.CancelledError:
            for part in parts:
                self._fail(part, RequestTimedOut("the broker stopped meanwhile: the message may be kept, or not"))
            raise

    async def _try(self, batch: list[_Waiting]) -> list[list[_Waiting]]:
        """The parts that are to be tried by themselves, the first one last: one message may be to blame."""
        try:
            base = await self._send(batch)
        except ONES_FAULT as error:
            if half := len(batch) // 2:
                return [batch[half:], batch[:half]]
            self._fail(batch, error)
        except RunnelError as error:
            self._producer = None
            self._fail(batch, error)
        else:
            for place, one in enumerate(batch, base):
                one.sender.kept(place)
        return []

    async def _pace(self, began: float, count: int) -> None:
        """Let more come, but no more than fits into a batch.

        The pause is to be PACE times the rate, which is the count by the pause: so its square is PACE times the count.
        """
        left_s = min(PACE_S_MAX, sqrt(PACE * (count - 1))) - (self._loop.time() - began)
        if left_s > 0 and self._bytes < BATCH_BYTES:
            self._enough = self._loop.create_future()
            await asyncio.wait([self._enough], timeout=left_s)
            self._enough = None

    def _take(self) -> list[_Waiting]:
        taken, size = 0, 0
        for one in self._waiting:
            if taken and size + one.size > BATCH_BYTES:
                break
            taken, size = taken + 1, size + one.size
        batch, self._waiting = self._waiting[:taken], self._waiting[taken:]
        self._bytes -= size
        return batch

    async def _send(self, batch: list[_Waiting]) -> int:
        """The offset of the first, once all are committed."""
        while True:
            if self._producer is None:
                self._producer, self._sequence = await self._new_producer(), 0
            records = [one.record for one in batch]
            data = encode(
                records, base_offset=records[0].offset, producer_id=self._producer, producer_epoch=0,
                base_sequence=self._sequence,
            )  # fmt: skip
            if self._encoded is not None:
                self._encoded.note(data, records)
            try:
                produced = await self._append(self._key, memoryview(bytearray(data)), ACKS_ALL, TIMEOUT_MS)
            except FORGOTTEN:
                if self._sequence == 0:
                    raise
                self._producer = None  # it was silent for so long that it is not known any more
                continue
            self._sequence = (self._sequence + len(batch)) % SEQUENCES
            return produced.base_offset

    def _fail(self, batch: list[_Waiting], error: RunnelError) -> None:
        for one in batch:
            one.sender.failed(error)
