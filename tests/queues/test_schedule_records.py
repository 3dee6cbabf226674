"""The schedule's records, as bytes and as changes of an index."""

from contextlib import suppress
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.model.errors import RecordUnreadable
from runnel.model.ids import PartitionKey, TopicId
from runnel.model.schedule import Drop, Front, Move, Put
from runnel.queues.schedule_records import Kept, change_of, front_record, kept_of, message_record, tombstone

TARGET = PartitionKey(TopicId(UUID("00112233-4455-6677-8899-aabbccddeeff")), 258)
KEPT = Kept(5, 4, -2, b"k", None, [("h", b"v"), ("none", None)])
PREFIX = "00112233445566778899aabbccddeeff" + "00000102"


def test_the_bytes_are_as_the_format_says() -> None:
    key, value = message_record(TARGET, "é", KEPT)
    assert key.hex() == "00" + PREFIX + "c3a9"
    assert value is not None
    assert value.hex() == "96" + "05" + "04" + "fe" + "c4016b" + "c0" + "92" + "92a168c40176" + "92a46e6f6e65c0"
    assert tombstone(TARGET, "é") == (key, None)
    front, kept = front_record(TARGET, Front(9, 8))
    assert front.hex() == "01" + PREFIX
    assert kept is not None
    assert kept.hex() == "92" + "09" + "08"


def test_what_was_written_is_read_again() -> None:
    rows = [message_record(TARGET, "a", KEPT), tombstone(TARGET, "b"), front_record(TARGET, Front(9, 8))]
    rows.append(front_record(TARGET, None))
    found = [change_of(number + 10, key, value) for number, (key, value) in enumerate(rows)]
    assert found[1:] == [Drop(TARGET, "b"), Move(TARGET, Front(9, 8)), Move(TARGET, None)]
    put = found[0]
    assert isinstance(put, Put)
    assert put[:4] == (TARGET, "a", 5, 10)
    assert kept_of(put.body) == KEPT


FRONT, _ = front_record(TARGET, None)
MESSAGE, BODY = message_record(TARGET, "a", KEPT)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"a record without a key"),
        (b"", None),
        (MESSAGE[:20], BODY),
        (b"\x02" + MESSAGE[1:], BODY),
        (MESSAGE, b""),
        (MESSAGE, b"\xc1"),
        (MESSAGE + b"\xff", None),
        (FRONT, b"\x90"),
        message_record(TARGET, "a", Kept(1 << 63, 4, -2, b"k", None, [])),  # no index could hold it
        front_record(TARGET, Front(9, 1 << 63)),
    ],
)
def test_a_record_that_the_schedule_does_not_write_is_refused(key: bytes | None, value: bytes | None) -> None:
    with pytest.raises(RecordUnreadable):
        change_of(1, key, value)


@given(st.binary(max_size=60), st.none() | st.binary(max_size=80))
def test_garbage_is_refused_and_nothing_else(key: bytes, value: bytes | None) -> None:
    with suppress(RecordUnreadable):
        change_of(1, key, value)
