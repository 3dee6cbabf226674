"""aiokafka: the old protocol; it can't name its seat in the group, so each worker reads partitions of its own.

The transactional id stands for these partitions: whoever takes it over fences whoever had it, as before KIP-447.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from tests.faults.copiers.work import Copier, CopyTask, Message, Output, run

T = TypeVar("T")
TIMEOUT_MS, CALL_S = 10_000, 60


class Aio(Copier):
    def __init__(self, task: CopyTask) -> None:
        super().__init__(task)
        self.loop = asyncio.new_event_loop()
        self.producer: Any = None
        self.consumer: Any = None
        self.places = [TopicPartition(task.source, number) for number in task.mine]

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, CALL_S))

    def open(self) -> None:
        self._run(self._open())

    async def _open(self) -> None:
        task = self.task
        self.producer = AIOKafkaProducer(
            bootstrap_servers=task.bootstrap, transactional_id=task.transactional_id,
            transaction_timeout_ms=task.timeout_ms, request_timeout_ms=TIMEOUT_MS, metadata_max_age_ms=5_000,
        )  # fmt: skip
        await self.producer.start()
        self.consumer = AIOKafkaConsumer(
            bootstrap_servers=task.bootstrap, group_id=task.group, enable_auto_commit=False,
            auto_offset_reset="earliest", isolation_level="read_committed", request_timeout_ms=TIMEOUT_MS,
            metadata_max_age_ms=5_000,
        )  # fmt: skip
        await self.consumer.start()
        self.consumer.assign(self.places)

    def poll(self) -> list[Message]:
        found = self._run(self.consumer.getmany(timeout_ms=100, max_records=self.task.batch_max))
        return [Message(m.partition, m.offset, m.value.decode()) for batch in found.values() for m in batch]

    def begin(self) -> None:
        self._run(self.producer.begin_transaction())

    def send(self, outputs: Sequence[Output]) -> None:
        self._run(self._send(outputs))

    async def _send(self, outputs: Sequence[Output]) -> None:
        futures = [
            await self.producer.send(
                self.task.target, output.value.encode(), key=output.key, partition=output.partition
            )
            for output in outputs
        ]
        await asyncio.gather(*futures)

    def send_offsets(self, offsets: Mapping[int, int]) -> None:
        places = {TopicPartition(self.task.source, number): offset for number, offset in offsets.items()}
        self._run(self.producer.send_offsets_to_transaction(places, self.task.group))

    def commit(self) -> None:
        self._run(self.producer.commit_transaction())

    def abort(self) -> None:
        self._run(self.producer.abort_transaction())

    def rewind(self, offsets: Mapping[int, int]) -> None:
        for number, offset in offsets.items():
            self.consumer.seek(TopicPartition(self.task.source, number), offset)


if __name__ == "__main__":
    run(Aio)
