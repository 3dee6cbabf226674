"""Messages by lease and verdict, in each server's own way: taken in batches, and accepted when they are.

Rule 1: a verdict counts when it is answered, on every side; what is not answered was not accepted.
Rule 2: the log of a queue is filled through the server's usual dialect, and outside the clock.
"""

import json
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from random import Random
from typing import Any, BinaryIO, Protocol, TypeVar

from bench.load import Dialect, Outcome, Refused, stream_of
from bench.load.ask import Asker
from bench.load.drive import Bulk, Stopwatch, publish
from bench.load.kafka_wire import KafkaWire
from bench.load.nats_wire import NatsWire, _open
from bench.load.redis_wire import RedisWire, command, reply
from runnel.client.calls import question, result
from runnel.model.calls import QUEUE_CREATE, QUEUE_RECEIVE, QUEUE_SETTLE, CreateQueue, Receive, Settle, Settlement, Verb
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api

FILL_BATCH = 100
FILL_S_MAX = 3_600.0
LEASE_MS = 300_000  # nothing comes back while it is measured
GROUP = "bench"
INBOX = "_INBOX.bench"
ALTER_VERSION = 1
BROKER_RESOURCE, SET = 4, 0
SEED = 1

Q = TypeVar("Q")
A = TypeVar("A")


class Taker(Protocol):
    """A consumer with a connection of its own."""

    def lease(self, count: int) -> Sequence[Any]:
        """So many messages, or what is left of them; by what they are accepted."""
        ...

    def accept(self, leased: Sequence[Any]) -> None: ...


class Leases(Protocol):
    """One queue on a log."""

    @property
    def log(self) -> Dialect: ...

    def create(self) -> None:
        """Make the queue; the log is there."""
        ...

    def another(self, number: int) -> "Leases":
        """Another queue on the same log."""
        ...

    def open(self) -> AbstractContextManager[Taker]: ...


# --- Runnel
@dataclass(frozen=True, slots=True)
class RunnelLeases:
    log: KafkaWire
    queue: str

    def create(self) -> None:
        settings = {"topic": self.log.topic, "start": "earliest", "lease.ms": str(LEASE_MS)}
        with Asker(self.log.address) as asker:
            call(asker, QUEUE_CREATE, CreateQueue(self.queue, settings))

    def another(self, number: int) -> "RunnelLeases":
        return replace(self, queue=f"{self.queue}.{number}")

    @contextmanager
    def open(self) -> Iterator[Taker]:
        with Asker(self.log.address) as asker:
            yield _RunnelTaker(asker, self.queue)


class _RunnelTaker:
    def __init__(self, asker: Asker, queue: str) -> None:
        self._asker = asker
        self._queue = queue

    def lease(self, count: int) -> Sequence[str]:
        found = call(self._asker, QUEUE_RECEIVE, Receive(self._queue, count, 16 << 20, consumer="bench"))
        return [message.receipt for message in found.messages]

    def accept(self, leased: Sequence[str]) -> None:
        verdicts = [Settlement(receipt, "accept") for receipt in leased]
        settled = call(self._asker, QUEUE_SETTLE, Settle(self._queue, verdicts))
        if failures := [failure for failure in settled.failures if failure is not None]:
            raise Refused(f"{self._queue}: {failures[0]}")


def call(asker: Asker, verb: Verb[Q, A], request: Q) -> A:
    return result(verb, asker.ask(Api.RUNNEL_CALL, 0, question(verb, request)), "the broker")


def set_flush(address: str, mode: str) -> None:
    """Let what Runnel keeps about queues and transactions have the guarantee of the messages: as all topics have."""
    change = m.IncrementalAlterConfigsRequest.AlterableConfig(name="log.flush.mode", config_operation=SET, value=mode)
    everyone = m.IncrementalAlterConfigsRequest.AlterConfigsResource(
        resource_type=BROKER_RESOURCE, resource_name="", configs=[change]
    )
    with Asker(address) as asker:
        request = m.IncrementalAlterConfigsRequest(resources=[everyone])
        answer = asker.ask(Api.INCREMENTAL_ALTER_CONFIGS, ALTER_VERSION, request)
    if answer.responses[0].error_code:
        raise Refused(f"log.flush.mode={mode}: {answer.responses[0].error_message}")


# --- Redis: a stream with consumer groups
@dataclass(frozen=True, slots=True)
class RedisLeases:
    log: RedisWire
    group: str = GROUP

    def create(self) -> None:
        with self.log.connect() as connection:
            connection.sendall(command("XGROUP", "CREATE", self.log.topic, self.group, "0", "MKSTREAM"))
            reply(stream_of(connection))

    def another(self, number: int) -> "RedisLeases":
        return replace(self, group=f"{self.group}.{number}")

    @contextmanager
    def open(self) -> Iterator[Taker]:
        with self.log.connect() as connection:
            yield _RedisTaker(connection, self.log.topic, self.group)


class _RedisTaker:
    def __init__(self, connection: socket.socket, topic: str, group: str) -> None:
        self._connection = connection
        self._stream = stream_of(connection)
        self._topic = topic
        self._group = group

    def lease(self, count: int) -> Sequence[bytes]:
        words = ("XREADGROUP", "GROUP", self._group, "bench", "COUNT", count, "STREAMS", self._topic, ">")
        self._connection.sendall(command(*words))
        found = reply(self._stream)
        return [entry[0] for entry in found[0][1]] if found else []

    def accept(self, leased: Sequence[bytes]) -> None:
        self._connection.sendall(command("XACK", self._topic, self._group, *leased))
        if (count := reply(self._stream)) != len(leased):
            raise Refused(f"XACK of {len(leased)} was answered with {count}")


# --- NATS: a stream with pull consumers
@dataclass(frozen=True, slots=True)
class NatsLeases:
    log: NatsWire
    consumer: str = GROUP

    def create(self) -> None:
        made = {"durable_name": self.consumer, "ack_policy": "explicit", "ack_wait": LEASE_MS * 1_000_000}
        made |= {"deliver_policy": "all", "replay_policy": "instant", "max_ack_pending": 100_000}
        subject = f"$JS.API.CONSUMER.DURABLE.CREATE.{self.log.topic}.{self.consumer}"
        self.log._ask(subject, {"stream_name": self.log.topic, "config": made})

    def another(self, number: int) -> "NatsLeases":
        return replace(self, consumer=f"{self.consumer}-{number}")

    @contextmanager
    def open(self) -> Iterator[Taker]:
        with _open(self.log.address, INBOX) as connection:
            yield _NatsTaker(connection, f"$JS.API.CONSUMER.MSG.NEXT.{self.log.topic}.{self.consumer}")


class _NatsTaker:
    def __init__(self, connection: socket.socket, subject: str) -> None:
        self._connection = connection
        self._stream: BinaryIO = stream_of(connection)
        self._subject = subject

    def lease(self, count: int) -> Sequence[bytes]:
        body = json.dumps({"batch": count, "no_wait": True}).encode()
        self._connection.sendall(b"PUB %b %b %d\r\n%b\r\n" % (self._subject.encode(), INBOX.encode(), len(body), body))
        found: list[bytes] = []
        while len(found) < count:
            answer_to = self._next()
            if not answer_to:
                break  # it says that there are no more
            found.append(answer_to)
        return found

    def accept(self, leased: Sequence[bytes]) -> None:
        self._connection.sendall(b"".join(b"PUB %b %b 4\r\n+ACK\r\n" % (to, INBOX.encode()) for to in leased))
        for _ in leased:
            self._next()

    def _next(self) -> bytes:
        """Where the next message wants to be answered to; empty if it is a word of the server."""
        while line := self._stream.readline():
            words = line.split()
            if words[0] in (b"MSG", b"HMSG"):
                self._stream.read(int(words[-1]) + 2)
                return words[3] if words[0] == b"MSG" and len(words) == 5 else b""
            if words[0] == b"-ERR":
                raise Refused(line.decode(errors="replace"))
        raise Refused("the server closed the connection")


# --- jobs
@dataclass(frozen=True, slots=True)
class Fill:
    log: Dialect
    messages: int
    size: int


@dataclass(frozen=True, slots=True)
class Take:
    """Lease `batch`, accept them, and again: until `total` are done or the time is over."""

    leases: Leases
    batch: int
    total: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Visit:
    """Lease and accept one message at one of many queues, chosen at random, `requests` times."""

    leases: Leases
    queues: int
    requests: int


def fill(job: Fill) -> None:
    batch = min(FILL_BATCH, job.messages)
    done = publish(Bulk(job.log, job.messages // batch * batch, job.size, batch, FILL_S_MAX))
    if done.messages < job.messages // batch * batch:
        raise Refused(f"only {done.messages:,} of {job.messages:,} messages were written")


def take(job: Take) -> Outcome:
    with job.leases.open() as taker:
        done, watch = 0, Stopwatch()
        while done < job.total and watch.seconds() < job.seconds:
            leased = taker.lease(min(job.batch, job.total - done))
            if not leased:
                raise Refused(f"nothing was left after {done:,} of {job.total:,} messages")
            taker.accept(leased)
            done += len(leased)
        return watch.outcome(done)


def visit(job: Visit) -> list[float]:
    """The seconds that each visit took: the message, and its acceptance."""
    rng, trips = Random(SEED), []
    for _ in range(job.requests):
        with job.leases.another(rng.randrange(job.queues)).open() as taker:
            begun = time.perf_counter()
            leased = taker.lease(1)
            if not leased:
                raise Refused("a queue was empty")
            taker.accept(leased)
            trips.append(time.perf_counter() - begun)
    return trips
