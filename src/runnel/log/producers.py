"""What one partition remembers of its idempotent producers, so that a retried batch is stored once.

Rule 1: the state is a function of the log: `record` in order of offsets gives it, live and in replay alike.
Rule 2: of each producer the last five batches are remembered, as many as a client may have in flight.
Rule 3: epochs never go back. A producer that is forgotten leaves its epoch behind, so that a zombie of it stays out.
Rule 4: what a failed write recorded is undone as a whole; entries are immutable, so the old ones need only be kept.
Rule 5: a sequence is called a duplicate only if it is known to have been appended, for a client takes it as success.

Rule 6: what a producer writes is in one transaction or in none: while one is open it writes nothing but that, in one
        epoch, until a marker ends it. Until then it is not forgotten.
Rule 7: a marker is taken from the newest coordinator alone. One that was appended before is not appended again.

    check --> Duplicate     in the window, or a marker that was here: answer with the first offset, append nothing
          --> None          next in sequence, a new epoch from 0, or a producer nobody remembers: append, then `record`
          --> error         behind the window, ahead of the sequence, or of an old epoch
"""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain, islice
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from runnel.log.transactions import Transactions
from runnel.model.errors import (
    DuplicateSequence,
    InvalidProducerEpoch,
    InvalidTransactionState,
    OutOfOrderSequence,
    TransactionCoordinatorFenced,
)
from runnel.record.batch import CONTROL, TRANSACTIONAL, BatchHeader
from runnel.record.control import Marker

WINDOW = 5  # batches a Kafka client has in flight at most when idempotent
SEQUENCES = 2**31  # after the last comes 0
EXPIRATION_MS = 24 * 60 * 60 * 1000  # Kafka's producer.id.expiration.ms
PRODUCERS_MAX = 10_000  # remembered in one partition, about 6 MB; beyond, the one silent for longest is forgotten
FENCES_MAX = 100_000  # epochs of forgotten producers; only those above 0 need one

_MAGIC = b"RNLP"
_VERSION = 2  # 1 knew of no coordinators, and of no transactions that ended
_HEAD = Struct(">4sHIqIIqI")  # magic, version, crc32c of what follows, offset, producers, fences, since, ended
_CRC_STARTS = 10
# id, epoch, batches, whole, last timestamp, seen, first offset of the transaction, coordinator epoch
_PRODUCER = Struct(">qhBBqqqi")
_BATCH = Struct(">iiqqq")
_WITH_BATCHES = tuple(Struct(_PRODUCER.format + "iiqqq" * batches) for batches in range(WINDOW + 1))
_FENCE = Struct(">qh")
_ENDED = Struct(">qq")  # offset of the marker, first offset
_SCAN_MAX = 8  # producers looked at, one after the other, for one to forget


class Remembered(NamedTuple):
    """One batch of the window."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class Duplicate(NamedTuple):
    """The batch is in the log already, here; a marker somewhere."""

    base_offset: int
    last_offset: int
    timestamp: int


SOMEWHERE = Duplicate(-1, -1, -1)  # nobody remembers where a marker is


class Producer(NamedTuple):
    """One producer as the partition knows it."""

    producer_id: int
    epoch: int
    batches: tuple[Remembered, ...] = ()  # of this epoch, oldest first
    whole: bool = True  # this epoch was seen from sequence 0 on, so all below the last were appended
    last_timestamp: int = -1
    seen_ms: int = 0  # by the broker's clock: timestamps are the client's, and may lie years back
    txn_first_offset: int = -1  # of the transaction that is open, or -1
    coordinator_epoch: int = -1  # that the last marker came from

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1

    def next_sequence(self, epoch: int) -> int:
        """The one that its next batch in this epoch is to have."""
        return (self.last_sequence + 1) % SEQUENCES if epoch == self.epoch else 0


# Constructors in C: a batch of an idempotent producer makes one of each.
_remembered: Callable[[tuple[int, int, int, int, int]], Remembered] = partial(tuple.__new__, Remembered)
_producer: Callable[[tuple[int, int, tuple[Remembered, ...], bool, int, int, int, int]], Producer] = partial(
    tuple.__new__, Producer
)


class LastBatches(NamedTuple):
    """The last batch of each producer; of those that wrote nothing in their epoch, the marker that began it."""

    offsets: Mapping[int, int]  # producer id -> last offset of its last batch
    epochs: Mapping[int, int]  # producer id -> epoch

    def has(self, header: BatchHeader) -> bool:
        if header.attributes & CONTROL:
            return self.epochs.get(header.producer_id) == header.producer_epoch
        return self.offsets.get(header.producer_id) == header.last_offset


class Producers:
    """The producers of one partition. Dictionaries are ordered: whoever wrote last stands last."""

    __slots__ = ("_fences", "_producers", "_producers_max", "_touched", "transactions")

    def __init__(self, *, producers_max: int = PRODUCERS_MAX) -> None:
        self._producers: dict[int, Producer] = {}
        self._fences: dict[int, int] = {}
        self._touched: dict[int, Producer | None] = {}  # as they were before the write under way
        self._producers_max = producers_max
        self.transactions = Transactions()

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[Producer]:
        return iter(self._producers.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Producers) and self._producers == other._producers

    @property
    def empty(self) -> bool:
        """Nobody is remembered, nobody is fenced off, and there was no transaction."""
        return not self._producers and not self._fences and self.transactions.empty

    def get(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id)

    def copy(self) -> "Producers":
        """The same state, to be written down elsewhere while this one moves on: entries are shared, as none changes."""
        twin = Producers(producers_max=self._producers_max)
        twin._producers, twin._fences = self._producers.copy(), self._fences.copy()
        twin.transactions = self.transactions.copy()
        return twin

    def last_batches(self) -> "LastBatches":
        """By what the state of each producer is known: compaction keeps it."""
        offsets = {producer.producer_id: producer.batches[-1].last_offset for producer in self if producer.batches}
        return LastBatches(offsets, {producer.producer_id: producer.epoch for producer in self if not producer.batches})

    # --- deciding
    def check(self, header: BatchHeader, marker: Marker | None = None) -> Duplicate | None:
        """What to do with a batch: None to append it, Duplicate to answer for it; raises if it can't be appended.

        `marker` is what a control batch says.
        """
        if header.producer_id < 0:
            return None
        known = self._producers.get(header.producer_id)
        epoch = known.epoch if known is not None else self._fences.get(header.producer_id, -1)
        if header.producer_epoch < epoch:
            raise InvalidProducerEpoch(
                f"producer {header.producer_id} has epoch {epoch} here, epoch {header.producer_epoch} is fenced off"
            )
        if known is None:
            return None
        if header.attributes & CONTROL:
            return _check_marker(known, header, marker)
        if known.txn_first_offset >= 0:
            _check_transaction(known, header)
        if header.producer_epoch > epoch:
            _check_start(header)
            return None
        return _continue_epoch(known, header)

    # --- following the log
    def record(self, header: BatchHeader, base_offset: int, now_ms: int, marker: Marker | None = None) -> None:
        """A batch is being written at `base_offset`; the header is that of what is stored, with the time of the append
        if the log stamps it. Until `settle`, `rollback` takes it back. A control batch that nobody can read is none.
        """
        producer_id, attributes = header.producer_id, header.attributes
        if producer_id < 0 or (attributes & CONTROL and marker is None):
            return
        known = self._producers.pop(producer_id, None)
        if attributes & TRANSACTIONAL:
            after = self._follow(known, header, base_offset, now_ms, marker)
        else:
            after = _after(known, header, base_offset, now_ms)
        self._touched.setdefault(producer_id, known)
        self._producers[producer_id] = after
        while len(self._producers) > self._producers_max and self._forget_oldest():
            pass

    def _follow(
        self, known: Producer | None, header: BatchHeader, base_offset: int, now_ms: int, marker: Marker | None
    ) -> Producer:
        """The producer, once this batch of a transaction is in the log, and so the transactions."""
        if marker is None:
            after = _after(known, header, base_offset, now_ms)
        else:
            after = _after_marker(known, header, now_ms, marker)
        before = known.txn_first_offset if known is not None else -1
        if after.txn_first_offset >= 0 > before:
            self.transactions.begin(header.producer_id, after.txn_first_offset)
        elif marker is not None and before >= 0 > after.txn_first_offset:
            if not self._touched:
                self.transactions.merge()
            self.transactions.end(header.producer_id, before, base_offset, commit=marker.commit)
        return after

    def settle(self) -> None:
        """What was recorded has been written."""
        self._touched.clear()

    def rollback(self, end_offset: int) -> None:
        """What was recorded since the last `settle` was not written: the log ends here."""
        for producer_id, old in self._touched.items():
            if old is None:
                self._producers.pop(producer_id, None)
            else:
                self._producers[producer_id] = old
        self._touched.clear()
        self.transactions.cut(end_offset)

    def replay(self, header: BatchHeader, now_ms: int, marker: Marker | None = None) -> None:
        """The batch is in the log."""
        self.record(header, header.base_offset, now_ms, marker)
        self.settle()

    # --- forgetting
    def expire(self, now_ms: int, expiration_ms: int = EXPIRATION_MS) -> int:
        """Forget who wrote nothing for so long, and has no transaction open; how many that were."""
        silent = []
        for producer in self._producers.values():
            if now_ms - producer.seen_ms < expiration_ms:
                break
            if producer.txn_first_offset < 0:
                silent.append(producer)
        for producer in silent:
            self._forget(producer)
        return len(silent)

    def _forget_oldest(self) -> bool:
        """Forget the one that is silent for longest. Those in a transaction step back: the next look is past them."""
        for producer in list(islice(self._producers.values(), _SCAN_MAX)):
            if producer.producer_id in self._touched:
                continue
            if producer.txn_first_offset < 0:
                self._touched[producer.producer_id] = producer
                self._forget(producer)
                return True
            self._producers[producer.producer_id] = self._producers.pop(producer.producer_id)
        return False

    def _forget(self, producer: Producer) -> None:
        del self._producers[producer.producer_id]
        self._fences.pop(producer.producer_id, None)
        if producer.epoch > 0:
            self._fences[producer.producer_id] = producer.epoch
        if len(self._fences) > FENCES_MAX:
            del self._fences[next(iter(self._fences))]

    # --- snapshots
    def to_bytes(self, offset: int) -> bytes:
        """The state before `offset`, as drawn in docs/formats/record-batch.md."""
        parts = [
            _WITH_BATCHES[len(batches)].pack(pid, epoch, len(batches), whole, newest, seen, txn, led, *chain(*batches))
            for pid, epoch, batches, whole, newest, seen, txn, led in self._producers.values()
        ]
        parts += [_FENCE.pack(*fence) for fence in self._fences.items()]
        ended, since = self.transactions.ended, self.transactions.since
        parts += [_ENDED.pack(*one) for one in ended]
        head = _HEAD.pack(_MAGIC, _VERSION, 0, offset, len(self._producers), len(self._fences), since, len(ended))
        body = b"".join((head[_CRC_STARTS:], *parts))
        return b"".join((head[: _CRC_STARTS - 4], crc32c(body).to_bytes(4, "big"), body))

    @classmethod
    def from_bytes(cls, data: bytes, offset: int, *, producers_max: int = PRODUCERS_MAX) -> "Producers | None":
        """The state before `offset`; None if these bytes are not it: then replay the log from further back."""
        if len(data) < _HEAD.size:
            return None
        magic, version, crc, at, *counts = _HEAD.unpack_from(data)
        if (magic, version, at) != (_MAGIC, _VERSION, offset) or crc32c(memoryview(data)[_CRC_STARTS:]) != crc:
            return None
        made = cls(producers_max=producers_max)
        made._load(data, *counts)
        return made

    def _load(self, data: bytes, producers: int, fences: int, since: int, ended: int) -> None:
        at = _HEAD.size
        for _ in range(producers):
            producer_id, epoch, batches, whole, last_timestamp, seen_ms, txn, led = _PRODUCER.unpack_from(data, at)
            at += _PRODUCER.size
            window = tuple(Remembered(*_BATCH.unpack_from(data, at + i * _BATCH.size)) for i in range(batches))
            at += batches * _BATCH.size
            known = Producer(producer_id, epoch, window, bool(whole), last_timestamp, seen_ms, txn, led)
            self._producers[producer_id] = known
        for _ in range(fences):
            producer_id, epoch = _FENCE.unpack_from(data, at)
            self._fences[producer_id] = epoch
            at += _FENCE.size
        opened = [(known.producer_id, known.txn_first_offset) for known in self if known.txn_first_offset >= 0]
        size = ended * _ENDED.size
        self.transactions.restore(since, opened, list(_ENDED.iter_unpack(data[at : at + size])))


def _check_start(header: BatchHeader) -> None:
    if header.base_sequence != 0:
        raise OutOfOrderSequence(
            f"producer {header.producer_id} began epoch {header.producer_epoch} with sequence {header.base_sequence}, "
            "not 0: a batch before it is missing"
        )


def _continue_epoch(known: Producer, header: BatchHeader) -> Duplicate | None:
    first = header.base_sequence
    # As `next_sequence`, which would cost each batch of each producer two calls.
    expected = (known.batches[-1].last_sequence + 1) % SEQUENCES if known.batches else 0
    if first == expected:
        return None
    last = _last_sequence(header)
    for batch in known.batches:
        if batch.base_sequence == first and batch.last_sequence == last:
            return Duplicate(batch.base_offset, batch.last_offset, batch.timestamp)
    if known.batches and known.whole and is_before(last, known.batches[0].base_sequence):
        raise DuplicateSequence(
            f"producer {header.producer_id} sent sequence {first} again: it was appended, its offset is forgotten"
        )
    raise OutOfOrderSequence(
        f"producer {header.producer_id} sent sequence {first}, expected is {expected}: a batch before it is missing"
    )


def is_before(sequence: int, other: int) -> bool:
    """Whether a sequence comes before another, on a ring of which half comes before."""
    return 0 < (other - sequence) % SEQUENCES < SEQUENCES // 2


def _last_sequence(header: BatchHeader) -> int:
    # Not by the count: compaction takes records out of a batch, and leaves its sequences and offsets.
    return (header.base_sequence + header.last_offset_delta) % SEQUENCES


def _check_transaction(known: Producer, header: BatchHeader) -> None:
    """A transaction is open."""
    if not header.attributes & TRANSACTIONAL or header.producer_epoch > known.epoch:
        what = f"epoch {header.producer_epoch}" if header.attributes & TRANSACTIONAL else "outside of it"
        raise InvalidTransactionState(
            f"producer {header.producer_id} has a transaction of epoch {known.epoch} open since offset "
            f"{known.txn_first_offset}, and wrote {what}: end the transaction first"
        )


def _check_marker(known: Producer, header: BatchHeader, marker: Marker | None) -> Duplicate | None:
    if marker is None:
        return None
    if marker.coordinator_epoch < known.coordinator_epoch:
        raise TransactionCoordinatorFenced(
            f"a marker of coordinator epoch {known.coordinator_epoch} has ended a transaction of producer "
            f"{header.producer_id}: that of epoch {marker.coordinator_epoch} comes from a coordinator that is none now"
        )
    settled = known.txn_first_offset < 0 and marker.coordinator_epoch == known.coordinator_epoch
    return SOMEWHERE if settled and header.producer_epoch == known.epoch else None


def _after(known: Producer | None, header: BatchHeader, base_offset: int, now_ms: int) -> Producer:
    """The producer, once this batch is in the log."""
    if known is None or header.producer_epoch != known.epoch:
        if known is not None and header.producer_epoch < known.epoch:
            return known
        known = _in_epoch(known, header, whole=header.base_sequence == 0)
    last_offset = base_offset + header.last_offset_delta
    newest = header.max_timestamp
    batch = _remembered((header.base_sequence, _last_sequence(header), base_offset, last_offset, newest))
    producer_id, epoch, batches, whole, _, _, txn, led = known
    if txn < 0 and header.attributes & TRANSACTIONAL:
        txn = base_offset
    return _producer((producer_id, epoch, (*batches[1 - WINDOW :], batch), whole, newest, now_ms, txn, led))


def _after_marker(known: Producer | None, header: BatchHeader, now_ms: int, marker: Marker) -> Producer:
    """The producer, once a marker has ended its transaction; it is no batch of the producer's own."""
    if known is None or header.producer_epoch != known.epoch:
        if known is not None and header.producer_epoch < known.epoch:
            return known
        known = _in_epoch(known, header, whole=True)
    return known._replace(
        last_timestamp=header.max_timestamp, seen_ms=now_ms, txn_first_offset=-1,
        coordinator_epoch=max(marker.coordinator_epoch, known.coordinator_epoch),
    )  # fmt: skip


def _in_epoch(known: Producer | None, header: BatchHeader, *, whole: bool) -> Producer:
    """A producer at the beginning of an epoch; its transaction goes on until a marker ends it."""
    txn, led = (known.txn_first_offset, known.coordinator_epoch) if known is not None else (-1, -1)
    return Producer(header.producer_id, header.producer_epoch, whole=whole, txn_first_offset=txn, coordinator_epoch=led)
