"""The messages on their way to one partition: batched, numbered, in order. Decides; `producer` does.

Rule 1: a batch gets its sequence number when it is first sent, and keeps it when it is sent again.
Rule 2: after a failure nothing new is sent until all in flight was answered; then the failed go first, in order. Nor
        is anything numbered sent to another broker meanwhile: it would see a gap where the first has not answered.
Rule 3: when a numbered batch is given up, the numbers behind it would have a gap: the epoch is raised, and numbering
        starts at 0. (Sequence state on the broker is kept by partition, so an epoch can be raised for one alone.)
        Not in a transaction: there the epoch is the coordinator's, and whoever gave a batch up gives all of it up.
Rule 4: a batch that may have been appended is never sent under another number. Before the epoch is raised, each such
        batch is sent once more as it was: it is taken, known as a duplicate, or refused as out of order, and only
        then certainly absent.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from runnel.client.metadata import TopicPartition
from runnel.model.errors import RunnelError
from runnel.model.seams import Buffer
from runnel.record import batch as record_batch
from runnel.record import records
from runnel.record.compression import Compression
from runnel.record.records import Headers, Record

SEQUENCE_BOUND = 2**31  # numbers wrap to 0
EPOCH_MAX = 2**15 - 2  # above it, the producer needs a new id
RECORD_OVERHEAD_BYTES = 21  # what lengths, deltas and attributes of a record take at most, nearly always


# The constructor of a named tuple is Python code; this one is not, and it runs for every message.
_record: Callable[[tuple[int, int, bytes | None, bytes | None, Headers]], Record] = partial(tuple.__new__, Record)


class Appended(NamedTuple):
    """Where a batch went."""

    base_offset: int  # -1 if the broker was not asked to say (acks=0)
    append_time_ms: int  # -1: the records keep their own timestamps


class Identity(NamedTuple):
    """Who sends, for the broker to know a batch that comes twice."""

    producer_id: int = -1
    epoch: int = -1


@dataclass(slots=True, eq=False)
class Batch:
    """Messages of one partition that travel together; one future serves them all."""

    where: TopicPartition
    done: asyncio.Future[Appended]
    serial: int  # its turn in its line
    made_at: float
    deadline: float
    records: list[Record] = field(default_factory=list)
    size_bytes: int = 0
    count: int = 0
    closed: bool = False
    identity: Identity = Identity()
    sequence: int = -1
    encoded: Buffer | None = None
    transactional: bool = False
    attempts: int = 0
    doubtful: bool = False  # it was sent with its number, and nobody knows whether it was appended

    def add(self, key: bytes | None, value: bytes | None, headers: Headers, timestamp_ms: int, size: int) -> int:
        """Append a message; its place in the batch."""
        place = self.count
        self.records.append(_record((place, timestamp_ms, key, value, headers)))
        self.count += 1
        self.size_bytes += size
        return place

    def encode(self, compression: Compression) -> Buffer:
        if self.encoded is None:
            self.encoded = records.encode(
                self.records,
                compression=compression,
                producer_id=self.identity.producer_id,
                producer_epoch=self.identity.epoch,
                base_sequence=self.sequence,
                transactional=self.transactional,
            )
            self.records = []
        return self.encoded

    def restamp(self, identity: Identity, sequence: int) -> None:
        """Give the batch a number; one that was encoded already gets it in its header."""
        self.identity, self.sequence = identity, sequence
        if self.encoded is not None:
            batch = self.encoded
            if self.attempts or not isinstance(batch, bytearray):  # what was sent may still be under way
                batch = bytearray(batch)
            record_batch.stamp_producer(
                batch, identity.producer_id, identity.epoch, sequence, transactional=self.transactional
            )
            self.encoded = batch

    @property
    def numbered(self) -> bool:
        return self.sequence >= 0


def record_bytes(key: bytes | None, value: bytes | None, headers: Headers) -> int:
    """About what one message takes in a batch, before compression."""
    size = RECORD_OVERHEAD_BYTES + (len(key) if key else 0) + (len(value) if value else 0)
    for name, content in headers:
        size += len(name) + (len(content) if content else 0) + 4
    return size


class Line:
    """All batches of one partition that are not settled yet."""

    def __init__(self, where: TopicPartition, in_flight_max: int, *, transactional: bool = False) -> None:
        self.where = where
        self.transactional = transactional
        self.in_flight_max = in_flight_max
        self.identity = Identity()
        self.waiting: deque[Batch] = deque()
        self.in_flight: list[Batch] = []
        self._sent_to = -1  # the broker that has those in flight
        self._redo: list[Batch] = []
        self._next_sequence = 0
        self._serial = 0
        self._gap = False
        self._proven = False  # whether the broker has appended something under this identity
        self.not_before = 0.0  # after a failure: a pause

    @property
    def idle(self) -> bool:
        return not (self.waiting or self.in_flight or self._redo)

    def open_batch(self) -> Batch | None:
        """The batch that still takes messages."""
        return self.waiting[-1] if self.waiting and not self.waiting[-1].closed else None

    def new_batch(self, done: asyncio.Future[Appended], now: float, deadline: float) -> Batch:
        self._serial += 1
        batch = Batch(self.where, done, self._serial, now, deadline, transactional=self.transactional)
        self.waiting.append(batch)
        return batch

    # --- what to send
    def ready_at(self, linger_s: float) -> float | None:
        """When there is something to send: a loop time, perhaps past; None while waiting for answers or messages."""
        if self._redo or self._gap:
            return self.not_before if not self.in_flight else None
        if not self.waiting or len(self.in_flight) >= self._in_flight_bound():
            return None
        first = self.waiting[0]
        return max(self.not_before, first.made_at if first.closed else first.made_at + linger_s)

    def _in_flight_bound(self) -> int:
        """Brokers take any first number of a producer they don't know: until one batch is in, no second is sent.

        Else the second could be taken for the first when the leader was not ready for the first, which then never fits.
        """
        return self.in_flight_max if self._proven or self.identity.producer_id < 0 else 1

    def may_go_to(self, broker: int) -> bool:
        return not self.in_flight or broker == self._sent_to or self.identity.producer_id < 0

    def take(self, broker: int) -> Batch | None:
        """The next batch to send to a broker, numbered."""
        if self._redo or self._gap:
            self._requeue()
        if not self.waiting:
            return None
        batch = self._first_doubtful() if self._gap else self.waiting[0]
        self.waiting.remove(batch)
        batch.closed = True
        if self.identity.producer_id >= 0 and not batch.numbered:
            batch.restamp(self.identity, self._next_sequence)
            self._next_sequence = (self._next_sequence + batch.count) % SEQUENCE_BOUND
        batch.doubtful = batch.numbered
        batch.attempts += 1
        self.in_flight.append(batch)
        self._sent_to = broker
        return batch

    def _first_doubtful(self) -> Batch:
        return next(batch for batch in self.waiting if batch.doubtful)

    def _requeue(self) -> None:
        """Nothing is in flight: put the failed batches first, in the order they had; close a gap in the numbers."""
        assert not self.in_flight
        # Sorted, not only put in front: a doubtful batch may have been sent before an absent one that stands before it.
        self.waiting = deque(sorted((*self._redo, *self.waiting), key=lambda batch: batch.serial))
        self._redo = []
        if self._gap and not any(batch.doubtful for batch in self.waiting):
            self._gap = self._proven = False
            self.identity = self.identity._replace(epoch=self.identity.epoch + 1)
            self._next_sequence = 0
            for batch in self.waiting:
                batch.sequence = -1

    def adopt(self, identity: Identity) -> None:
        """Send as this producer from now on."""
        self.identity = identity
        self._proven = False
        self._next_sequence = 0
        for batch in self.waiting:
            batch.sequence = -1

    @property
    def worn_out(self) -> bool:
        """No epoch is left: a new producer id is needed."""
        return self.identity.epoch > EPOCH_MAX

    # --- what came of it
    def settle(self, batch: Batch, result: Appended | RunnelError) -> None:
        """The batch was appended, or is given up."""
        if batch in self.in_flight:
            self.in_flight.remove(batch)
        if isinstance(result, RunnelError):
            self._gap = self._gap or (batch.numbered and not self.transactional)
            if not batch.done.done():
                batch.done.set_exception(result)
                batch.done.exception()  # whoever awaits gets it; `flush` reports it in any case
        else:
            self._proven = self._proven or batch.identity == self.identity
            if not batch.done.done():
                batch.done.set_result(result)

    def retry(self, batch: Batch, not_before: float, *, absent: bool = False) -> None:
        """The batch may not have been, or is certainly not (`absent`), appended: send it again, before those behind."""
        self.in_flight.remove(batch)
        batch.doubtful = batch.numbered and not absent
        self._redo.append(batch)
        self._redo.sort(key=lambda b: b.serial)
        self.not_before = not_before

    def must_wait(self, batch: Batch) -> bool:
        """Whether one before it failed meanwhile, and is to be sent again first."""
        return batch.numbered and any(failed.serial < batch.serial for failed in self._redo)

    @property
    def broken(self) -> bool:
        """A batch failed: those sent behind it will be refused as out of order, and are sent again."""
        return bool(self._redo) or self._gap

    def is_first(self, batch: Batch) -> bool:
        """Whether nothing that was sent before this batch is still unanswered."""
        return all(other.serial >= batch.serial for other in self.in_flight)

    def expired(self, now: float) -> list[Batch]:
        """Batches whose time is up and that are not in flight."""
        late = [batch for batch in (*self._redo, *self.waiting) if batch.deadline <= now]
        if late:
            self._redo = [batch for batch in self._redo if batch.deadline > now]
            self.waiting = deque(batch for batch in self.waiting if batch.deadline > now)
        return late
