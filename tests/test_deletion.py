"""Topics that are deleted while they are written to, read, compacted and retained: the broker goes on."""

import random
import threading
from contextlib import suppress
from pathlib import Path

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tests.test_replication import LIMIT_S

from runnel.testing.process import BrokerProcess

TOPICS, PARTITIONS, MESSAGES = 60, 4, 400
SETTINGS = {  # there is always something to compact and to retain
    "cleanup.policy": "compact,delete", "min.cleanable.dirty.ratio": "0.01", "segment.ms": "1000",
    "retention.ms": "1500",
}  # fmt: skip

ALWAYS = {"RUNNEL_HOUSEKEEPING_MS": "100", "RUNNEL_RETENTION_CHECK_MS": "100"}


class Readers:
    """They read the newest topic, from anywhere and by time, and do not mind that it goes."""

    def __init__(self, broker: BrokerProcess, count: int) -> None:
        self.topic = ""
        self._over = threading.Event()
        self._settings = {"bootstrap.servers": broker.kafka, "group.id": "g", "log_level": 0}
        self._threads = [threading.Thread(target=self._read, args=(number,)) for number in range(count)]

    def __enter__(self) -> "Readers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _read(self, seed: int) -> None:
        chance, consumer = random.Random(seed), Consumer({**self._settings, "auto.offset.reset": "earliest"})
        while not self._over.is_set():
            with suppress(KafkaException):
                consumer.assign([TopicPartition(self.topic, n, chance.randrange(50)) for n in range(PARTITIONS)])
                consumer.consume(50, 0.02)
                times = [TopicPartition(self.topic, n, chance.randrange(5_000)) for n in range(PARTITIONS)]
                consumer.offsets_for_times(times, 1)
        consumer.close()


def test_topics_that_are_deleted_while_all_work_on_them_end_no_broker(tmp_path: Path) -> None:
    """Retention used to come after the deletion, and to end the broker because the folder was not there."""
    with BrokerProcess(tmp_path / "data", environment=ALWAYS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.kafka, "log_level": 0})
        producer = Producer({"bootstrap.servers": broker.kafka, "acks": 1, "linger.ms": 0, "log_level": 0})
        with Readers(broker, 3) as readers:
            for number in range(TOPICS):
                topic = f"t{number}"
                admin.create_topics([NewTopic(topic, PARTITIONS, 1, config=SETTINGS)])[topic].result(LIMIT_S)
                readers.topic = topic
                for key in range(MESSAGES):
                    producer.produce(
                        topic, b"x" * 500, b"%d" % (key % 7), partition=key % PARTITIONS, timestamp=1_000 + key
                    )
                producer.flush(LIMIT_S)
                admin.delete_topics([topic])[topic].result(LIMIT_S)
        assert broker.process.poll() is None
        assert "ERROR" not in broker.errors()
        assert "CRITICAL" not in broker.errors()
