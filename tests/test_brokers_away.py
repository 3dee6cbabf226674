"""Three real brokers of which one is away: topics are made with its replicas out of sync, and it fills them later."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from tests.conftest import cluster_broker

from runnel.testing.process import BrokerProcess
from runnel.testing.zookeeper import ZooKeeper

LIMIT_S = 120.0


class Trio:
    """Brokers 1, 2 and 3, and a client of theirs."""

    def __init__(self, brokers: list[BrokerProcess]) -> None:
        self.brokers = brokers
        self.bootstrap = ",".join(broker.kafka for broker in brokers)
        self.admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})

    def alive(self) -> set[int]:
        return {*self.admin.list_topics(timeout=LIMIT_S).brokers}

    def partitions(self, topic: str) -> list[Any]:
        return [*self.admin.list_topics(topic, LIMIT_S).topics[topic].partitions.values()]

    def in_sync(self, topic: str) -> list[set[int]]:
        return [{*partition.isrs} for partition in self.partitions(topic)]

    def stop(self, number: int) -> None:
        self.brokers[number - 1].stop()
        eventually(lambda: number not in self.alive())

    def start(self, number: int) -> None:
        self.brokers[number - 1].start()
        eventually(lambda: number in self.alive())

    def create(self, topic: str, replicas: int, **config: str) -> None:
        self.admin.create_topics([NewTopic(topic, 3, replicas, config=config)])[topic].result(LIMIT_S)

    def send(self, topic: str, count: int) -> None:
        failed = []
        producer = Producer({"bootstrap.servers": self.bootstrap, "acks": "all", "log_level": 0})
        for number in range(count):
            producer.produce(
                topic, b"%d" % number, on_delivery=lambda error, _: failed.append(error) if error else None
            )
        assert producer.flush(LIMIT_S) == 0
        assert failed == []

    def read(self, topic: str, count: int) -> list[int]:
        consumer = Consumer(
            {
                "bootstrap.servers": self.bootstrap, "group.id": f"of-{topic}", "auto.offset.reset": "earliest",
                "log_level": 0, "allow.auto.create.topics": True,
            }
        )  # fmt: skip
        consumer.subscribe([topic])
        found: list[int] = []
        deadline = time.monotonic() + LIMIT_S
        while len(found) < count:
            assert time.monotonic() < deadline, found
            found += [int(message.value() or b"") for message in consumer.consume(count, 0.5) if not message.error()]
        consumer.close()
        return sorted(found)


def eventually(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.fixture
def own(zookeeper: ZooKeeper, tmp_path: Path) -> Iterator[Trio]:
    with ExitStack() as stack:
        yield Trio([stack.enter_context(cluster_broker(zookeeper, tmp_path, number)) for number in (1, 2, 3)])


def test_a_rolling_restart_in_which_clients_make_topics(own: Trio) -> None:
    for number in (3, 2, 1):
        own.stop(number)
        there = {1, 2, 3} - {number}
        topic = f"while-{number}-is-away"
        own.create(topic, 3, **{"min.insync.replicas": "2"})
        assert own.in_sync(topic) == [there] * 3
        assert all({*partition.replicas} == {1, 2, 3} for partition in own.partitions(topic))
        grown = own.admin.create_partitions([NewPartitions(topic, 4)])
        grown[topic].result(LIMIT_S)
        own.send(topic, 20)
        automatic = f"automatic-{number}"
        own.send(automatic, 5)
        assert own.read(topic, 20) == [*range(20)]  # through a group: __consumer_offsets is made while one is away
        own.start(number)
        for each in (topic, automatic, "__consumer_offsets"):
            eventually(lambda each=each: own.in_sync(each) == [{1, 2, 3}] * len(own.partitions(each)))  # type: ignore[misc]
    own.stop(1)  # what was made while broker 3 was away is whole without this one
    assert own.read("while-3-is-away", 0) == []
    own.send("while-3-is-away", 5)
