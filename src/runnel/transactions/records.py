"""The records of the internal topic: what of a transactional id survives (docs/formats/transaction-records.md).

One record for each transactional id: compaction keeps its last state; no value is a tombstone. Keys and values are
msgpack arrays. A value begins with the number of its shape; fields may be added at its end.
"""

import msgspec

from runnel.model.errors import RecordUnreadable
from runnel.model.ids import NO_PRODUCER, ProducerId
from runnel.model.partition_sets import Grouped, Partitions, ungrouped
from runnel.model.unreadable import FOREIGN
from runnel.transactions.values import NO_PRODUCER_EPOCH, Cause, Identity, State

TRANSACTION = 1  # the kind: the first element of a key


class Transaction(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """All that is known of a transactional id."""

    state: State
    producer_id: ProducerId
    epoch: int  # while a transaction ends: that of its markers
    timeout_ms: int
    changed_ms: int  # wall time of the last change
    previous_id: ProducerId = NO_PRODUCER  # who the same producer was before, if it may not know better yet
    previous_epoch: int = NO_PRODUCER_EPOCH
    next_id: ProducerId = NO_PRODUCER  # when the end is complete: the old id has no epoch left
    partitions: Grouped = ()  # of the running transaction
    began_ms: int = -1  # wall time
    version: int = 1  # 2: the epoch went up with the end
    cause: Cause = Cause.CLIENT  # of the end
    holder: str = ""  # the sink that alone may end the running transaction

    @property
    def identity(self) -> Identity:
        return Identity(self.producer_id, self.epoch)

    @property
    def previous(self) -> Identity:
        return Identity(self.previous_id, self.previous_epoch)

    @property
    def successor(self) -> Identity:
        """Who writes the next transaction."""
        return self.identity if self.next_id == NO_PRODUCER else Identity(self.next_id, 0)

    @property
    def partition_set(self) -> Partitions:
        return ungrouped(self.partitions)


_encoder = msgspec.msgpack.Encoder(uuid_format="bytes")
_decoder = msgspec.msgpack.Decoder(Transaction)


def encode_key(transactional_id: str) -> bytes:
    return _encoder.encode((TRANSACTION, transactional_id))


def encode_value(transaction: Transaction) -> bytes:
    return _encoder.encode(transaction)


def decode(key: bytes, value: bytes | None) -> tuple[str, Transaction | None] | None:
    """One record as it was written; None if its kind is unknown: a newer broker wrote it and can do without us."""
    try:
        parts = msgspec.msgpack.decode(key)
        if parts[0] != TRANSACTION:
            return None
        _, transactional_id = parts
        return str(transactional_id), None if value is None else _decoder.decode(value)
    except FOREIGN as problem:
        raise RecordUnreadable(
            f"transaction record with key {key[:64].hex()} can't be read: {problem}; was it written by a newer Runnel?"
        ) from None
