"""What a foreign Kafka client reads of topics that Spark wrote."""

import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, Message, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

WAIT_S = 30.0
QUICK = {"fetch.wait.max.ms": 10, "enable.auto.commit": False}


def make_topic(brokers: str, name: str, partitions: int = 3) -> None:
    admin = AdminClient({"bootstrap.servers": brokers})
    admin.create_topics([NewTopic(name, partitions)])[name].result(WAIT_S)


def read_committed(brokers: str, topic: str) -> list[Message]:
    """All messages of a topic that are committed now, partition by partition, in order."""
    settings = {"group.id": "reading", "isolation.level": "read_committed", "enable.partition.eof": True, **QUICK}
    consumer = Consumer({"bootstrap.servers": brokers, **settings})
    try:
        partitions = consumer.list_topics(topic, WAIT_S).topics[topic].partitions
        return [message for number in partitions for message in _partition(consumer, topic, number)]
    finally:
        consumer.close()


def wait_until_written(brokers: str, topic: str) -> None:
    """Wait until there are messages, be they committed or not."""
    consumer = Consumer({"bootstrap.servers": brokers, "group.id": "reading", "isolation.level": "read_uncommitted"})
    try:
        partitions = consumer.list_topics(topic, WAIT_S).topics[topic].partitions
        end = time.monotonic() + WAIT_S
        while not any(consumer.get_watermark_offsets(TopicPartition(topic, n), WAIT_S)[1] for n in partitions):
            assert time.monotonic() < end, f"nothing was written to {topic}"
            time.sleep(0.05)
    finally:
        consumer.close()


def values(brokers: str, topic: str) -> list[str]:
    """The values of all committed messages, sorted."""
    return sorted((message.value() or b"").decode() for message in read_committed(brokers, topic))


def _partition(consumer: Consumer, topic: str, number: int) -> list[Message]:
    consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING)])
    found: list[Message] = []
    while (message := consumer.poll(WAIT_S)) is not None:
        if message.error() is not None:
            return found
        found.append(message)
    raise AssertionError(f"{topic}/{number} has no end")
