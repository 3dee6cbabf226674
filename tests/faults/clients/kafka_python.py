"""kafka-python under load: an idempotent producer and a member of the classic group."""

import time
from contextlib import suppress
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError
from kafka.structs import OffsetAndMetadata
from tests.faults.clients.load import COMMIT_S, Life, Stage, key, records_of, task_given

QUICK = {"request_timeout_ms": 8_000, "reconnect_backoff_ms": 50, "reconnect_backoff_max_ms": 500}
DELIVERY_MS = 600_000
FLUSH_S = 60


class Revoked(ConsumerRebalanceListener):  # type: ignore[misc]
    """Forgets how far it read what it has no longer."""

    def __init__(self, read: dict[TopicPartition, int]) -> None:
        self._read = read

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._read.clear()

    def on_partitions_assigned(self, assigned: Any) -> None:
        """Nothing to do."""


class KafkaPython:
    def __init__(self, stage: Stage) -> None:
        self.stage, self.task, self.journal = stage, stage.task, stage.journal

    def produce(self) -> None:
        life = self.stage.life("kafka-python-producer")
        producer = KafkaProducer(
            bootstrap_servers=self.task.bootstrap.split(","), acks="all", enable_idempotence=True, linger_ms=5,
            delivery_timeout_ms=DELIVERY_MS, max_block_ms=10_000, **QUICK,
        )  # fmt: skip
        try:
            while not life.over:
                self._send(producer, life)
                time.sleep(life.pause_s())
            if self.stage.over.is_set():
                producer.flush(FLUSH_S)
        finally:
            producer.close(timeout=0 if not self.stage.over.is_set() else 5)

    def _send(self, producer: Any, life: Life) -> None:
        partition, value, body = life.message()
        try:
            future = producer.send(self.task.topic, body, partition=partition)
        except KafkaError as error:
            self.journal.refused(value, certain=False, why=repr(error))
            return
        future.add_callback(lambda placed: self.journal.acked(value, placed.offset if placed.offset >= 0 else None))
        future.add_errback(lambda error: self.journal.refused(value, certain=False, why=repr(error)))

    def join(self) -> None:
        life, read = self.stage.life("kafka-python-member"), dict[TopicPartition, int]()
        consumer = KafkaConsumer(
            bootstrap_servers=self.task.bootstrap.split(","), group_id=self.task.group, enable_auto_commit=False,
            auto_offset_reset="earliest", session_timeout_ms=6_000, heartbeat_interval_ms=500,
            partition_assignment_strategy=[RangePartitionAssignor], **{**QUICK, "request_timeout_ms": 65_000},
        )  # fmt: skip
        consumer.subscribe([self.task.topic], listener=Revoked(read))
        due = 0.0
        try:
            while not life.over:
                begun = time.monotonic()
                found = consumer.poll(timeout_ms=300, max_records=200)
                messages = [(m.topic, m.partition, m.offset, m.value) for batch in found.values() for m in batch]
                self.journal.polled(life.process, records_of(messages), begun, group=self.task.group)
                read.update({place: batch[-1].offset + 1 for place, batch in found.items() if batch})
                if read and time.monotonic() > due:
                    self._commit(consumer, life, read)
                    due = time.monotonic() + COMMIT_S
        finally:
            with suppress(KafkaError):
                consumer.close()

    def _commit(self, consumer: Any, life: Life, read: dict[TopicPartition, int]) -> None:
        offsets = dict(read)
        read.clear()
        named = {key(place.topic, place.partition): offset for place, offset in offsets.items()}
        name = self.journal.commit(self.task.group, named)
        try:
            consumer.commit({place: OffsetAndMetadata(offset, "", -1) for place, offset in offsets.items()})
        except KafkaError as error:
            self.journal.trouble(life.process, f"commit: {error!r}")
        else:
            self.journal.committed(name)


def main() -> None:
    stage = Stage(task_given())
    client = KafkaPython(stage)
    stage.play({"producer": client.produce, "member": client.join})


if __name__ == "__main__":
    main()
