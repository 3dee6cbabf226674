"""What a foreign Kafka client reads of topics that Spark wrote."""

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
