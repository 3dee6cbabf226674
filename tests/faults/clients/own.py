"""Runnel's own client under load: a producer, a reader, a member of the classic group, and who looks at the groups."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from typing import Any

from tests.faults.clients.load import BACKOFF_S, COMMIT_S, Life, Stage, key, records_of, task_given

from runnel.client.cluster import Cluster, ClusterSettings
from runnel.client.consumer import Consumer, Message
from runnel.client.group_consumer import GroupConsumer, GroupConsumerSettings
from runnel.client.membership import GroupSettings
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import fetch_committed
from runnel.client.positions import From, Position, bounds
from runnel.client.producer import Delivery, Producer
from runnel.client.sender import ProducerSettings
from runnel.model.errors import RetriableError, RunnelError
from runnel.shell.clock import SystemClock
from runnel.shell.rng import SystemRng

QUICK = ClusterSettings(
    connect_timeout_ms=2_000, request_timeout_ms=4_000, retry_timeout_ms=10_000, backoff_ms_max=500,
    metadata_age_ms_max=5_000,
)  # fmt: skip
DELIVERY_MS = 600_000
LOOK_S = 2.0
ONE_TRY_MS = 1  # of a commit: what is not repeated can be judged more strictly


class Own:
    def __init__(self, stage: Stage) -> None:
        self.stage, self.task, self.journal = stage, stage.task, stage.journal
        self.places = [TopicPartition(self.task.topic, number) for number in range(self.task.partitions)]

    def cluster(self) -> Cluster:
        return Cluster(self.task.bootstrap.split(","), clock=SystemClock(), rng=SystemRng(), settings=QUICK)

    def role(self, work: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
        return lambda: asyncio.run(work())

    # --- sending
    async def produce(self) -> None:
        life = self.stage.life("own-producer")
        settings = ProducerSettings(request_timeout_ms=4_000, delivery_timeout_ms=DELIVERY_MS)
        producer = Producer(self.cluster(), settings)
        while not life.over:
            await self._send(producer, life)
            await asyncio.sleep(life.pause_s())
        if self.stage.over.is_set():
            await producer.close()

    async def _send(self, producer: Producer, life: Life) -> None:
        partition, value, body = life.message()
        try:
            delivery = await producer.send(self.task.topic, body, partition=partition)
        except RunnelError as error:
            self.journal.refused(value, certain=True, why=str(error))  # it did not get into a batch
            return
        delivery.add_done_callback(lambda: self._settled(value, delivery))

    def _settled(self, value: str, delivery: Delivery) -> None:
        try:
            offset = delivery.result().offset
        except RunnelError as error:
            self.journal.refused(value, certain=False, why=str(error))
        else:
            self.journal.acked(value, offset if offset >= 0 else None)

    # --- reading
    async def read(self) -> None:
        life, cluster = self.stage.life("own-reader"), self.cluster()
        consumer = Consumer(cluster)
        limits = await bounds(cluster, self.places)
        begin = {place: life.rng.randint(limit.start, limit.end) for place, limit in limits.items()}
        await consumer.assign({place: Position(From.OFFSET, offset) for place, offset in begin.items()})
        self.journal.assigned(life.process, {key(*place): offset for place, offset in consumer.positions.items()})
        while not life.over:
            begun = time.monotonic()
            self.journal.polled(life.process, found(await self._poll(consumer, life)), begun)
        await consumer.close()

    async def _poll(self, consumer: Consumer | GroupConsumer, life: Life) -> list[Message]:
        """What there is; a cluster that can't be reached for now is asked again."""
        try:
            return await consumer.poll(count_max=200, timeout_ms=300)
        except RetriableError as error:
            self.journal.trouble(life.process, str(error))
            await asyncio.sleep(BACKOFF_S)
            return []

    async def join(self) -> None:
        life, group = self.stage.life("own-member"), self.task.group
        seat = GroupSettings(session_timeout_ms=6_000, heartbeat_ms=500, assignors=("range",))
        consumer = GroupConsumer(self.cluster(), group, [self.task.topic], GroupConsumerSettings(seat, commit_ms=None))
        due, generation = 0.0, -1
        while not life.over:
            begun = time.monotonic()
            messages = await self._poll(consumer, life)
            seat_now = consumer.membership.generation
            if seat_now.id != generation:
                generation = seat_now.id
                self.journal.joined(group, seat_now.member_id, generation)
            self.journal.polled(
                life.process, found(messages), begun, group=group, member=seat_now.member_id, generation=generation
            )
            if time.monotonic() > due:
                await self._commit(consumer)
                due = time.monotonic() + COMMIT_S
        await consumer.close(commit=False)

    async def _commit(self, consumer: GroupConsumer) -> None:
        seat = consumer.membership.generation
        offsets = dict(consumer.positions)
        if not offsets or seat.id < 0:
            return
        named = {key(*place): offset for place, offset in offsets.items()}
        name = self.journal.commit(self.task.group, named, seat.member_id, seat.id)
        try:
            await consumer.commit(offsets, timeout_ms=ONE_TRY_MS)
        except RunnelError as error:
            self.journal.trouble("own-member", f"commit: {error}")
        else:
            self.journal.committed(name, once=True)

    async def look(self) -> None:
        """Read the groups' offsets again and again."""
        cluster = self.cluster()
        while not self.stage.over.is_set():
            for group in (self.task.group, self.task.modern_group):
                begun = time.monotonic()
                offsets = await fetch_committed(cluster, group)
                seen = {key(*place): committed.offset for place, committed in offsets.items()}
                self.journal.looked(group, seen, begun)
            await asyncio.sleep(LOOK_S)


def found(messages: list[Message]) -> dict[str, list[tuple[int, str]]]:
    return records_of((m.topic, m.partition, m.offset, m.value or b"") for m in messages)


def main() -> None:
    stage = Stage(task_given())
    client = Own(stage)
    roles = {"producer": client.produce, "reader": client.read, "member": client.join, "looker": client.look}
    stage.play({name: client.role(work) for name, work in roles.items()})


if __name__ == "__main__":
    main()
