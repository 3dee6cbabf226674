"""A message says when it expires, as a moment or as a time to live."""

import pytest

from runnel.model import headers as h
from runnel.queues.expiry import NEVER, expires_ms


@pytest.mark.parametrize(
    ("headers", "moment"),
    [
        ((), NEVER),
        (((h.EXPIRES_AT, b"5000"),), 5_000),
        (((h.EXPIRES_AT, b"1970-01-01T00:00:07Z"),), 7_000),
        (((h.EXPIRES_AT, b"1970-01-01T00:00:07"),), 7_000),
        (((h.EXPIRES_AT, b"0"),), 1),
        (((h.TTL_MS, b"500"),), 1_500),
        (((h.TTL_MS, b"0"),), 1_000),
        (((h.TTL_MS, b"500"), (h.EXPIRES_AT, b"1200")), 1_200),
        (((h.TTL_MS, b"500"), (h.EXPIRES_AT, b"9999")), 1_500),
        (((h.TTL_MS, b"soon"), (h.EXPIRES_AT, b"tomorrow")), NEVER),
        (((h.TTL_MS, b"-1"),), NEVER),
        (((h.EXPIRES_AT, None),), NEVER),
        (((h.TTL_MS, b"--5"), (h.EXPIRES_AT, b"--5")), NEVER),
        (((h.TTL_MS, b"-"), (h.EXPIRES_AT, b"-")), NEVER),
        (((h.TTL_MS, "²".encode()), (h.EXPIRES_AT, "²".encode())), NEVER),
        (((h.TTL_MS, b"9" * 5_000), (h.EXPIRES_AT, b"9" * 5_000)), NEVER),
    ],
)
def test_when_a_message_expires(headers: tuple[tuple[str, bytes | None], ...], moment: int) -> None:
    assert expires_ms(headers, 1_000) == moment


def test_without_a_timestamp_a_time_to_live_says_nothing() -> None:
    assert expires_ms(((h.TTL_MS, b"500"),), -1) == NEVER
