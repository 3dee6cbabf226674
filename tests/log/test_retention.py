"""Why retention removed something, in words."""

from dataclasses import replace

import pytest

from runnel.log.retention import Expired
from runnel.model.topic_config import TopicConfig


@pytest.mark.parametrize(
    ("retention_ms", "words"),
    [(604_800_000, "7 d"), (3_600_000, "1 h"), (90_000, "90 s"), (120_000, "2 min"), (1_500, "1500 ms"), (0, "0 ms")],
)
def test_a_time_is_told_in_the_largest_unit_that_fits(retention_ms: int, words: str) -> None:
    config = replace(TopicConfig(), retention_ms=retention_ms)
    [reason] = Expired(too_old=3, newest_ms=1_700_000_000_000).reasons("orders-0", config)
    assert reason == (
        f"removed 3 segments of orders-0: newest message is of 2023-11-14 22:13 UTC, retention.ms is {words}"
    )


@pytest.mark.parametrize(("retention_bytes", "words"), [(2**30, "1 GiB"), (1_000, "1000 bytes"), (3 * 2**20, "3 MiB")])
def test_a_size_too(retention_bytes: int, words: str) -> None:
    config = replace(TopicConfig(), retention_bytes=retention_bytes)
    [reason] = Expired(too_much=1).reasons("orders-0", config)
    assert reason == f"removed 1 segment of orders-0: there was more than retention.bytes, {words}"


def test_nothing_removed_is_nothing_to_tell() -> None:
    assert list(Expired().reasons("orders-0", TopicConfig())) == []
