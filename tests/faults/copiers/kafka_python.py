"""kafka-python: the old protocol of transactions, offsets with the seat in the group (KIP-447)."""

from collections.abc import Mapping, Sequence
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.structs import OffsetAndMetadata
from tests.faults.copiers.work import Copier, CopyTask, Message, Output, run

QUICK = {"request_timeout_ms": 5_000, "metadata_max_age_ms": 5_000, "reconnect_backoff_max_ms": 500}
DELIVERY_MS, CALL_S = 20_000, 60


class KafkaPython(Copier):
    def __init__(self, task: CopyTask) -> None:
        super().__init__(task)
        servers = task.bootstrap.split(",")
        self.producer: Any = KafkaProducer(
            bootstrap_servers=servers, transactional_id=task.transactional_id, transaction_timeout_ms=task.timeout_ms,
            linger_ms=5, delivery_timeout_ms=DELIVERY_MS, **QUICK,
        )  # fmt: skip
        self.consumer: Any = KafkaConsumer(
            bootstrap_servers=servers, group_id=task.group, enable_auto_commit=False, auto_offset_reset="earliest",
            isolation_level="read_committed", session_timeout_ms=6_000, heartbeat_interval_ms=500,
            group_instance_id=task.transactional_id, **{**QUICK, "request_timeout_ms": 65_000},
        )  # fmt: skip

    def open(self) -> None:
        self.producer.init_transactions()
        self.consumer.subscribe([self.task.source])

    def poll(self) -> list[Message]:
        found = self.consumer.poll(timeout_ms=100, max_records=self.task.batch_max)
        return [Message(m.partition, m.offset, m.value.decode()) for batch in found.values() for m in batch]

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, outputs: Sequence[Output]) -> None:
        target = self.task.target
        futures = [
            self.producer.send(target, output.value.encode(), key=output.key, partition=output.partition)
            for output in outputs
        ]
        self.producer.flush(CALL_S)
        for future in futures:
            future.get(CALL_S)

    def send_offsets(self, offsets: Mapping[int, int]) -> None:
        places = {self._place(number): OffsetAndMetadata(offset, "", -1) for number, offset in offsets.items()}
        self.producer.send_offsets_to_transaction(places, self.consumer.group_metadata())

    def commit(self) -> None:
        self.producer.commit_transaction()

    def abort(self) -> None:
        self.producer.abort_transaction()

    def rewind(self, offsets: Mapping[int, int]) -> None:
        for number, offset in offsets.items():
            self.consumer.seek(self._place(number), offset)

    def _place(self, number: int) -> TopicPartition:
        return TopicPartition(self.task.source, number)


if __name__ == "__main__":
    run(KafkaPython)
