"""The administrator of a simulation: makes the topic, and does what faults of that kind ask for, one at a time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

from runnel.client.admin import Admin, NewTopic
from runnel.client.calls import call
from runnel.client.cluster import Cluster
from runnel.model.calls import QUEUE_CREATE, CreateQueue
from runnel.model.errors import QueueAlreadyExists, RunnelError, TopicAlreadyExists
from runnel.testing.clock import SeededRng
from runnel.testing.jobs import JOBS, Queueing
from runnel.testing.ledger import LEDGER
from runnel.testing.loop import Host, SimLoop
from runnel.testing.reminders import REMINDERS
from runnel.testing.swarm import TOPIC, Swarm
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api

PATIENCE_S = 4.0
PREFERRED = 0


class Scene(Protocol):
    """What an administrator needs of the simulation that it is in."""

    loop: SimLoop
    swarm: Swarm


class Administrator:
    """A client on a host of its own. What fails is not tried again: the next order comes soon."""

    def __init__(self, scene: Scene, host: Host, cluster: Callable[[], Cluster]) -> None:
        self._scene = scene
        self._loop = scene.loop
        self._rng = SeededRng(f"{scene.loop.seed}/administrator")
        self._host = host
        self._new_cluster = cluster
        self._orders: asyncio.Queue[str] = asyncio.Queue()
        self._verbs: dict[str, Callable[[Cluster], Awaitable[object]]] = {
            "elect": self._elect, "reassign": self._reassign
        }  # fmt: skip

    async def create_topic(self) -> None:
        """Make the topics, however long it takes; then wait for orders."""
        await self._host.start(self._create)
        process = self._host.process
        assert process is not None
        process.context.run(lambda: self._loop.create_task(self._serve()))

    def order(self, what: str) -> None:
        self._orders.put_nowait(what)

    async def _create(self) -> None:
        swarm = self._scene.swarm
        admin = Admin(self._new_cluster())
        await self._create_one(admin, NewTopic(TOPIC, swarm.partitions, swarm.replicas))
        if swarm.transactions is not None:
            await self._create_one(admin, NewTopic(LEDGER, swarm.transactions.partitions, swarm.replicas))
        if swarm.queueing is not None:
            await self._create_one(admin, NewTopic(JOBS, swarm.queueing.partitions, swarm.replicas))
            await self._create_queue(admin.cluster, swarm.queueing)
        if swarm.reminding is not None:
            await self._create_one(admin, NewTopic(REMINDERS, swarm.reminding.partitions, swarm.replicas))

    async def _create_one(self, admin: Admin, topic: NewTopic) -> None:
        while True:
            try:
                await admin.create_topics([topic])
            except TopicAlreadyExists:
                return
            except RunnelError as error:
                self._loop.trace(f"create {type(error).__name__}: {error}")
                await asyncio.sleep(0.1)
            else:
                return

    async def _create_queue(self, cluster: Cluster, plan: Queueing) -> None:
        while True:
            try:
                await call(cluster, QUEUE_CREATE, CreateQueue(JOBS, plan.settings))
            except QueueAlreadyExists:
                return
            except RunnelError as error:
                self._loop.trace(f"create {type(error).__name__}: {error}")
                await asyncio.sleep(0.1)
            else:
                return

    async def _serve(self) -> None:
        while True:
            what = await self._orders.get()
            cluster = self._new_cluster()
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await self._verbs[what](cluster)
            except (RunnelError, TimeoutError) as error:
                self._loop.trace(f"{what} {type(error).__name__}: {error}")
            else:
                self._loop.trace(f"{what} done")
            await cluster.close()

    async def _elect(self, cluster: Cluster) -> None:
        request = m.ElectLeadersRequest(election_type=PREFERRED, topic_partitions=None, timeout_ms=1_000)
        await (await cluster.controller()).ask(Api.ELECT_LEADERS, request, m.ElectLeadersResponse)

    async def _reassign(self, cluster: Cluster) -> None:
        """Move a partition, change the order of its replicas or their number, or take a move back."""
        R = m.AlterPartitionReassignmentsRequest
        brokers = list(range(1, self._scene.swarm.brokers + 1))
        self._rng.shuffle(brokers)
        fewest = min(self._scene.swarm.topic.min_insync_replicas, len(brokers))
        target = brokers[: self._rng.pick((fewest, self._scene.swarm.replicas, self._scene.swarm.replicas))]
        partition = R.ReassignablePartition(
            partition_index=self._rng.below(self._scene.swarm.partitions),
            replicas=None if self._rng.chance(0.3) else target,
        )
        topic = R.ReassignableTopic(name=TOPIC, partitions=[partition])
        request = R(timeout_ms=1_000, allow_replication_factor_change=True, topics=[topic])
        node = await cluster.controller()
        await node.ask(Api.ALTER_PARTITION_REASSIGNMENTS, request, m.AlterPartitionReassignmentsResponse)
