"""The clients of a simulation: they use runnel.client, and write down what they did and saw."""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from runnel.client.cluster import Cluster
from runnel.client.consumer import Consumer, Message
from runnel.client.group_consumer import GroupConsumer, GroupConsumerSettings
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import fetch_committed
from runnel.client.positions import START, bounds
from runnel.client.producer import Delivery, Producer
from runnel.client.sender import ACKS_ALL, ProducerSettings
from runnel.model.errors import RetriableError, RunnelError
from runnel.testing.clock import SeededRng
from runnel.testing.consumer_member import ConsumerMember
from runnel.testing.history import Assigned, Commit, History, Joined, Looked, Owned, Poll, Send, Status
from runnel.testing.loop import Host, SimLoop
from runnel.testing.swarm import CLUSTER_SETTINGS, GROUP, NEW_GROUP, TOPIC, Swarm
from runnel.testing.watched_producer import EagerProducer, WatchedProducer

ONE_TRY_MS = 1  # of a commit: a second one could be overtaken by what is left of the first


class Stage(Protocol):
    """What clients need of the simulation that they are in."""

    loop: SimLoop
    swarm: Swarm
    history: History
    bootstrap: Sequence[str]
    sending: bool  # producers go on

    def seen(self, records: dict[str, list[tuple[int, str]]]) -> None:
        """Somebody was handed these messages."""
        ...

    def troubled(self, error: RunnelError) -> None:
        """Somebody could not read."""
        ...

    def gap_told(self, what: str) -> None:
        """A producer that gave nothing up was told that something is missing."""
        ...


class Client:
    """One life of one client, on a host of its own."""

    def __init__(self, stage: Stage, host: Host, life: int) -> None:
        self.stage = stage
        self.process = f"{host.name}.{life}"
        self.rng = SeededRng(f"{stage.loop.seed}/{self.process}")
        self.keys = [TopicPartition(TOPIC, number) for number in range(stage.swarm.partitions)]
        self.others = [*(stage.swarm.transactions.keys if stage.swarm.transactions else [])]
        self.others += stage.swarm.queueing.keys if stage.swarm.queueing else []
        self.others += stage.swarm.reminding.keys if stage.swarm.reminding else []
        self._host = host

    def cluster(self) -> Cluster:
        rng = SeededRng(f"{self.stage.loop.seed}/{self.process}/client")
        return Cluster(self.stage.bootstrap, clock=self._host.clock, rng=rng, settings=CLUSTER_SETTINGS)

    def now(self) -> float:
        return self.stage.loop.time()

    async def nap(self, longest_s: float) -> None:
        await asyncio.sleep(self.rng.uniform(0, longest_s))

    # --- sending

    def _producer(self, settings: ProducerSettings) -> Producer:
        kind = EagerProducer if self.stage.swarm.eager else WatchedProducer
        return kind(self.cluster(), settings, self.stage.gap_told)

    async def produce(self, settings: ProducerSettings) -> None:
        producer = self._producer(settings)
        number = 0
        while self.stage.sending:
            for _ in range(1 + self.rng.below(4)):
                await self._send(producer, f"{self.process}.{number}")
                number += 1
            await self.nap(8 * self.stage.swarm.send_every_s)
        try:
            await producer.close()
        except RunnelError:
            return  # each delivery has told

    async def _send(self, producer: Producer, value: str) -> None:
        where, settings = self.rng.pick(self.keys), producer.settings
        send = Send(
            self.process, str(where), value, self.now(),
            durable=settings.acks == ACKS_ALL, idempotent=settings.idempotent,
        )  # fmt: skip
        self.stage.history.sends.append(send)
        body = f"{value}|{'x' * self.rng.below(self.stage.swarm.value_bytes)}".encode()
        try:
            delivery = await producer.send(where.topic, body, partition=where.partition)
        except RunnelError:
            send.status = Status.FAIL  # it did not get into a batch
            await self.nap(0.3)
        else:
            delivery.add_done_callback(lambda: self.settled(send, delivery))

    def settled(self, send: Send, delivery: Delivery) -> None:
        """What became of a message that was sent."""
        try:
            offset = delivery.result().offset
        except RunnelError as error:
            self.stage.loop.trace(f"send {send.value} {type(error).__name__}")
            return
        send.status, send.ended = Status.OK, self.now()
        send.offset = offset if offset >= 0 else None
        self.stage.loop.trace(f"send {send.value} {offset}")

    # --- reading

    def record(self, messages: list[Message]) -> dict[str, list[tuple[int, str]]]:
        records: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for message in messages:
            assert message.value is not None
            value = message.value.partition(b"|")[0].decode()
            records[str(TopicPartition(message.topic, message.partition))].append((message.offset, value))
        self.stage.seen(records)
        self.stage.loop.trace(f"poll {self.process} {sorted((k, v[0][0], v[-1][0]) for k, v in records.items())}")
        return records

    async def read(self) -> None:
        """Read everything from the start, and again, and again."""
        consumer = Consumer(self.cluster(), self.stage.swarm.fetch)
        while self.stage.sending:
            try:
                if not consumer.positions or self.rng.chance(0.015):
                    await consumer.assign(dict.fromkeys([*self.keys, *self.others], START))
                    await self._seek(consumer)
                begun = self.now()
                messages = await consumer.poll(count_max=1 + self.rng.below(50), timeout_ms=300)
            except RunnelError as error:
                self.stage.troubled(error)
                await self.nap(0.3)
                continue
            if messages:
                self.stage.history.polls.append(Poll(self.process, self.record(messages), begun, self.now()))
            await self.nap(0.1)

    async def _seek(self, consumer: Consumer) -> None:
        for where, position in list(consumer.positions.items()):
            if position < 40 and self.rng.chance(0.3):
                ends = await bounds(consumer.cluster, [where])
                await consumer.seek(where, self.rng.below(ends[where].end + 1))
        positions = {str(where): offset for where, offset in consumer.positions.items()}
        self.stage.history.polls.append(Assigned(self.process, positions))

    async def read_all(self) -> int:
        """Read everything there is, once, as the last word; how many messages there were."""
        consumer = Consumer(self.cluster())
        try:
            return await self._read_to_the_end(consumer)
        finally:
            await consumer.close()

    async def _read_to_the_end(self, consumer: Consumer) -> int:
        keys = [*self.keys, *self.others]
        limits = await bounds(consumer.cluster, keys)
        await consumer.assign(dict.fromkeys(keys, START))
        positions = {str(where): offset for where, offset in consumer.positions.items()}
        self.stage.history.polls.append(Assigned(self.process, positions))
        count = 0
        while any(consumer.positions[where] < limits[where].end for where in keys):
            messages = await consumer.poll(count_max=1_000, timeout_ms=500)
            if messages:
                count += len(messages)
                records = self.record(messages)
                self.stage.history.polls.append(Poll(self.process, records, self.now(), self.now(), final=True))
        return count

    # --- groups

    async def join(self) -> None:
        """Be a member of the group; one that failed becomes another."""
        while True:
            try:
                await self._be_member()
            except RunnelError as error:
                self.stage.loop.trace(f"member {self.process} {type(error).__name__}")
                self.stage.troubled(error)
                await self.nap(0.5)

    async def _be_member(self) -> None:
        swarm, history = self.stage.swarm, self.stage.history
        settings = GroupConsumerSettings(swarm.group, swarm.fetch, commit_ms=None)
        consumer = GroupConsumer(self.cluster(), GROUP, [TOPIC], settings)
        joins = self.note_joins(consumer)
        while True:
            begun = self.now()
            messages = await consumer.poll(count_max=1 + self.rng.below(50), timeout_ms=400)
            if messages:
                records = self.record(messages)
                history.polls.append(
                    Poll(self.process, records, begun, self.now(), GROUP, joins[-1].member, joins[-1].generation)
                )
            if joins and self.rng.chance(0.5):
                await self._commit(consumer, joins[-1])
            if self.rng.chance(0.01):
                await consumer.close()
                return

    def note_joins(self, consumer: GroupConsumer) -> list[Joined]:
        """Write down in which generations the member is, from now on; the last one is that of the last poll."""
        membership, joins, join = consumer.membership, list[Joined](), consumer.membership.join

        async def noted_join() -> list[TopicPartition]:
            assigned = await join()
            generation = membership.generation
            joins.append(Joined(consumer.group, generation.member_id, generation.id, self.now()))
            self.stage.history.joins.append(joins[-1])
            self.stage.loop.trace(f"joined {generation} {assigned}")
            return assigned

        membership.join = noted_join  # type: ignore[method-assign]
        return joins

    async def _commit(self, consumer: GroupConsumer, joined: Joined) -> None:
        known = consumer._committed  # what did not change is not sent
        offsets = {str(where): at for where, at in consumer.positions.items() if known.get(where) != at}
        if not offsets:
            return
        commit = Commit(GROUP, offsets, joined.member, joined.generation, self.now())
        self.stage.history.commits.append(commit)
        with suppress(RetriableError):  # it may come to pass, at any time: the next one tells
            await consumer.commit(timeout_ms=ONE_TRY_MS)
            commit.status, commit.ended = Status.OK, self.now()
            self.stage.loop.trace(f"commit {joined.member} {offsets}")

    async def attend(self) -> None:
        """Be a member of the group of the new kind; one that left becomes another."""
        seat = 0
        while True:
            seat += 1
            name = f"{self._host.name}.{seat}"  # the same in its next life: so nobody waits for the end of its session
            member = ConsumerMember(self.cluster(), NEW_GROUP, TOPIC, name, self.stage.swarm.fetch)
            await self._sit(member)
            await member.leave()

    async def _sit(self, member: ConsumerMember) -> None:
        beat_due = 0.0
        while not self.rng.chance(0.01):
            try:
                if self.now() >= beat_due:
                    await self._beat(member)
                    beat_due = self.now() + member.beat_s
                await self._poll_as(member)
            except RunnelError as error:
                self.stage.loop.trace(f"member {member.member_id} {type(error).__name__}")
                self.stage.troubled(error)
                await self.nap(0.5)

    async def _beat(self, member: ConsumerMember) -> None:
        begun = self.now()
        if await member.beat():
            keys = frozenset(str(where) for where in member.consumer.positions)
            self.stage.history.owned.append(Owned(NEW_GROUP, member.member_id, keys, begun, self.now()))
            self.stage.loop.trace(f"owns {member.member_id} epoch {member.epoch} {sorted(keys)}")

    async def _poll_as(self, member: ConsumerMember) -> None:
        begun, epoch = self.now(), member.epoch
        messages = await member.poll(1 + self.rng.below(50), 300)
        if messages:
            records = self.record(messages)
            poll = Poll(self.process, records, begun, self.now(), NEW_GROUP, member.member_id, epoch)
            self.stage.history.polls.append(poll)
        else:
            await self.nap(0.3)
        offsets = member.uncommitted()
        if offsets and self.rng.chance(0.5):
            named = {str(where): at for where, at in offsets.items()}
            commit = Commit(NEW_GROUP, named, member.member_id, -1, self.now())
            self.stage.history.commits.append(commit)
            with suppress(RetriableError):
                await member.commit(offsets, ONE_TRY_MS)
                commit.status, commit.ended = Status.OK, self.now()
                self.stage.loop.trace(f"commit {member.member_id} {named}")

    async def look(self) -> None:
        """Read the groups' offsets again and again."""
        cluster = self.cluster()
        while True:
            try:
                for group in self.stage.swarm.groups:
                    await self.look_once(cluster, group)
            except RunnelError:
                await self.nap(0.05)  # the first look after a failure is the one that tells most
            else:
                await self.nap(1.0)

    async def look_once(self, cluster: Cluster, group: str) -> dict[str, int]:
        begun = self.now()
        found = await fetch_committed(cluster, group)
        offsets = {str(where): committed.offset for where, committed in found.items()}
        self.stage.history.looks.append(Looked(group, offsets, begun, self.now()))
        self.stage.loop.trace(f"look {group} {sorted(offsets.items())}")
        return offsets
