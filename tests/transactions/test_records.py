"""Records come back as they were written, and mean what docs/formats/transaction-records.md says."""

import uuid
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.model.errors import RecordUnreadable
from runnel.model.ids import NO_PRODUCER, ProducerId
from runnel.transactions.records import Transaction, decode, encode_key, encode_value
from runnel.transactions.values import Cause, Identity, State

TOPIC = uuid.UUID(int=7)
FULL = Transaction(
    State.PREPARE_ABORT, ProducerId(2**62), 32_767, 60_000, 2_000, ProducerId(3), 32_766, ProducerId(4),
    ((TOPIC, (0, 5)),), 1_000, 2, Cause.TIMED_OUT, "clicks",
)  # fmt: skip


def test_a_record_comes_back() -> None:
    assert decode(encode_key("täx"), encode_value(FULL)) == ("täx", FULL)
    assert decode(encode_key("täx"), None) == ("täx", None)


def test_the_bytes_are_those_of_the_page() -> None:
    assert msgspec.msgpack.decode(encode_key("tx")) == [1, "tx"]
    assert msgspec.msgpack.decode(encode_value(FULL)) == [
        1, 3, 2**62, 32_767, 60_000, 2_000, 3, 32_766, 4, [[TOPIC.bytes, [0, 5]]], 1_000, 2, 2, "clicks",
    ]  # fmt: skip


def test_a_record_without_later_fields_is_read_and_one_with_more_of_them_too() -> None:
    short = msgspec.msgpack.encode([1, 0, 5, 6, 60_000, 2_000])
    assert decode(encode_key("tx"), short) == ("tx", Transaction(State.EMPTY, ProducerId(5), 6, 60_000, 2_000))
    longer = [*msgspec.msgpack.decode(encode_value(FULL)), "new"]
    assert decode(encode_key("tx"), msgspec.msgpack.encode(longer)) == ("tx", FULL)


def test_a_kind_that_nobody_knows_is_skipped_and_a_shape_that_nobody_knows_is_refused() -> None:
    assert decode(msgspec.msgpack.encode((9, "tx", "more")), b"?") is None
    for key, value in ((encode_key("tx"), msgspec.msgpack.encode([9, "?"])), (b"\xc1", None), (encode_key("tx"), b"")):
        with pytest.raises(RecordUnreadable, match="newer Runnel"):
            decode(key, value)


def test_who_writes_next_is_the_same_producer_unless_its_epochs_have_run_out() -> None:
    assert FULL.successor == Identity(ProducerId(4), 0)
    assert msgspec.structs.replace(FULL, next_id=NO_PRODUCER).successor == FULL.identity


@given(st.binary(max_size=40), st.none() | st.binary(max_size=80))
def test_garbage_is_refused_and_nothing_else(key: bytes, value: bytes | None) -> None:
    with suppress(RecordUnreadable):
        decode(key, value)


def test_a_key_that_is_no_array_is_refused() -> None:
    with pytest.raises(RecordUnreadable, match="newer Runnel"):
        decode(msgspec.msgpack.encode({5: 1}), None)
