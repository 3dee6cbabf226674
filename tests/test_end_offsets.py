"""Whoever asks where a partition ends is told an end that contains what was acknowledged before, also with acks=1.

The message is written then, and its sync has only begun: without the wait for it, nine of ten answers were behind.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka.admin
import pytest
from confluent_kafka import Consumer, IsolationLevel, Message, Producer, TopicPartition
from tests.doors.http.api import Api
from tests.test_replication import cluster_of, create, raw_produce

from runnel.client.metadata import TopicPartition as Place
from runnel.client.offsets import LATEST, list_offsets
from runnel.testing.process import BrokerProcess

LIMIT_S = 60.0
kinds: Any = confluent_kafka.admin  # its names are not typed as exported
NEWEST = kinds.OffsetSpec.max_timestamp()
ROUNDS = 20  # without the cure nearly each of them is behind


class Sender:
    """Sends with acks=1, one message after the other."""

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        self.broker = broker
        self.topic = topic
        self._producer = Producer({"bootstrap.servers": broker.kafka, "acks": 1, "linger.ms": 0, "log_level": 0})
        self.api = Api(broker.http)
        self.api.ok("POST", "/v1/topics", {"name": topic, "partitions": 1})

    def send(self, **message: Any) -> int:
        """The offset that was acknowledged."""
        told: list[Message] = []
        self._producer.produce(self.topic, b"x", partition=0, on_delivery=lambda _, sent: told.append(sent), **message)
        assert self._producer.flush(LIMIT_S) == 0
        offset = told[0].offset()
        assert offset is not None
        return offset


def reading(broker: BrokerProcess) -> dict[str, Any]:
    return {"bootstrap.servers": broker.kafka, "group.id": "g", "log_level": 0}


@pytest.fixture(name="broker")
def _broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with BrokerProcess(tmp_path / "data") as process:
        yield process


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_the_latest_offset_contains_what_was_acknowledged(broker: BrokerProcess, isolation: str) -> None:
    sender = Sender(broker, "t")
    consumer = Consumer({**reading(broker), "isolation.level": isolation})
    for _ in range(ROUNDS):
        offset = sender.send()
        assert consumer.get_watermark_offsets(TopicPartition("t", 0), LIMIT_S, cached=False)[1] == offset + 1
    consumer.close()


def test_a_message_that_was_acknowledged_is_found_by_its_time(broker: BrokerProcess) -> None:
    sender, admin = Sender(broker, "t"), kinds.AdminClient({"bootstrap.servers": broker.kafka, "log_level": 0})
    consumer = Consumer(reading(broker))
    where = TopicPartition("t", 0)
    for number in range(ROUNDS):
        offset = sender.send(timestamp=1_000 + number)
        [found] = consumer.offsets_for_times([TopicPartition("t", 0, 1_000 + number)], LIMIT_S)
        assert found.offset == offset
        offset = sender.send(timestamp=1_000 + number)
        newest = admin.list_offsets({where: NEWEST}, isolation_level=IsolationLevel.READ_COMMITTED)
        assert newest[where].result(LIMIT_S).offset == offset - 1  # the first of those with that time
        sender.send(timestamp=500_000 + number)
        assert admin.list_offsets({where: NEWEST})[where].result(LIMIT_S).offset == offset + 1
        sender.api.ok("DELETE", "/v1/topics/t")
        sender = Sender(broker, "t")
    consumer.close()


def test_records_can_be_deleted_up_to_what_was_acknowledged(broker: BrokerProcess) -> None:
    sender, admin = Sender(broker, "t"), kinds.AdminClient({"bootstrap.servers": broker.kafka, "log_level": 0})
    for _ in range(ROUNDS):
        for upto in (sender.send() + 1, -1):
            last = sender.send() if upto < 0 else upto - 1
            [deleted] = admin.delete_records([TopicPartition("t", 0, upto)]).values()
            assert deleted.result(LIMIT_S).low_watermark == last + 1


def test_topics_over_http_and_queues_end_behind_what_was_acknowledged(broker: BrokerProcess) -> None:
    sender = Sender(broker, "t")
    api = sender.api
    api.ok("POST", "/v1/queues", {"name": "t"})
    for number in range(ROUNDS):
        offset = sender.send()
        assert api.ok("GET", "/v1/topics/t")["partitions"][0]["end_offset"] == offset + 1
        sender.send()
        read = api.ok("GET", "/v1/topics/t/partitions/0/messages?offset=end")
        assert (read["messages"], read["next_offset"]) == ([], offset + 2)
        sender.send()
        assert api.ok("GET", "/v1/queues/t")["ready"] == 3
        sender.send()
        api.ok("POST", "/v1/queues/t/purge")
        assert api.ok("GET", "/v1/queues/t")["ready"] == 0
        sender.send()
        api.ok("POST", "/v1/queues", {"name": f"late-{number}", "settings": {"topic": "t", "start": "latest"}})
        assert api.ok("GET", f"/v1/queues/late-{number}")["ready"] == 0
        api.ok("POST", "/v1/queues/t/purge")


def test_the_latest_offset_of_a_replicated_partition_contains_what_was_acknowledged(tmp_path: Path) -> None:
    async def main() -> None:
        async with cluster_of(tmp_path) as brokers:
            await create(brokers, min_insync_replicas="2")
            async with brokers.client() as cluster:
                for number in range(ROUNDS):
                    await raw_produce(cluster, brokers.image().leader, b"x", acks=1)
                    found = await list_offsets(cluster, {Place("t", 0): LATEST})
                    assert found[Place("t", 0)].offset == number + 1

    asyncio.run(asyncio.wait_for(main(), LIMIT_S))
