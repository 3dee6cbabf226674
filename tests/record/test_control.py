"""Markers of transactions, read by ourselves and by the parsers of real clients."""

import warnings
from typing import Any

import pytest
from aiokafka.record import MemoryRecords as AioRecords
from hypothesis import given
from hypothesis import strategies as st

from runnel.model.errors import InvalidRecord
from runnel.record import batch, records
from runnel.record.control import Marker, marker, marker_in, read_marker
from runnel.record.records import Record

with warnings.catch_warnings():  # kafka-python loads its schemas with a deprecated call
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.record import MemoryRecords as PythonRecords


@given(
    pid=st.integers(0, 2**63 - 1), epoch=st.integers(0, 2**15 - 1), commit=st.booleans(),
    coordinator=st.integers(0, 2**31 - 1), at=st.integers(0, 2**62),
)  # fmt: skip
def test_a_marker_says_what_it_was_made_of(pid: int, epoch: int, commit: bool, coordinator: int, at: int) -> None:
    made = marker(pid, epoch, commit=commit, coordinator_epoch=coordinator, timestamp_ms=at)
    header = batch.read_header(made)
    assert batch.intact(made, header)
    assert (header.producer_id, header.producer_epoch, header.base_sequence, header.count) == (pid, epoch, -1, 1)
    assert header.control
    assert header.transactional
    assert header.max_timestamp == at
    assert read_marker(made) == marker_in(bytes(made)) == Marker(commit, coordinator)


@pytest.mark.parametrize("parser", [AioRecords, PythonRecords])
@pytest.mark.parametrize(("commit", "kind"), [(True, 1), (False, 0)])
def test_real_clients_read_it(parser: Any, commit: bool, kind: int) -> None:
    made = marker(4711, 3, commit=commit, coordinator_epoch=9, timestamp_ms=1_700_000_000_000)
    batch.patch(made, 50, 2)
    read = parser(bytes(made)).next_batch()
    assert read.validate_crc()
    assert (read.is_control_batch, read.is_transactional) == (True, True)
    assert (read.producer_id, read.base_offset) == (4711, 50)
    (record,) = list(read)
    assert (record.offset, record.timestamp) == (50, 1_700_000_000_000)
    assert bytes(record.key) == bytes([0, 0, 0, kind])
    assert bytes(record.value) == bytes([0, 0, 0, 0, 0, 9])


def test_the_bytes_are_those_of_kafka() -> None:
    made = marker(1, 2, commit=False, coordinator_epoch=3, timestamp_ms=4)
    assert made[21:23] == b"\x00\x30"  # transactional and control
    assert made[61:] == bytes.fromhex("20 00 00 00 08 00000000 0c 000000000003 00")


def control(*found: tuple[bytes | None, bytes | None], is_control: bool = True) -> bytes:
    made = [Record(number, 0, key, value) for number, (key, value) in enumerate(found)]
    return records.encode(made, producer_id=1, producer_epoch=0, transactional=True, control=is_control)


COMMIT = (b"\x00\x00\x00\x01", b"\x00\x00\x00\x00\x00\x05")


@pytest.mark.parametrize(
    "no_marker",
    [
        control(COMMIT, is_control=False),
        control(COMMIT, COMMIT),
        control((b"\x00\x00\x00\x02", COMMIT[1])),  # a leader change
        control((None, COMMIT[1])),
        control((b"\x00\x00\x00", COMMIT[1])),
        control((COMMIT[0], None)),
        control((COMMIT[0], b"\x00\x00\x00\x00\x00")),
    ],
)
def test_what_is_no_marker_is_not_taken_for_one(no_marker: bytes) -> None:
    with pytest.raises(InvalidRecord):
        read_marker(no_marker)
    assert marker_in(no_marker) is None


def test_a_damaged_marker_is_none() -> None:
    made = marker(1, 2, commit=True, coordinator_epoch=3, timestamp_ms=4)
    for place in range(batch.CRC_STARTS, len(made)):
        damaged = bytearray(made)
        damaged[place] ^= 1
        assert marker_in(damaged) is None


def test_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert read_marker(control((b"\x00\x01\x00\x01more", b"\x00\x01\x00\x00\x00\x05more"))) == Marker(True, 5)
