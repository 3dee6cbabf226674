"""Clients of a simulation that use transactions.

    transact    writes entries into the ledger, several at a time, reads what others wrote, and gives some of it up
    transform   turns each order into an entry, with its group's offsets in the same transaction

A client's next life has the same transactional id: whatever the last one left open must not come to pass. What a client
sends counts as failed until it asks for the commit; from then on nobody knows, until that is answered.
"""

from contextlib import suppress
from dataclasses import replace

from runnel.client.consumer import Consumer, Message
from runnel.client.errors import OutcomeUnknown
from runnel.client.group_consumer import GroupConsumer, GroupConsumerSettings
from runnel.client.metadata import TopicPartition
from runnel.client.positions import START
from runnel.client.producer import Producer
from runnel.model.errors import RunnelError
from runnel.testing.history import Commit, Poll, Send, Status, Transaction
from runnel.testing.ledger import ACCOUNTING, LEDGER, Transacting
from runnel.testing.swarm import TOPIC
from runnel.testing.workload import Client

ASKED_AGAIN_MAX = 3  # whether a commit came to pass
RIVALS_ID = "rivals"


class Transactor:
    """One life of one client that has a transactional id."""

    def __init__(self, client: Client, plan: Transacting, transactional_id: str) -> None:
        self._client = client
        self._plan = plan
        self._id = transactional_id
        self._history = client.stage.history
        self._ledger = plan.keys
        self._sent = 0

    # --- writing

    async def transact(self) -> None:
        reader = Consumer(self._client.cluster(), self._client.stage.swarm.fetch)
        while self._client.stage.sending:
            producer = self._producer(RIVALS_ID if self._plan.rivals else "")
            try:
                while self._client.stage.sending:
                    await self._write(producer, reader)
                    if self._plan.deserts and self._client.rng.chance(self._plan.deserts):
                        await self._desert()
                    await self._client.nap(0.3)
            except RunnelError as error:
                self._told(error)
                await self._client.nap(0.3)
            await self._close(producer)

    async def _write(self, producer: Producer, reader: Consumer) -> None:
        transaction = await self._begun(producer)
        for _ in range(1 + self._client.rng.below(5)):
            where = self._client.rng.pick(self._ledger)
            await self._send(producer, transaction, where, f"{self._client.process}.{self._sent}")
            await self._client.nap(0.02)
        if self._client.rng.chance(0.3):
            transaction.reads = await self._read(reader)
        if self._client.rng.chance(0.2):
            await producer.abort()
        else:
            await self._commit(producer, transaction)

    async def _desert(self) -> None:
        """Leave a transaction open for good, under an id of its own: time has to end it."""
        name = f"{self._client.process}.{self._sent}"
        producer = self._producer(name)
        transaction = await self._begun(producer)
        await self._send(producer, transaction, self._client.rng.pick(self._ledger), name)
        await producer.hand_over()
        await self._close(producer)

    async def _read(self, reader: Consumer) -> dict[str, list[tuple[int, str]]]:
        if not reader.positions or self._client.rng.chance(0.1):
            await reader.assign(dict.fromkeys(self._ledger, START))
        return self._client.record(await reader.poll(count_max=50, timeout_ms=50))

    # --- transforming

    async def transform(self) -> None:
        while True:
            consumer = GroupConsumer(self._client.cluster(), ACCOUNTING, [TOPIC], self._group_settings())
            producer = self._producer()
            self._client.note_joins(consumer)
            try:
                while not self._client.rng.chance(0.01):
                    await self._turn(producer, consumer)
            except RunnelError as error:
                self._told(error)
                await self._client.nap(0.3)
            await self._close(producer)
            with suppress(RunnelError):  # it is not missed any longer than its session lasts
                await consumer.close()

    def _group_settings(self) -> GroupConsumerSettings:
        swarm = self._client.stage.swarm
        return GroupConsumerSettings(swarm.group, swarm.fetch, commit_ms=None)

    async def _turn(self, producer: Producer, consumer: GroupConsumer) -> None:
        begun = self._client.now()
        messages = await consumer.poll(count_max=1 + self._client.rng.below(20), timeout_ms=300)
        if not messages:
            return
        seat = consumer.seat
        records = self._client.record(messages)
        member, generation = seat.generation.member_id, seat.generation.id
        self._history.polls.append(
            Poll(self._client.process, records, begun, self._client.now(), ACCOUNTING, member, generation)
        )
        transaction = await self._begun(producer)
        for message in messages:
            await self._enter(producer, transaction, message)
        offsets = {str(where): at for where, at in consumer.positions.items()}
        commit = Commit(ACCOUNTING, offsets, member, generation, self._client.now(), status=Status.FAIL)
        self._history.commits.append(commit)
        await producer.send_offsets(consumer.positions, seat)
        if self._client.rng.chance(0.1):
            await producer.abort()
            await consumer.rewind()
        else:
            await self._commit(producer, transaction, commit)

    async def _enter(self, producer: Producer, transaction: Transaction, message: Message) -> None:
        assert message.value is not None
        order = message.value.partition(b"|")[0].decode()
        where = TopicPartition(LEDGER, message.partition % self._plan.partitions)
        value = f"{order}>{self._client.process}.{self._sent}"
        source = str(TopicPartition(message.topic, message.partition)), message.offset
        await self._send(producer, transaction, where, value, source)

    # --- one transaction

    def _producer(self, name: str = "") -> Producer:
        settings = replace(
            self._plan.settings, transactional_id=name or self._id, classic_transactions=not self._plan.modern
        )
        return Producer(self._client.cluster(), settings)

    async def _begun(self, producer: Producer) -> Transaction:
        await producer.begin()
        transaction = Transaction(self._client.process)
        self._history.transactions.append(transaction)
        return transaction

    async def _send(
        self, producer: Producer, transaction: Transaction, where: TopicPartition, value: str,
        source: tuple[str, int] | None = None,
    ) -> None:  # fmt: skip
        self._sent += 1
        send = Send(
            self._client.process, str(where), value, self._client.now(), status=Status.FAIL,
            transactional=True, source=source,
        )  # fmt: skip
        self._history.sends.append(send)
        transaction.sends.append(send)
        delivery = await producer.send(where.topic, value.encode(), partition=where.partition)

        def settled() -> None:
            with suppress(RunnelError):  # the commit tells
                offset = delivery.result().offset
                send.offset = offset if offset >= 0 else None  # a duplicate whose place was forgotten has none

        delivery.add_done_callback(settled)

    async def _commit(self, producer: Producer, transaction: Transaction, commit: Commit | None = None) -> None:
        await producer.flush()
        transaction.becomes(Status.INFO)
        if commit is not None:
            commit.status = Status.INFO
        for _ in range(ASKED_AGAIN_MAX):
            try:
                await producer.commit()
                break
            except OutcomeUnknown as error:
                self._told(error)
        else:
            await producer.commit()
        now = self._client.now()
        transaction.becomes(Status.OK, now)
        if commit is not None:
            commit.status, commit.ended = Status.OK, now
        self._client.stage.loop.trace(f"committed {[(send.key, send.value) for send in transaction.sends]}")

    async def _close(self, producer: Producer) -> None:
        with suppress(RunnelError):  # the next one ends what this one left open
            await producer.close()

    def _told(self, error: RunnelError) -> None:
        self._client.stage.loop.trace(f"transaction {self._client.process} {type(error).__name__}: {error}")
