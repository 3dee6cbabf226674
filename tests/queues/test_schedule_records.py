"""The schedule's records, as bytes and as changes of an index."""

from contextlib import suppress
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.model.errors import RecordUnreadable
from runnel.model.ids import PartitionKey, TopicId
from runnel.model.schedule import Drop, Front, Move, Put
from runnel.queues.schedule_records import (
    Kept,
    cancellation,
    change_of,
    front_record,
    kept_of,
    message_record,
    tombstone,
)
from runnel.record.records import Headers

TARGET = PartitionKey(TopicId(UUID("00112233-4455-6677-8899-aabbccddeeff")), 258)
KEPT = Kept(5, 4, -2, b"k", None, [("h", b"v"), ("none", None)])
PREFIX = "00112233445566778899aabbccddeeff" + "00000102"


def test_the_bytes_are_as_the_format_says() -> None:
    key, value, _ = message_record(TARGET, "é", KEPT)
    assert key.hex() == "00" + PREFIX + "c3a9"
    assert value is not None
    assert value.hex() == "96" + "05" + "04" + "fe" + "c4016b" + "c0" + "92" + "92a168c40176" + "92a46e6f6e65c0"
    assert tombstone(TARGET, "é") == (key, None, ())
    assert cancellation(TARGET, "é", 258) == (key, None, (("cancelled", bytes.fromhex("0000000000000102")),))
    front, kept, _ = front_record(TARGET, Front(9, 8))
    assert front.hex() == "01" + PREFIX
    assert kept is not None
    assert kept.hex() == "92" + "09" + "08"


def test_what_was_written_is_read_again() -> None:
    rows = [message_record(TARGET, "a", KEPT), tombstone(TARGET, "b"), front_record(TARGET, Front(9, 8))]
    rows += [front_record(TARGET, None), cancellation(TARGET, "c", 7)]
    found = [change_of(number + 10, *row) for number, row in enumerate(rows)]
    assert found[1:] == [Drop(TARGET, "b"), Move(TARGET, Front(9, 8)), Move(TARGET, None), Drop(TARGET, "c", 7)]
    put = found[0]
    assert isinstance(put, Put)
    assert put[:4] == (TARGET, "a", 5, 10)
    assert kept_of(put.body) == KEPT


FRONT = front_record(TARGET, None).key
MESSAGE, BODY = message_record(TARGET, "a", KEPT)[:2]


@pytest.mark.parametrize(
    ("key", "value", "headers"),
    [
        (None, b"a record without a key", ()),
        (b"", None, ()),
        (MESSAGE[:20], BODY, ()),
        (b"\x02" + MESSAGE[1:], BODY, ()),
        (MESSAGE, b"", ()),
        (MESSAGE, b"\xc1", ()),
        (MESSAGE + b"\xff", None, ()),
        (MESSAGE, None, (("cancelled", b"no time"),)),
        (FRONT, b"\x90", ()),
        message_record(TARGET, "a", Kept(1 << 63, 4, -2, b"k", None, [])),  # no index could hold it
        front_record(TARGET, Front(9, 1 << 63)),
    ],
)
def test_a_record_that_the_schedule_does_not_write_is_refused(
    key: bytes | None, value: bytes | None, headers: Headers
) -> None:
    with pytest.raises(RecordUnreadable):
        change_of(1, key, value, headers)


@given(st.binary(max_size=60), st.none() | st.binary(max_size=80))
def test_garbage_is_refused_and_nothing_else(key: bytes, value: bytes | None) -> None:
    with suppress(RecordUnreadable):
        change_of(1, key, value)
