"""When a message is due, by its headers."""

import pytest

from runnel.model.errors import InvalidRecord
from runnel.model.schedule import DUE_MS_MAX
from runnel.queues.delay import due_of, waiting_headers
from runnel.record.records import Headers

NOW = 1_900_000_000_000


def at(text: str) -> Headers:
    return (("runnel-deliver-at", text.encode()),)


def delay(text: str) -> Headers:
    return (("runnel-delay-ms", text.encode()),)


@pytest.mark.parametrize(
    ("headers", "due"),
    [
        ((), None),
        ((("other", b"1"),), None),
        (delay("1500"), NOW + 1500),
        (delay("0"), None),
        (at(str(NOW + 1)), NOW + 1),
        (at(str(NOW)), None),
        (at("1"), None),
        (at("2030-03-17T17:46:41Z"), 1_900_000_001_000),
        (at("2030-03-17T18:46:40.250+01:00"), 1_900_000_000_250),
        ((*at(str(NOW + 7)), *delay("9")), NOW + 7),
        ((*delay("1"), *delay("2")), NOW + 2),
        (at(str(DUE_MS_MAX)), DUE_MS_MAX),
    ],
)
def test_a_time_or_a_delay(headers: Headers, due: int | None) -> None:
    assert due_of(headers, NOW) == due


@pytest.mark.parametrize(
    "headers",
    [
        delay(""), delay("-1"), delay("1.5"), delay("soon"), delay("9" * 30), delay("--5"), delay("9" * 5_000),
        at(""), at("--5"), at("²"), at("9" * 5_000),
        at("-5"), at("tomorrow"), at("2030-03-17"), at("2030-03-17T17:46:41"), at(str(DUE_MS_MAX + 1)),
        (("runnel-deliver-at", b"\xff\xfe"),),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(headers: Headers) -> None:
    with pytest.raises(InvalidRecord):
        due_of(headers, NOW)


def test_a_message_that_waited_carries_its_time_and_no_delay() -> None:
    headers: Headers = (("a", b"1"), *delay("5"), ("b", None), *at("7"))
    kept = waiting_headers(headers, 99)
    assert kept == (("a", b"1"), ("b", None), ("runnel-deliver-at", b"99"))
    assert due_of(kept, 99) is None
