"""Brokers whose Python leaves docstrings and assertions out (-OO, PYTHONOPTIMIZE=2) start, and serve every door."""

from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer
from tests.conftest import cluster_broker
from tests.doors.http.api import Api

from runnel.testing.process import BrokerProcess
from runnel.testing.zookeeper import ZooKeeper

LIMIT_S = 60.0
OPTIMIZED = {"PYTHONOPTIMIZE": "2"}


@pytest.fixture(params=["alone", "cluster"])
def optimized(request: pytest.FixtureRequest, tmp_path: Path) -> BrokerProcess:
    if request.param == "alone":
        return BrokerProcess(tmp_path / "data", environment=OPTIMIZED)
    zookeeper: ZooKeeper = request.getfixturevalue("zookeeper")
    return cluster_broker(zookeeper, tmp_path, 1, **OPTIMIZED)


def produce(broker: BrokerProcess, value: bytes) -> None:
    producer = Producer({"bootstrap.servers": broker.kafka, "enable.idempotence": True})
    producer.produce("orders", value)
    assert producer.flush(LIMIT_S) == 0


def consume(broker: BrokerProcess, count: int) -> list[bytes | None]:
    settings = {"bootstrap.servers": broker.kafka, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer(settings)
    consumer.subscribe(["orders"])
    found: list[bytes | None] = []
    while len(found) < count:
        message = consumer.poll(LIMIT_S)
        assert message is not None
        assert message.error() is None
        found.append(message.value())
    consumer.close()
    return found


def test_a_broker_needs_no_docstrings(optimized: BrokerProcess) -> None:
    with optimized as broker:
        produce(broker, b"one")
        assert consume(broker, 1) == [b"one"]
        api = Api(broker.http)
        api.ok("POST", "/send", {"from_user": "alice", "to_user": "bob", "message": "hello"})
        assert [one["message"] for one in api.ok("GET", "/receive?user_id=bob&wait_ms=30000")["messages"]] == ["hello"]
        api.ok("POST", "/v1/queues", {"name": "jobs"})
        api.ok("POST", "/v1/queues/jobs/messages", {"value": {"pay": 30}})
        [got] = api.ok("POST", "/v1/queues/jobs/receive?wait_ms=30000")["messages"]
        assert got["value"] == {"pay": 30}
        assert "/v1/topics/{topic}" in api.ok("GET", "/openapi.json")["paths"]
        assert b"/v1/topics/{topic}" in api.get("/docs").content
        assert b"runnel_" in api.get("/metrics").content
        assert broker.stop() == 0
        broker.start()
        produce(broker, b"two")
        assert consume(broker, 1) == [b"two"]
