"""aiokafka under load: an idempotent producer and a member of the classic group, each on a loop of its own."""

import asyncio
import time
from contextlib import suppress
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.errors import KafkaError
from tests.faults.clients.load import COMMIT_S, Life, Stage, key, records_of, task_given

TIMEOUT_MS = 20_000  # of a request, and of a message that waits to be sent
STOP_S = 60


class Revoked(ConsumerRebalanceListener):  # type: ignore[misc]
    """Forgets how far it read what it has no longer."""

    def __init__(self, read: dict[TopicPartition, int]) -> None:
        self._read = read

    def on_partitions_revoked(self, revoked: Any) -> None:
        self._read.clear()

    def on_partitions_assigned(self, assigned: Any) -> None:
        """Nothing to do."""


class Aio:
    def __init__(self, stage: Stage) -> None:
        self.stage, self.task, self.journal = stage, stage.task, stage.journal

    def produce(self) -> None:
        asyncio.run(self._produce())

    async def _produce(self) -> None:
        life = self.stage.life("aiokafka-producer")
        quick = {} if self.task.stock else {"request_timeout_ms": TIMEOUT_MS, "metadata_max_age_ms": 5_000}
        producer = AIOKafkaProducer(bootstrap_servers=self.task.bootstrap, acks="all", enable_idempotence=True, **quick)
        await producer.start()
        try:
            while not life.over:
                await self._send(producer, life)
                await asyncio.sleep(life.pause_s())
        finally:
            await asyncio.wait_for(producer.stop(), STOP_S)  # sends what it still has

    async def _send(self, producer: Any, life: Life) -> None:
        partition, value, body = life.message()
        try:
            future = await producer.send(self.task.topic, body, partition=partition)
        except KafkaError as error:
            self.journal.refused(value, certain=False, why=repr(error))
            return
        future.add_done_callback(lambda done: self._settled(value, done))

    def _settled(self, value: str, done: Any) -> None:
        if done.cancelled() or done.exception() is not None:
            self.journal.refused(value, certain=False, why="cancelled" if done.cancelled() else repr(done.exception()))
        else:
            self.journal.acked(value, done.result().offset)

    def join(self) -> None:
        asyncio.run(self._join())

    async def _join(self) -> None:
        life, read = self.stage.life("aiokafka-member"), dict[TopicPartition, int]()
        consumer = AIOKafkaConsumer(
            bootstrap_servers=self.task.bootstrap, group_id=self.task.group, enable_auto_commit=False,
            auto_offset_reset="earliest", session_timeout_ms=6_000, heartbeat_interval_ms=500,
            partition_assignment_strategy=[RangePartitionAssignor], metadata_max_age_ms=5_000,
            request_timeout_ms=TIMEOUT_MS,
        )  # fmt: skip
        consumer.subscribe([self.task.topic], listener=Revoked(read))
        await consumer.start()
        due = 0.0
        try:
            while not life.over:
                begun = time.monotonic()
                found = await consumer.getmany(timeout_ms=300, max_records=200)
                messages = [(m.topic, m.partition, m.offset, m.value) for batch in found.values() for m in batch]
                self.journal.polled(life.process, records_of(messages), begun, group=self.task.group)
                read.update({place: batch[-1].offset + 1 for place, batch in found.items() if batch})
                if read and time.monotonic() > due:
                    await self._commit(consumer, life, read)
                    due = time.monotonic() + COMMIT_S
        finally:
            with suppress(KafkaError, TimeoutError):
                await asyncio.wait_for(consumer.stop(), STOP_S)

    async def _commit(self, consumer: Any, life: Life, read: dict[TopicPartition, int]) -> None:
        offsets = dict(read)
        read.clear()
        named = {key(place.topic, place.partition): offset for place, offset in offsets.items()}
        name = self.journal.commit(self.task.group, named)
        try:
            await consumer.commit(offsets)
        except KafkaError as error:
            self.journal.trouble(life.process, f"commit: {error!r}")
        else:
            self.journal.committed(name)


def main() -> None:
    stage = Stage(task_given())
    client = Aio(stage)
    stage.play({"producer": client.produce, "member": client.join})


if __name__ == "__main__":
    main()
