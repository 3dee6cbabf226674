"""Copies tell the whole message and where it was first, and are made once by their name."""

from uuid import UUID

import pytest

from runnel.model import headers as h
from runnel.model.calls import Outgoing
from runnel.model.errors import InvalidRequest
from runnel.model.ids import PartitionKey, TopicId
from runnel.queues.expiry import expires_ms
from runnel.queues.letters import (
    ATTEMPTS_MAX,
    Edit,
    Origin,
    attempts_of,
    dead_letter,
    edit_of,
    going_back,
    header,
    merged,
    name_of_copy,
    number,
    origin_of,
    retry_copy,
)
from runnel.queues.receipts import read, written
from runnel.record.records import Record

KEY = PartitionKey(TopicId(UUID(int=1)), 3)
ORIGIN = Origin("orders", 3, 17, 1_000)


def message(*headers: tuple[str, bytes | None], value: bytes | None = b"v") -> Record:
    return Record(17, 1_000, b"k", value, headers)


def as_record(copy: Outgoing, offset: int = 5) -> Record:
    """The copy as it lies in its topic."""
    return Record(offset, 9_000, copy.key, copy.value, tuple(copy.headers))


def buried(record: Record, reason: str = "rejected", origin: Origin = ORIGIN) -> Outgoing:
    return dead_letter(record, origin, "dead:1", queue="q", reason=reason, attempts=3, now_ms=5_000)


def test_a_dead_letter_has_the_whole_message_and_tells_its_end() -> None:
    letter = buried(message(("a", b"1"), ("a", None)))
    headers = tuple(letter.headers)
    assert (letter.key, letter.value, letter.message_id, letter.timestamp_ms) == (b"k", b"v", "dead:1", None)
    assert headers[:2] == (("a", b"1"), ("a", None))
    assert origin_of(headers) == ORIGIN
    told = [header(headers, name) for name in (h.DEAD_QUEUE, h.DEAD_REASON, h.DEAD_AT, h.ATTEMPTS)]
    assert told == ["q", "rejected", "5000", "3"]


def test_a_copy_of_a_copy_tells_where_the_message_was_first() -> None:
    copy = retry_copy(message(), ORIGIN, "retry:1", attempts=2, due_ms=7_000)
    assert (copy.deliver_at_ms, attempts_of(tuple(copy.headers))) == (7_000, 2)
    letter = buried(as_record(copy), origin=Origin("q.retry", 0, 5, 9_000))
    assert origin_of(tuple(letter.headers)) == ORIGIN
    assert [name for name, _ in letter.headers].count(h.ATTEMPTS) == 1


def test_a_copy_lives_no_longer_than_the_message_and_a_dead_letter_is_as_the_message_was() -> None:
    sent = message((h.TTL_MS, b"500"))
    copy = as_record(retry_copy(sent, ORIGIN, "n", attempts=1, expires_ms=expires_ms(sent.headers, sent.timestamp)))
    assert expires_ms(copy.headers, copy.timestamp) == 1_500
    again = as_record(retry_copy(copy, ORIGIN, "n", attempts=2, expires_ms=expires_ms(copy.headers, copy.timestamp)))
    assert expires_ms(again.headers, again.timestamp) == 1_500
    back = as_record(going_back(as_record(buried(again)), "n", Edit()))
    assert expires_ms(back.headers, back.timestamp) == back.timestamp + 500, "a time to live begins anew"
    without = retry_copy(message(), ORIGIN, "n", attempts=1, expires_ms=expires_ms((), 1_000))
    assert header(tuple(without.headers), h.COPY_EXPIRES_AT) is None


@pytest.mark.parametrize("text", ["--1", "-", "²", "9" * 5_000])
def test_an_origin_that_no_number_tells_is_none(text: str) -> None:
    headers = ((h.ORIGIN_TOPIC, b"x"), (h.ORIGIN_PARTITION, text.encode()), (h.ORIGIN_OFFSET, b"3"))
    assert origin_of(headers) is None
    assert origin_of(tuple(buried(message(*headers)).headers)) == ORIGIN


@pytest.mark.parametrize(
    ("text", "attempts"), [("3", 3), ("-3", 0), ("--3", 0), ("99999999999", ATTEMPTS_MAX), ("9" * 5_000, 0)]
)
def test_attempts_are_no_more_than_a_receipt_can_tell(text: str, attempts: int) -> None:
    assert attempts_of(((h.ATTEMPTS, text.encode()),)) == attempts
    assert read(written(KEY, 5, attempts + 1, 1)).attempt == attempts + 1


def test_the_name_from_the_sender_is_told_but_names_no_copy() -> None:
    letter = buried(message((h.MESSAGE_ID, b"order-17")))
    assert header(tuple(letter.headers), h.MESSAGE_ID) is None
    assert header(tuple(letter.headers), h.ORIGIN_MESSAGE_ID) == "order-17"
    again = buried(as_record(letter))
    assert header(tuple(again.headers), h.ORIGIN_MESSAGE_ID) == "order-17"


def test_each_message_has_one_name_for_a_copy_until_the_queue_is_rewound() -> None:
    names = {
        name_of_copy(kind, queue, KEY, offset, generation)
        for kind in ("dead", "retry")
        for queue in ("a", "b")
        for offset in (1, 2)
        for generation in (0, 1)
    }
    assert len(names) == 16


def test_a_dead_letter_goes_back_as_the_message_it_was() -> None:
    back = going_back(as_record(buried(message(("a", b"1")))), "redrive:1", Edit())
    assert (back.key, back.value, back.message_id) == (b"k", b"v", "redrive:1")
    assert back.headers[0] == ("a", b"1")
    assert {name for name, _ in back.headers} == {"a", h.ORIGIN_TOPIC, h.ORIGIN_PARTITION, h.ORIGIN_OFFSET,
                                                  h.ORIGIN_TIMESTAMP}  # fmt: skip


def test_what_expired_does_not_expire_again_on_its_way_back() -> None:
    late = message((h.EXPIRES_AT, b"1500"))
    kept = [name for name, _ in going_back(as_record(buried(late)), "n", Edit()).headers]
    dropped = [name for name, _ in going_back(as_record(buried(late, "expired")), "n", Edit()).headers]
    assert (h.EXPIRES_AT in kept, h.EXPIRES_AT in dropped) == (True, False)


def test_headers_and_value_are_edited() -> None:
    letter = as_record(buried(message(("a", b"1"), ("b", b"2"), value=b'{"x":1,"y":{"z":2},"w":3}')))
    edit = edit_of({"a": "new"}, ["b"], "", '{"x":5,"y":{"q":1},"w":null}')
    back = going_back(letter, "n", edit)
    assert header(tuple(back.headers), "a") == "new"
    assert header(tuple(back.headers), "b") is None
    assert back.value == b'{"x":5,"y":{"z":2,"q":1}}'
    assert going_back(letter, "n", edit_of({}, [], "aGV5", "")).value == b"hey"
    assert going_back(letter, "n", edit_of({}, [], "", "", empties=True)).value == b""


@pytest.mark.parametrize("value", [b"\x00", b'{"a":"\xff"}', b"[" * 3_000 + b"]" * 3_000])
def test_a_merge_into_what_is_not_json_is_refused(value: bytes) -> None:
    with pytest.raises(InvalidRequest, match="offset 5"):
        going_back(as_record(buried(message(value=value))), "n", Edit(merge={"a": 1}))


@pytest.mark.parametrize(
    ("value", "merge", "headers"),
    [("%%%", "", {}), ("", "{", {}), ("", "[" * 3_000, {}), ("aGV5", "{}", {}), ("", "", {"runnel-x": "1"})],
)
def test_an_edit_that_makes_no_sense_is_refused(value: str, merge: str, headers: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        edit_of(headers, [], value, merge)


def test_the_last_of_several_headers_counts_and_numbers_are_numbers() -> None:
    headers = (("a", b"1"), ("a", b"2"), ("b", b"x"), ("c", None), ("d", "٣".encode()))
    assert (number(headers, "a"), number(headers, "b"), number(headers, "c"), number(headers, "d")) == (
        2, None, None, None,
    )  # fmt: skip
    assert merged([1], {"a": 1}) == {"a": 1}
    assert merged({"a": {"b": 1}}, {"a": [1]}) == {"a": [1]}


def test_a_merge_leaves_numbers_as_they_were_written() -> None:
    """No float holds them, or not exactly."""
    value = b'{"big":1e400,"price":1.10,"whole":18446744073709551616}'
    edit = edit_of({}, [], "", '{"rate": 0.10, "gone": null}')
    back = going_back(as_record(buried(message(value=value))), "n", edit)
    assert back.value == b'{"big":1e400,"price":1.10,"whole":18446744073709551616,"rate":0.10}'
