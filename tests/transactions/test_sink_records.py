"""Records come back as they were written, and mean what docs/formats/sink-records.md says."""

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runnel.model.errors import RecordUnreadable
from runnel.model.sinks import Handle
from runnel.transactions.sink_records import (
    Attempt,
    Chosen,
    Head,
    Key,
    Phase,
    decode,
    encode_key,
    encode_value,
    handle_of,
    slot_of,
)

HEAD = Head("q", 6, 2_000, Phase.PUBLISHING, 7, (Chosen(0, 2**62, 3), Chosen(5, 12, 4)), True, True)
ATTEMPT = Attempt(7, 1, 2**33, 2**62, 3, 1_000)


def test_records_come_back() -> None:
    assert decode(encode_key(Key("clicks/ü")), encode_value(HEAD)) == (Key("clicks/ü"), HEAD)
    assert decode(encode_key(Key("clicks", 0)), encode_value(ATTEMPT)) == (Key("clicks", 0), ATTEMPT)
    assert decode(encode_key(Key("clicks", 0)), None) == (Key("clicks", 0), None)


def test_the_bytes_are_those_of_the_page() -> None:
    assert msgspec.msgpack.decode(encode_key(Key("clicks"))) == [1, "clicks"]
    assert msgspec.msgpack.decode(encode_key(Key("clicks", 5))) == [2, "clicks", 5]
    assert msgspec.msgpack.decode(encode_value(HEAD)) == [
        1, "q", 6, 2_000, 2, 7, [[0, 2**62, 3], [5, 12, 4]], True, True,
    ]  # fmt: skip
    assert msgspec.msgpack.decode(encode_value(ATTEMPT)) == [1, 7, 1, 2**33, 2**62, 3, 1_000]


def test_a_record_without_later_fields_is_read_and_one_with_more_of_them_too() -> None:
    short = msgspec.msgpack.encode([1, "", -1, 2_000])
    assert decode(encode_key(Key("s")), short) == (Key("s"), Head("", -1, 2_000))
    longer = [*msgspec.msgpack.decode(encode_value(ATTEMPT)), "new"]
    assert decode(encode_key(Key("s", 1)), msgspec.msgpack.encode(longer)) == (Key("s", 1), ATTEMPT)


def test_a_kind_that_nobody_knows_is_skipped_and_a_shape_that_nobody_knows_is_refused() -> None:
    assert decode(msgspec.msgpack.encode((9, "s", "more")), b"?") is None
    unknown = msgspec.msgpack.encode([9, "?"])
    for key, value in ((encode_key(Key("s")), unknown), (encode_key(Key("s", 1)), unknown), (b"\xc1", None)):
        with pytest.raises(RecordUnreadable, match="newer Runnel"):
            decode(key, value)


def test_a_handle_leads_back_to_its_slot() -> None:
    handle = handle_of("a/b", 12, ATTEMPT)
    assert handle == Handle("sink/a/b/12", 2**62, 3)
    assert slot_of("a/b", handle) == 12
    assert (slot_of("a", handle), slot_of("a/b", Handle("sink/a/b/x", 1, 1))) == (-1, -1)
    assert {slot_of("a/b", Handle(f"sink/a/b/{text}", 1, 1)) for text in ("-5", "²", "9" * 5_000)} == {-1}


@given(st.binary(max_size=40), st.none() | st.binary(max_size=80))
def test_garbage_is_refused_and_nothing_else(key: bytes, value: bytes | None) -> None:
    with suppress(RecordUnreadable):
        decode(key, value)
