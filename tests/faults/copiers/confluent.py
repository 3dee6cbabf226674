"""confluent-kafka (librdkafka): the old protocol of transactions, offsets with the seat in the group (KIP-447)."""

from collections.abc import Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from tests.faults.copiers.work import Copier, CopyTask, Message, Output, run

QUICK = {"socket.timeout.ms": 4_000, "reconnect.backoff.max.ms": 500, "topic.metadata.refresh.interval.ms": 5_000}
CALL_S = 60


class Confluent(Copier):
    def __init__(self, task: CopyTask) -> None:
        super().__init__(task)
        self.producer: Any = Producer(
            {
                "bootstrap.servers": task.bootstrap, "transactional.id": task.transactional_id,
                "transaction.timeout.ms": task.timeout_ms, "linger.ms": 5, **QUICK,
            }
        )  # fmt: skip
        self.consumer: Any = Consumer(
            {
                "bootstrap.servers": task.bootstrap, "group.id": task.group, "enable.auto.commit": False,
                "auto.offset.reset": "earliest", "isolation.level": "read_committed", "session.timeout.ms": 6_000,
                "heartbeat.interval.ms": 500, "group.instance.id": task.transactional_id,
                "partition.assignment.strategy": "range", **QUICK,
            }
        )  # fmt: skip

    def open(self) -> None:
        self.producer.init_transactions(CALL_S)
        self.consumer.subscribe([self.task.source])

    def poll(self) -> list[Message]:
        found = []
        for message in self.consumer.consume(self.task.batch_max, 0.1):
            if message.error() is None:
                found.append(Message(message.partition(), message.offset(), message.value().decode()))
            elif message.error().fatal():
                raise KafkaException(message.error())
        return found

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, outputs: Sequence[Output]) -> None:
        failed: list[KafkaError] = []
        for output in outputs:
            self.producer.produce(
                self.task.target, output.value.encode(), output.key, output.partition,
                on_delivery=lambda error, _: failed.append(error) if error else None,
            )  # fmt: skip
        self.producer.flush(CALL_S)
        if failed:
            raise KafkaException(failed[0])

    def send_offsets(self, offsets: Mapping[int, int]) -> None:
        places = [TopicPartition(self.task.source, number, offset) for number, offset in offsets.items()]
        self.producer.send_offsets_to_transaction(places, self.consumer.consumer_group_metadata(), CALL_S)

    def commit(self) -> None:
        self.producer.commit_transaction(CALL_S)

    def abort(self) -> None:
        self.producer.abort_transaction(CALL_S)

    def rewind(self, offsets: Mapping[int, int]) -> None:
        for number, offset in offsets.items():
            self.consumer.seek(TopicPartition(self.task.source, number, offset))


if __name__ == "__main__":
    run(Confluent)
