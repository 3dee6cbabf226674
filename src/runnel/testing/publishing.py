"""Clients of a simulation that publish batches through a sink, as a driver of a streaming job does with its tasks.

A driver notes down how far it is, and sometimes dies before it does; its next life begins with the batch that was noted
last. Its tasks are tried again when they fail, and now and then run twice. What a task sends counts as failed until
the driver asks to publish it; from then on nobody knows, until that is answered.
"""

import asyncio
from collections.abc import MutableMapping
from dataclasses import replace

from runnel.client.cluster import Cluster
from runnel.client.producer import Producer
from runnel.client.sinks import Sinks
from runnel.model.errors import InvalidTransactionState, RunnelError
from runnel.model.sinks import Begun, Handle
from runnel.testing.history import Row, Send, Status, Transaction
from runnel.testing.ledger import Transacting
from runnel.testing.workload import Client

TASKS = 2
ROWS = 2  # of each task
BATCHES_MIN = 3  # so many are published when nothing fails any more, if not before
TIMEOUT_MS = 6_000
LIFE_ATTEMPTS = 1_000_000  # more than one life makes: so no two have the same number


class Publisher:
    """One life of one driver."""

    def __init__(self, client: Client, plan: Transacting, sink: str, noted: MutableMapping[str, int]) -> None:
        self._client = client
        self._plan = plan
        self._sink = sink
        self._noted = noted  # survives: the driver's checkpoint
        self._history = client.stage.history
        self._attempts = int(client.process.rpartition(".")[2]) * LIFE_ATTEMPTS
        self._sent = 0

    async def publish(self) -> None:
        cluster = self._client.cluster()
        while self._client.stage.sending or self._noted.get(self._sink, 0) < BATCHES_MIN:
            batch = self._noted.get(self._sink, 0)
            try:
                await self._publish(cluster, batch)
                if not self._client.rng.chance(0.1):
                    self._noted[self._sink] = max(batch + 1, self._noted.get(self._sink, 0))
            except RunnelError as error:
                self._client.stage.loop.trace(f"batch {batch} {type(error).__name__}: {error}")
            await self._client.nap(0.2)

    async def _publish(self, cluster: Cluster, batch: int) -> None:
        written = await asyncio.gather(*[self._task(cluster, batch, number) for number in range(TASKS)])
        chosen = [each for each in written if each is not None]
        transaction = Transaction(self._client.process, [send for _, sends in chosen for send in sends])
        self._history.transactions.append(transaction)
        transaction.becomes(Status.INFO)
        handles = [handle for handle, _ in chosen]
        try:
            published = await Sinks(cluster).commit(self._sink, batch, handles, timeout_ms=TIMEOUT_MS)
        except InvalidTransactionState:
            transaction.becomes(Status.FAIL)
            raise
        except RunnelError:
            if self._client.rng.chance(0.5):
                await Sinks(cluster).abort(self._sink, batch, handles, timeout_ms=TIMEOUT_MS)
            raise
        if not published.repeated:
            transaction.becomes(Status.OK, self._client.now())
        self._client.stage.loop.trace(f"published {batch} {published.repeated}")

    async def _task(self, cluster: Cluster, batch: int, number: int) -> tuple[Handle, list[Send]] | None:
        """What was written and can be published; None: the batch was published before."""
        if self._client.rng.chance(0.1):  # another runs beside it, and nobody asks for what it wrote
            beside = asyncio.ensure_future(self._attempt(cluster, batch, number))
            beside.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await self._attempt(cluster, batch, number)

    async def _attempt(self, cluster: Cluster, batch: int, number: int) -> tuple[Handle, list[Send]] | None:
        self._attempts += 1
        sinks = Sinks(cluster)
        begun = await sinks.begin(
            self._sink, batch, number, self._attempts,
            transaction_timeout_ms=self._plan.settings.transaction_timeout_ms, timeout_ms=TIMEOUT_MS,
        )  # fmt: skip
        if begun.handle is None:
            return None
        return await self._write(sinks, begun, batch, number)

    async def _write(self, sinks: Sinks, begun: Begun, batch: int, number: int) -> tuple[Handle, list[Send]]:
        settings = replace(self._plan.settings, classic_transactions=not self._plan.modern)
        sends: list[Send] = []
        async with sinks.writing(begun, settings) as producer:
            for row in range(ROWS):
                sends.append(await self._send(producer, begun.handle, Row(self._sink, batch, number * ROWS + row)))
                await self._client.nap(0.05)
            handle = await producer.hand_over()
        assert handle is not None
        return handle, sends

    async def _send(self, producer: Producer, handle: Handle | None, row: Row) -> Send:
        where = self._client.rng.pick(self._plan.keys)
        self._sent += 1
        value = f"{self._client.process}.{self._sent}"
        now = self._client.now()
        process = f"{self._client.process} {handle}"  # each attempt has an order of its own
        send = Send(process, str(where), value, now, status=Status.FAIL, transactional=True, row=row)
        self._history.sends.append(send)
        await producer.send(where.topic, value.encode(), partition=where.partition)
        return send
