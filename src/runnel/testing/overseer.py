"""Waits at the end of a simulation until the queue is empty, and reads what died in it."""

import asyncio
from collections.abc import Sequence

from runnel.client.calls import call
from runnel.client.cluster import Cluster
from runnel.client.consumer import Consumer
from runnel.client.metadata import TopicPartition
from runnel.client.positions import START, bounds
from runnel.model import headers as h
from runnel.model.calls import QUEUE_DESCRIBE, SCHEDULE_COUNT, CountPending, NamedQueue
from runnel.model.errors import RunnelError, UnknownTopic
from runnel.testing.jobs import DEAD, JOBS, RETRY
from runnel.testing.loop import Host
from runnel.testing.node import SimBroker
from runnel.testing.workload import Client, Stage


class Overseer:
    """`left` says what is not done yet."""

    def __init__(self, stage: Stage, brokers: Sequence[SimBroker], host: Host) -> None:
        self._stage = stage
        self._brokers = brokers
        self._host = host
        self.left = ""

    async def run(self) -> None:
        await self._host.start(self._run)

    async def _run(self) -> None:
        cluster = Client(self._stage, self._host, 0).cluster()
        while True:
            try:
                self.left = await self._what_is_left(cluster)
                if not self.left:
                    self._stage.history.queue.dead = await self._dead(cluster)
                    return
            except RunnelError as error:
                self.left = f"{type(error).__name__}: {error}"
            await asyncio.sleep(0.5)

    async def _what_is_left(self, cluster: Cluster) -> str:
        described = await call(cluster, QUEUE_DESCRIBE, NamedQueue(JOBS))
        for state in described.partitions:
            if state.failure is not None or state.first_open < state.end:
                return str(state)
        return self._leaving() or await self._not_due(cluster)

    async def _not_due(self, cluster: Cluster) -> str:
        try:
            pending = await call(cluster, SCHEDULE_COUNT, CountPending(RETRY))
        except UnknownTopic:
            return ""  # nobody had to wait
        return f"{pending.messages} copies are not due yet" if pending.messages else ""

    def _leaving(self) -> str:
        """Who has left, and is not known to have arrived: nobody tells, so look."""
        for broker in self._brokers:
            if not broker.up or broker.server is None:
                return f"{broker.host.name} is away"
            for outlet in broker.server.broker.deliveries:
                if not outlet.shard.loaded or outlet.machine._outbox.messages:
                    return f"{outlet.machine._outbox.messages} messages leave {outlet.partition.name}"
        return ""

    async def _dead(self, cluster: Cluster) -> list[tuple[str, int]]:
        """Values and attempts of all that died."""
        topics = (await cluster.view([DEAD])).topics
        if DEAD not in topics:
            return []
        keys = [TopicPartition(DEAD, number) for number in range(len(topics[DEAD].partitions))]
        limits = await bounds(cluster, keys)
        consumer = Consumer(cluster)
        await consumer.assign(dict.fromkeys(keys, START))
        dead: list[tuple[str, int]] = []
        while any(consumer.positions[where] < limits[where].end for where in keys):
            for message in await consumer.poll(count_max=1_000, timeout_ms=500):
                assert message.value is not None
                dead.append((message.value.decode(), int(dict(message.headers)[h.ATTEMPTS] or b"0")))
        return dead
