"""Runnel's own client: the new protocol of transactions (KIP-890) where the cluster has it, else the old one."""

import asyncio
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from tests.faults.clients.load import BACKOFF_S
from tests.faults.clients.own import QUICK
from tests.faults.copiers.work import Copier, CopyTask, Message, Output, run

from runnel.client.cluster import Cluster
from runnel.client.consumer import Message as Read
from runnel.client.group_consumer import GroupConsumer, GroupConsumerSettings
from runnel.client.membership import GroupSettings
from runnel.client.metadata import TopicPartition
from runnel.client.producer import Producer
from runnel.client.sender import ProducerSettings
from runnel.model.errors import RetriableError
from runnel.shell.clock import SystemClock
from runnel.shell.rng import SystemRng

T = TypeVar("T")
CALL_S = 60


class Own(Copier):
    """Its loop lives in a thread of its own, so that heartbeats go on between calls."""

    def __init__(self, task: CopyTask) -> None:
        super().__init__(task)
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.producer: Producer
        self.consumer: GroupConsumer

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, CALL_S), self.loop).result()

    def open(self) -> None:
        self._run(self._open())

    async def _open(self) -> None:
        task = self.task
        cluster = Cluster(task.bootstrap.split(","), clock=SystemClock(), rng=SystemRng(), settings=QUICK)
        settings = ProducerSettings(
            transactional_id=task.transactional_id, transaction_timeout_ms=task.timeout_ms, request_timeout_ms=4_000
        )
        self.producer = await Producer(cluster, settings).__aenter__()
        seat = GroupSettings(
            session_timeout_ms=6_000, heartbeat_ms=500, assignors=("range",), instance_id=task.transactional_id
        )
        member = GroupConsumerSettings(seat, commit_ms=None)
        self.consumer = GroupConsumer(cluster, task.group, [task.source], member)

    def poll(self) -> list[Message]:
        found = self._run(self._poll())
        return [Message(m.partition, m.offset, (m.value or b"").decode()) for m in found]

    async def _poll(self) -> list[Read]:
        """A poll gives what one answer of a broker holds: ask on while there is more."""
        try:
            found = await self.consumer.poll(count_max=self.task.batch_max, timeout_ms=100)
        except RetriableError:
            await asyncio.sleep(BACKOFF_S)
            return []
        while found and (left := self.task.batch_max - len(found)):
            more = await self.consumer.poll(count_max=left, timeout_ms=0)
            if not more:
                break
            found += more
        return found

    def begin(self) -> None:
        self._run(self.producer.begin())

    def send(self, outputs: Sequence[Output]) -> None:
        self._run(self._send(outputs))

    async def _send(self, outputs: Sequence[Output]) -> None:
        deliveries = [
            await self.producer.send(
                self.task.target, output.value.encode(), key=output.key, partition=output.partition
            )
            for output in outputs
        ]
        await self.producer.flush()
        for delivery in deliveries:
            await delivery

    def send_offsets(self, offsets: Mapping[int, int]) -> None:
        places = {TopicPartition(self.task.source, number): offset for number, offset in offsets.items()}
        self._run(self.producer.send_offsets(places, self.consumer.seat))

    def commit(self) -> None:
        self._run(self.producer.commit())

    def abort(self) -> None:
        self._run(self.producer.abort())

    def rewind(self, offsets: Mapping[int, int]) -> None:
        self._run(self.consumer.rewind())


if __name__ == "__main__":
    run(Own)
