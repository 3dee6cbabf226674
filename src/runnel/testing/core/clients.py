"""Producers of the model: they send in order, keep some in flight, and send again until they know.

What an idempotent producer must give up, it gives up for good: it goes on under another id.
"""

from typing import TYPE_CHECKING

from runnel.cluster.image import NO_LEADER
from runnel.testing.core.network import Process
from runnel.testing.core.replica import ACKS_ALL, APPENDED_BEFORE, NOT_LEADER, OK, OUT_OF_ORDER

if TYPE_CHECKING:
    from runnel.testing.core.simulation import Simulation

FIRST_CLIENT = 100  # ids of processes above the brokers'


class _Send:
    __slots__ = ("attempt", "given_up_ms", "sequence", "value")

    def __init__(self, value: int, sequence: int, given_up_ms: float) -> None:
        self.value = value
        self.sequence = sequence
        self.attempt = 0
        self.given_up_ms = given_up_ms


class ModelProducer(Process):
    """Sends unique values to one partition."""

    def __init__(self, world: "Simulation", number: int, partition: int, *, acks: int, idempotent: bool) -> None:
        super().__init__(world.scheduler, FIRST_CLIENT + number)
        self.world = world
        self.partition = partition
        self.acks = acks
        self.idempotent = idempotent
        self.sent = 0
        self.acknowledged = 0
        self._window = 1 + world.scheduler.rng.randrange(5)
        self._every_ms = world.scheduler.uniform(*world.swarm.send_every_ms)
        self._in_flight: list[_Send] = []
        self._identity = world.next_producer_id() if idempotent else -1
        self._sequence = 0
        self._leader = NO_LEADER
        self.ended = False
        self.begin()
        self.after(self._every_ms, self._tick)

    @property
    def busy(self) -> bool:
        return bool(self._in_flight)

    def lowest(self) -> int:
        """The oldest value that is still under way."""
        return self._in_flight[0].value if self._in_flight else -1

    def _tick(self) -> None:
        if self.ended:
            return
        self.after(self._every_ms * self.scheduler.uniform(0.5, 1.5), self._tick)
        burst = 1 + self.scheduler.rng.randrange(self.world.swarm.burst)
        for _ in range(min(burst, self._window - len(self._in_flight))):
            self.sent += 1
            wait = self.world.swarm.delivery_ms
            send = _Send(self.id * 1_000_000 + self.sent, self._sequence, self.scheduler.now + wait)
            self._sequence += 1
            self._in_flight.append(send)
            self._send(send)

    def _send(self, send: _Send) -> None:
        send.attempt += 1
        self.after(self.world.swarm.patience_ms, self._again, send, send.attempt)
        if self._leader == NO_LEADER:
            self._leader = self.world.leader_hint(self.partition)
        leader = self.world.brokers.get(self._leader)
        if leader is None:
            return
        attempt = send.attempt

        def reply(outcome: str, offset: int) -> None:
            if outcome == OK and self.acks == ACKS_ALL:
                self.world.truths[self.partition].acked(send.value, offset)
            self.world.network.send(leader.id, self, self._answered, send, attempt, outcome, offset)

        self.world.network.send(
            self.id, leader, leader.on_produce,
            self.partition, send.value, self._identity, send.sequence, self.acks, reply,
        )  # fmt: skip

    def _again(self, send: _Send, attempt: int) -> None:
        """No answer, or one that says: later."""
        if send.attempt != attempt or send not in self._in_flight:
            return
        self._leader = NO_LEADER
        if self.scheduler.now < send.given_up_ms:
            self._send(send)
        elif self.idempotent:
            self._start_over()
        else:
            self._in_flight.remove(send)

    def _start_over(self) -> None:
        self._in_flight.clear()
        self._identity = self.world.next_producer_id()
        self._sequence = 0

    def _answered(self, send: _Send, attempt: int, outcome: str, offset: int) -> None:
        if send not in self._in_flight:
            return
        if outcome == OK:
            self._in_flight.remove(send)
            self.acknowledged += 1
        elif outcome == APPENDED_BEFORE:
            self._in_flight.remove(send)
        elif outcome == OUT_OF_ORDER and send is self._in_flight[0]:
            self._start_over()  # what came before it is gone (acks=1), or was given up
        elif attempt == send.attempt:
            pause = self.scheduler.uniform(1, self.world.swarm.pause_ms if outcome == NOT_LEADER else 100)
            send.attempt += 1
            self.after(pause, self._again, send, send.attempt)
