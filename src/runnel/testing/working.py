"""Clients of a simulation that use a queue.

    send    sends jobs
    work    takes jobs, and accepts, releases, rejects or forgets them, late and twice; in the end it accepts all

What a worker says of a job counts as unknown until it is answered. A refusal tells for certain only that a job was not
accepted by it: whoever could not hear the first answer asks again, and what was released or rejected is gone by then.
"""

from collections.abc import Sequence

from runnel.client.calls import call
from runnel.client.cluster import Cluster
from runnel.client.producer import Producer
from runnel.client.sender import ProducerSettings
from runnel.model.calls import (
    QUEUE_EXTEND,
    QUEUE_RECEIVE,
    QUEUE_SETTLE,
    Delivered,
    Extend,
    Outcome,
    Receive,
    Settle,
    Settlement,
)
from runnel.model.errors import LeaseLost, RunnelError
from runnel.testing.history import Handed, Said, Send, Status
from runnel.testing.jobs import JOBS, KEYS, Queueing
from runnel.testing.workload import Client

SETTINGS = ProducerSettings(request_timeout_ms=2_000, delivery_timeout_ms=10_000, block_timeout_ms=5_000)
CALL_MS = 4_000
REFUSED = LeaseLost.__name__


class Worker:
    """One life of one client of the queue."""

    def __init__(self, client: Client, plan: Queueing) -> None:
        self._client = client
        self._plan = plan
        self._queue = client.stage.history.queue
        self._rng = client.rng
        self._number = 0

    # --- sending

    async def send(self) -> None:
        producer = Producer(self._client.cluster(), SETTINGS)
        while self._client.stage.sending:
            for _ in range(1 + self._rng.below(4)):
                await self._send(producer)
            await self._client.nap(8 * self._client.stage.swarm.send_every_s)
        try:
            await producer.close()
        except RunnelError:
            return  # each delivery has told

    async def _send(self, producer: Producer) -> None:
        key = self._rng.below(KEYS) if self._plan.keyed else None
        where = self._plan.keys[key % self._plan.partitions] if key is not None else self._rng.pick(self._plan.keys)
        value = f"{self._client.process}.{self._number}"
        self._number += 1
        send = Send(self._client.process, str(where), value, self._client.now())
        self._client.stage.history.sends.append(send)
        if key is not None:
            self._queue.keys[value] = key
        try:
            name = None if key is None else str(key).encode()
            delivery = await producer.send(JOBS, value.encode(), key=name, partition=where.partition)
        except RunnelError:
            send.status = Status.FAIL
            await self._client.nap(0.3)
        else:
            delivery.add_done_callback(lambda: self._client.settled(send, delivery))

    # --- working

    async def work(self) -> None:
        """Take jobs until the end of the world."""
        cluster = self._client.cluster()
        while True:
            try:
                handed = await self._receive(cluster)
            except RunnelError as error:
                self._told("receive", error)
                await self._client.nap(0.3)
                continue
            if handed and (not self._client.stage.sending or not self._rng.chance(0.05)):
                await self._treat(cluster, handed)
            if any(not one.lease_ms for _, one in handed):
                await cluster.close()  # what it said nothing of, or what nobody heard, would be its own for ever
                cluster = self._client.cluster()

    async def _receive(self, cluster: Cluster) -> list[tuple[Delivered, Handed]]:
        lease_ms = self._rng.pick((None, None, 700, 0))  # 0: for as long as the connection lives
        request = Receive(
            JOBS, 1 + self._rng.below(8), wait_ms=self._rng.pick((0, 300)), lease_ms=lease_ms,
            consumer=self._client.process,
        )  # fmt: skip
        begun = self._client.now()
        answer = await call(cluster, QUEUE_RECEIVE, request, timeout_ms=CALL_MS, lane="work")
        if not answer.messages:
            await self._client.nap(0.2)
        now, taken = self._client.now(), self._plan.lease_ms if lease_ms is None else lease_ms
        handed = [(message, _handed(self._client.process, message, begun, now, taken)) for message in answer.messages]
        self._queue.handed += [one for _, one in handed]
        for _, one in handed:
            self._client.stage.loop.trace(f"handed {one.process} {one.value} {one.key} {one.offset} #{one.attempt}")
        return handed

    async def _treat(self, cluster: Cluster, handed: Sequence[tuple[Delivered, Handed]]) -> None:
        """Work for a while, or for too long, and say what came of it; sometimes twice."""
        hurries = not self._client.stage.sending
        if not hurries and self._rng.chance(0.1):
            await self._extend(cluster, handed)
        await self._client.nap(0.1 if hurries else self._rng.pick((0.0, 0.1, 1.5)))
        said = [self._said(one, hurries) for _, one in handed]
        for _ in range(1 + (self._rng.chance(0.1) and not hurries)):
            settlements = [
                Settlement(message.receipt, one.outcome, one.delay_ms, "it is bad" if one.outcome == "reject" else "")
                for (message, _), one in zip(handed, said, strict=True)
            ]
            await self._settle(cluster, settlements, said)

    def _said(self, handed: Handed, hurries: bool) -> Said:
        outcome, delay_ms = self._outcome(), None
        if hurries:
            outcome = "accept"
        elif outcome == "release":
            delay_ms = self._rng.pick((None, 0, 100, 800))
        said = Said(self._client.process, handed.value, handed.attempt, outcome, delay_ms, self._client.now())
        self._queue.said.append(said)
        return said

    def _outcome(self) -> Outcome:
        choices: tuple[Outcome, ...] = ("accept", "accept", "accept", "accept", "release", "release", "reject")
        return self._rng.pick(choices)

    async def _settle(self, cluster: Cluster, settlements: Sequence[Settlement], said: Sequence[Said]) -> None:
        for one in said:
            one.tries += 1
        try:
            answer = await call(cluster, QUEUE_SETTLE, Settle(JOBS, list(settlements)), timeout_ms=CALL_MS)
        except RunnelError as error:
            self._told("settle", error)
            await self._client.nap(0.2)
            return
        for one, failure in zip(said, answer.failures, strict=True):
            if failure is None:
                one.status, one.ended = Status.OK, min(one.ended, self._client.now())
            elif failure.name == REFUSED and one.outcome == "accept" and one.tries == 1:
                one.status = Status.FAIL
            self._client.stage.loop.trace(f"{one.outcome} {one.value} #{one.attempt}: {failure and failure.name}")

    async def _extend(self, cluster: Cluster, handed: Sequence[tuple[Delivered, Handed]]) -> None:
        receipts = [message.receipt for message, _ in handed]
        try:
            await call(cluster, QUEUE_EXTEND, Extend(JOBS, receipts, 2_000), timeout_ms=CALL_MS)
        except RunnelError as error:
            self._told("extend", error)

    def _told(self, what: str, error: RunnelError) -> None:
        self._client.stage.loop.trace(f"{what} {self._client.process} {type(error).__name__}: {error}")


def _handed(process: str, message: Delivered, begun: float, now: float, lease_ms: int) -> Handed:
    assert message.value is not None
    value = message.value.decode()
    key = f"{message.topic}/{message.partition}"
    return Handed(process, value, key, message.offset, message.attempt, begun, now, lease_ms)
