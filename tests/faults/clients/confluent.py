"""confluent-kafka under load: an idempotent producer, a reader, and members of groups of both protocols."""

import time
from contextlib import suppress
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from tests.faults.clients.load import COMMIT_S, Life, Stage, key, records_of, task_given

# Impatience, so that a broker that hangs is given up within seconds; and no end of patience with the cluster.
QUICK = {
    "socket.timeout.ms": 4_000, "reconnect.backoff.ms": 50, "reconnect.backoff.max.ms": 500, "log_level": 0,
    "topic.metadata.refresh.interval.ms": 5_000, "socket.connection.setup.timeout.ms": 2_000,
}  # fmt: skip
DELIVERY_MS = 600_000
FLUSH_S = 60
GRAVE = (KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET)  # something that was there is not


class Confluent:
    def __init__(self, stage: Stage) -> None:
        self.stage, self.task, self.journal = stage, stage.task, stage.journal

    def _settings(self, **more: Any) -> dict[str, Any]:
        return {"bootstrap.servers": self.task.bootstrap, **QUICK, **more}

    # --- sending
    def produce(self) -> None:
        life = self.stage.life("confluent-producer")
        sure = {"enable.idempotence": True, "acks": "all"}
        patient = {"message.timeout.ms": DELIVERY_MS, "request.timeout.ms": 4_000, "retry.backoff.max.ms": 500}
        stock = {"bootstrap.servers": self.task.bootstrap, "log_level": 0, **sure}
        producer = Producer(stock if self.task.stock else self._settings(**sure, **patient))
        while not life.over:
            self._send(producer, life)
            producer.poll(life.pause_s())
        if self.stage.over.is_set():
            producer.flush(FLUSH_S)
        else:
            producer.purge()  # thrown away with what it still had to send
            producer.flush(1)

    def _send(self, producer: Any, life: Life) -> None:
        partition, value, body = life.message()

        def delivered(error: KafkaError | None, message: Any) -> None:
            if error is None:
                self.journal.acked(value, message.offset())
            else:
                self.journal.refused(value, certain=False, why=str(error))

        try:
            producer.produce(self.task.topic, body, partition=partition, on_delivery=delivered)
        except BufferError:
            self.journal.refused(value, certain=True, why="the queue is full")
            producer.poll(0.5)

    # --- reading alone
    def read(self) -> None:
        life = self.stage.life("confluent-reader")
        consumer = Consumer(self._settings(**{"group.id": life.process, "auto.offset.reset": "error"}))
        try:
            places = [self._begin(consumer, life, number) for number in range(self.task.partitions)]
            consumer.assign(places)
            self.journal.assigned(life.process, {key(place.topic, place.partition): place.offset for place in places})
            while not life.over:
                begun = time.monotonic()
                self.journal.polled(life.process, records_of(self._consume(consumer)), begun)
        finally:
            consumer.close()

    def _begin(self, consumer: Any, life: Life, number: int) -> TopicPartition:
        place = TopicPartition(self.task.topic, number)
        low, high = consumer.get_watermark_offsets(place, 10)
        place.offset = life.rng.randint(low, max(low, high))
        return place

    def _consume(self, consumer: Any) -> list[tuple[str, int, int, bytes]]:
        messages = consumer.consume(200, 0.2)
        for error in [message.error() for message in messages if message.error() is not None]:
            if error.fatal() or error.code() in GRAVE:
                raise KafkaException(error)
            self.journal.trouble("confluent", str(error))  # for information: the client goes on by itself
        return [(m.topic(), m.partition(), m.offset(), m.value()) for m in messages if m.error() is None]

    # --- reading together
    def join(self) -> None:
        classic = {"session.timeout.ms": 6_000, "heartbeat.interval.ms": 500, "partition.assignment.strategy": "range"}
        self._be_member("confluent-member", self.task.group, classic)

    def join_modern(self) -> None:
        self._be_member("confluent-modern", self.task.modern_group, {"group.protocol": "consumer"})

    def join_modern_too(self) -> None:
        self._be_member("confluent-modern-too", self.task.modern_group, {"group.protocol": "consumer"})

    def _be_member(self, role: str, group: str, protocol: dict[str, Any]) -> None:
        life = self.stage.life(role)
        own = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False, **protocol}
        consumer, read = Consumer(self._settings(**own)), dict[str, TopicPartition]()
        rebalances = 0

        def revoked(_: Any, places: list[TopicPartition]) -> None:
            nonlocal rebalances
            rebalances += 1
            read.clear()  # whoever gets them now says how far

        consumer.subscribe([self.task.topic], on_revoke=revoked, on_lost=revoked)
        due = 0.0
        try:
            while not life.over:
                begun, before = time.monotonic(), rebalances
                messages = self._consume(consumer)
                for batch in [messages] if rebalances == before else [[message] for message in messages]:
                    self.journal.polled(life.process, records_of(batch), begun, group=group)
                for topic, partition, offset, _ in messages if rebalances == before else []:
                    read[key(topic, partition)] = TopicPartition(topic, partition, offset + 1)
                if read and time.monotonic() > due:
                    self._commit(consumer, life, group, read)
                    due = time.monotonic() + COMMIT_S
        finally:
            with suppress(KafkaException):
                consumer.close()

    def _commit(self, consumer: Any, life: Life, group: str, read: dict[str, TopicPartition]) -> None:
        places = list(read.values())
        read.clear()
        name = self.journal.commit(group, {key(place.topic, place.partition): place.offset for place in places})
        try:
            answers = consumer.commit(offsets=places, asynchronous=False)
        except KafkaException as error:
            self.journal.trouble(life.process, f"commit: {error}")
            return
        if all(answer.error is None for answer in answers):
            self.journal.committed(name)


def main() -> None:
    stage = Stage(task_given())
    client = Confluent(stage)
    stage.play(
        {
            "producer": client.produce, "reader": client.read, "member": client.join,
            "modern": client.join_modern, "modern-too": client.join_modern_too,
        }
    )  # fmt: skip


if __name__ == "__main__":
    main()
