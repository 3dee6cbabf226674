"""Retention on a real broker: when it looks, and what it says of what it removed."""

import time
from pathlib import Path
from typing import Any

import confluent_kafka.admin
from confluent_kafka import Producer

from runnel.testing.process import BrokerProcess

kinds: Any = confluent_kafka.admin  # its names are not typed as exported
LIMIT_S = 60.0
NOVEMBER_2023 = 1_700_000_000_000


def test_messages_with_old_timestamps_are_removed_with_a_reason(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data", environment={"RUNNEL_RETENTION_CHECK_MS": "200"}) as broker:
        producer = Producer({"bootstrap.servers": broker.kafka, "log_level": 0})
        for number in range(3):
            producer.produce("backfill", b"x", partition=0, timestamp=NOVEMBER_2023 + number)
        assert producer.flush(LIMIT_S) == 0
        reason = "removed 1 segment of backfill-0: newest message is of 2023-11-14 22:13 UTC, retention.ms is 7 d"
        end = time.monotonic() + LIMIT_S
        while reason not in broker.errors():
            assert time.monotonic() < end, broker.errors()
            time.sleep(0.05)


def test_retention_looks_as_often_as_kafkas_unless_told_otherwise(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "data") as broker:
        resource = kinds.ConfigResource(kinds.ConfigResource.Type.BROKER, "1")
        admin = kinds.AdminClient({"bootstrap.servers": broker.kafka, "log_level": 0})
        settings = admin.describe_configs([resource])[resource].result(LIMIT_S)
        assert settings["log.retention.check.interval.ms"].value == "300000"
