"""What becomes of messages that are lost."""

import json
import logging
from pathlib import Path

import pytest

from runnel.client.metadata import TopicPartition
from runnel.pipelines.connector.reading.losses import Losses
from runnel.pipelines.connector.reading.ranges import Lost
from runnel.pipelines.errors import DataLoss

LOST = Lost(TopicPartition("orders", 3), 5, 9)


def test_a_loss_ends_the_query_and_says_what_and_why() -> None:
    with pytest.raises(DataLoss, match=r"orders/3 from 5 to 9 \(expired\).*retention.*failOnDataLoss=false"):
        Losses(fail=True)(LOST)


def test_a_loss_is_a_row_that_is_written_once(tmp_path: Path) -> None:
    losses = Losses(fail=False, folder=str(tmp_path / "lost"))
    losses(LOST)
    losses(LOST)
    losses(Lost(TopicPartition("orders", 4), 7, -1, "gone"))
    rows = [json.loads(file.read_text()) for file in sorted((tmp_path / "lost").iterdir())]
    assert [(r["topic"], r["partition"], r["first"], r["end"], r["reason"]) for r in rows] == [
        ("orders", 3, 5, 9, "expired"),
        ("orders", 4, 7, -1, "gone"),
    ]


def test_a_loss_without_a_table_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        Losses(fail=False)(LOST)
    assert "orders/3 from 5 to 9" in caplog.text
