"""What one partition remembers of its idempotent producers, so that a retried batch is stored once.

Rule 1: the state is a function of the log: `record` in order of offsets gives it, live and in replay alike.
Rule 2: of each producer the last five batches are remembered, as many as a client may have in flight.
Rule 3: epochs never go back. A producer that is forgotten leaves its epoch behind, so that a zombie of it stays out.
Rule 4: what a failed write recorded is undone as a whole; entries are immutable, so the old ones need only be kept.
Rule 5: a sequence is called a duplicate only if it is known to have been appended, for a client takes it as success.

    check --> Duplicate     in the window: answer with the first offset, append nothing
          --> None          next in sequence, a new epoch from 0, or a producer nobody remembers: append, then `record`
          --> error         behind the window, ahead of the sequence, or of an old epoch
"""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from struct import Struct
from typing import NamedTuple

from crc32c import crc32c

from runnel.model.errors import DuplicateSequence, InvalidProducerEpoch, OutOfOrderSequence
from runnel.record.batch import CONTROL, TRANSACTIONAL, BatchHeader

WINDOW = 5  # batches a Kafka client has in flight at most when idempotent
SEQUENCES = 2**31  # after the last comes 0
EXPIRATION_MS = 24 * 60 * 60 * 1000  # Kafka's producer.id.expiration.ms
PRODUCERS_MAX = 10_000  # remembered in one partition, about 6 MB; beyond, the one silent for longest is forgotten
FENCES_MAX = 100_000  # epochs of forgotten producers; only those above 0 need one

_MAGIC = b"RNLP"
_VERSION = 1
_HEAD = Struct(">4sHIqII")  # magic, version, crc32c of what follows, offset, producers, fences
_CRC_STARTS = 10
_PRODUCER = Struct(">qhBBqqq")  # id, epoch, batches, whole, last timestamp, seen, first offset of the transaction
_BATCH = Struct(">iiqqq")
_WITH_BATCHES = tuple(Struct(_PRODUCER.format + "iiqqq" * batches) for batches in range(WINDOW + 1))
_FENCE = Struct(">qh")


class Remembered(NamedTuple):
    """One batch of the window."""

    base_sequence: int
    last_sequence: int
    base_offset: int
    last_offset: int
    timestamp: int


class Duplicate(NamedTuple):
    """The batch is in the log already, here."""

    base_offset: int
    last_offset: int
    timestamp: int


class Producer(NamedTuple):
    """One producer as the partition knows it."""

    producer_id: int
    epoch: int
    batches: tuple[Remembered, ...] = ()  # of this epoch, oldest first
    whole: bool = True  # this epoch was seen from sequence 0 on, so all below the last were appended
    last_timestamp: int = -1
    seen_ms: int = 0  # by the broker's clock: timestamps are the client's, and may lie years back
    txn_first_offset: int = -1  # of the transaction that is open, or -1

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1


# Constructors in C: a batch of an idempotent producer makes one of each.
_remembered: Callable[[tuple[int, int, int, int, int]], Remembered] = partial(tuple.__new__, Remembered)
_producer: Callable[[tuple[int, int, tuple[Remembered, ...], bool, int, int, int]], Producer] = partial(
    tuple.__new__, Producer
)


class Producers:
    """The producers of one partition. Dictionaries are ordered: whoever wrote last stands last."""

    __slots__ = ("_fences", "_producers", "_producers_max", "_touched")

    def __init__(self, *, producers_max: int = PRODUCERS_MAX) -> None:
        self._producers: dict[int, Producer] = {}
        self._fences: dict[int, int] = {}
        self._touched: dict[int, Producer | None] = {}  # as they were before the write under way
        self._producers_max = producers_max

    def __len__(self) -> int:
        return len(self._producers)

    def __iter__(self) -> Iterator[Producer]:
        return iter(self._producers.values())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Producers) and self._producers == other._producers

    @property
    def empty(self) -> bool:
        """Nobody is remembered, and nobody is fenced off."""
        return not self._producers and not self._fences

    def get(self, producer_id: int) -> Producer | None:
        return self._producers.get(producer_id)

    def copy(self) -> "Producers":
        """The same state, to be written down elsewhere while this one moves on: entries are shared, as none changes."""
        twin = Producers(producers_max=self._producers_max)
        twin._producers, twin._fences = self._producers.copy(), self._fences.copy()
        return twin

    def last_offsets(self) -> dict[int, int]:
        """Where the last batch of each producer ends: compaction keeps those batches."""
        return {producer.producer_id: producer.batches[-1].last_offset for producer in self if producer.batches}

    # --- deciding
    def check(self, header: BatchHeader) -> Duplicate | None:
        """What to do with a batch: None to append it, Duplicate to answer for it; raises if it can't be appended."""
        if header.producer_id < 0:
            return None
        known = self._producers.get(header.producer_id)
        epoch = known.epoch if known is not None else self._fences.get(header.producer_id, -1)
        if header.producer_epoch < epoch:
            raise InvalidProducerEpoch(
                f"producer {header.producer_id} has epoch {epoch} here, epoch {header.producer_epoch} is fenced off"
            )
        if known is None or header.attributes & CONTROL:
            return None
        if header.producer_epoch > epoch:
            _check_start(header)
            return None
        return _continue_epoch(known, header)

    # --- following the log
    def record(self, header: BatchHeader, base_offset: int, now_ms: int) -> None:
        """A batch is being written at `base_offset`; the header is that of what is stored, with the time of the append
        if the log stamps it. Until `settle`, `rollback` takes it back."""
        if header.producer_id < 0:
            return
        known = self._producers.pop(header.producer_id, None)
        self._touched.setdefault(header.producer_id, known)
        self._producers[header.producer_id] = _after(known, header, base_offset, now_ms)
        while len(self._producers) > self._producers_max and self._forget_oldest():
            pass

    def settle(self) -> None:
        """What was recorded has been written."""
        self._touched.clear()

    def rollback(self) -> None:
        """What was recorded since the last `settle` was not written."""
        for producer_id, old in self._touched.items():
            if old is None:
                self._producers.pop(producer_id, None)
            else:
                self._producers[producer_id] = old
        self._touched.clear()

    def replay(self, header: BatchHeader, now_ms: int) -> None:
        """The batch is in the log."""
        self.record(header, header.base_offset, now_ms)
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
        idle = (p for p in self._producers.values() if p.txn_first_offset < 0 and p.producer_id not in self._touched)
        oldest = next(idle, None)
        if oldest is None:
            return False
        self._touched[oldest.producer_id] = oldest
        self._forget(oldest)
        return True

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
            _WITH_BATCHES[len(batches)].pack(pid, epoch, len(batches), whole, newest, seen, txn, *chain(*batches))
            for pid, epoch, batches, whole, newest, seen, txn in self._producers.values()
        ]
        parts += [_FENCE.pack(*fence) for fence in self._fences.items()]
        head = _HEAD.pack(_MAGIC, _VERSION, 0, offset, len(self._producers), len(self._fences))
        body = b"".join((head[_CRC_STARTS:], *parts))
        return b"".join((_HEAD.pack(_MAGIC, _VERSION, crc32c(body), 0, 0, 0)[:_CRC_STARTS], body))

    @classmethod
    def from_bytes(cls, data: bytes, offset: int, *, producers_max: int = PRODUCERS_MAX) -> "Producers | None":
        """The state before `offset`; None if these bytes are not it: then replay the log from further back."""
        if len(data) < _HEAD.size:
            return None
        magic, version, crc, at, producers, fences = _HEAD.unpack_from(data)
        if (magic, version, at) != (_MAGIC, _VERSION, offset) or crc32c(memoryview(data)[_CRC_STARTS:]) != crc:
            return None
        made = cls(producers_max=producers_max)
        made._load(data, producers, fences)
        return made

    def _load(self, data: bytes, producers: int, fences: int) -> None:
        at = _HEAD.size
        for _ in range(producers):
            producer_id, epoch, batches, whole, last_timestamp, seen_ms, txn = _PRODUCER.unpack_from(data, at)
            at += _PRODUCER.size
            window = tuple(Remembered(*_BATCH.unpack_from(data, at + i * _BATCH.size)) for i in range(batches))
            at += batches * _BATCH.size
            known = Producer(producer_id, epoch, window, bool(whole), last_timestamp, seen_ms, txn)
            self._producers[producer_id] = known
        for _ in range(fences):
            producer_id, epoch = _FENCE.unpack_from(data, at)
            self._fences[producer_id] = epoch
            at += _FENCE.size


def _check_start(header: BatchHeader) -> None:
    if header.base_sequence != 0:
        raise OutOfOrderSequence(
            f"producer {header.producer_id} began epoch {header.producer_epoch} with sequence {header.base_sequence}, "
            "not 0: a batch before it is missing"
        )


def _continue_epoch(known: Producer, header: BatchHeader) -> Duplicate | None:
    first = header.base_sequence
    expected = (known.batches[-1].last_sequence + 1) % SEQUENCES if known.batches else 0
    if first == expected:
        return None
    last = _last_sequence(header)
    for batch in known.batches:
        if batch.base_sequence == first and batch.last_sequence == last:
            return Duplicate(batch.base_offset, batch.last_offset, batch.timestamp)
    if known.batches and known.whole and _before(last, known.batches[0].base_sequence):
        raise DuplicateSequence(
            f"producer {header.producer_id} sent sequence {first} again: it was appended, its offset is forgotten"
        )
    raise OutOfOrderSequence(
        f"producer {header.producer_id} sent sequence {first}, expected is {expected}: a batch before it is missing"
    )


def _before(sequence: int, other: int) -> bool:
    """Whether a sequence lies behind another, on a ring of which half is behind."""
    return 0 < (other - sequence) % SEQUENCES < SEQUENCES // 2


def _last_sequence(header: BatchHeader) -> int:
    # Not by the count: compaction takes records out of a batch, and leaves its sequences and offsets.
    return (header.base_sequence + header.last_offset_delta) % SEQUENCES


def _after(known: Producer | None, header: BatchHeader, base_offset: int, now_ms: int) -> Producer:
    """The producer, once this batch is in the log."""
    if known is not None and header.producer_epoch < known.epoch:
        return known
    control = header.attributes & CONTROL
    if known is None or header.producer_epoch > known.epoch:
        whole = control != 0 or header.base_sequence == 0
        txn = known.txn_first_offset if known is not None else -1
        known = Producer(header.producer_id, header.producer_epoch, whole=whole, txn_first_offset=txn)
    if control:  # a marker: it ends the transaction, and is no batch of the producer's own
        return known._replace(last_timestamp=header.max_timestamp, seen_ms=now_ms, txn_first_offset=-1)
    last_offset = base_offset + header.last_offset_delta
    newest = header.max_timestamp
    batch = _remembered((header.base_sequence, _last_sequence(header), base_offset, last_offset, newest))
    producer_id, epoch, batches, whole, _, _, txn = known
    if header.attributes & TRANSACTIONAL and txn < 0:
        txn = base_offset
    return _producer((producer_id, epoch, (*batches[1 - WINDOW :], batch), whole, newest, now_ms, txn))
