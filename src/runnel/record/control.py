"""Control batches: the markers that end a transaction in a partition. Every consumer of the Kafka protocol reads them.

Rule 1: a marker is a batch of one record, transactional and control, with the producer's id and epoch and no sequence.
Rule 2: what is no readable marker is never taken for one: neither for a commit nor for an abort.

    key: version i16 = 0 | type i16: 0 abort, 1 commit        value: version i16 = 0 | coordinator epoch i32
"""

from struct import Struct
from typing import NamedTuple

from runnel.model.errors import InvalidRecord
from runnel.model.seams import Buffer
from runnel.record import records
from runnel.record.batch import CONTROL, intact, read_header
from runnel.record.records import Record

ABORT, COMMIT = 0, 1
_KEY = Struct(">hh")
_VALUE = Struct(">hi")


class Marker(NamedTuple):
    """How a transaction ended, and in which epoch of its coordinator that was decided."""

    commit: bool
    coordinator_epoch: int


def control_key(kind: int) -> bytes:
    return _KEY.pack(0, kind)


def marker(
    producer_id: int, epoch: int, *, commit: bool, coordinator_epoch: int, timestamp_ms: int
) -> bytearray:  # fmt: skip
    """The batch that ends the transaction of a producer, to be appended as any other."""
    key, value = control_key(COMMIT if commit else ABORT), _VALUE.pack(0, coordinator_epoch)
    return bytearray(
        records.encode(
            [Record(0, timestamp_ms, key, value)], producer_id=producer_id, producer_epoch=epoch, base_sequence=-1,
            transactional=True, control=True,
        )
    )  # fmt: skip


def read_marker(batch: Buffer) -> Marker:
    """What the control batch at the start of the buffer says; InvalidRecord if it is no marker.

    Later versions of key and value only add to what is read here.
    """
    found = records.decode(batch)
    if not read_header(batch).attributes & CONTROL or len(found) != 1:
        raise InvalidRecord(f"a batch of {len(found)} records is no marker of a transaction")
    key, value = found[0].key or b"", found[0].value or b""
    if len(key) < _KEY.size or len(value) < _VALUE.size or (kind := _KEY.unpack_from(key)[1]) not in (ABORT, COMMIT):
        raise InvalidRecord(f"a control record with key {key.hex()} and value {value.hex()} is no marker")
    return Marker(kind == COMMIT, _VALUE.unpack_from(value)[1])


def marker_in(batch: Buffer) -> Marker | None:
    """What a control batch that was stored says; None if it is damaged, or speaks of something else."""
    try:
        return read_marker(batch) if intact(batch, read_header(batch)) else None
    except InvalidRecord:
        return None
