"""What is measured, one module each. `Run` is what they share: the peers, the sizes, the clients and the results.

Rule 1: a scenario measures each contender once in every round, one after another; round 0 warms up and is not counted.
Rule 2: what a scenario puts on the disk it removes before the next measurement, so that rounds are alike.
"""

import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from bench.load import Dialect
from bench.load.kafka_wire import KafkaWire
from bench.load.nats_wire import NatsWire
from bench.load.redis_wire import RedisWire
from bench.peers import Flush, Peer, Running, Server
from bench.peers.clusters import Cluster, Clustered
from bench.report import Sample
from bench.workers import Worker

MB = 1_000_000
LIMIT = "limit"  # the contender that is no server: a plain write to the file system
BROKERS = 3  # in a cluster; a message has a copy on each
SIZES = {"100 B": 100, "1 KB": 1024, "10 KB": 10240}


@dataclass(frozen=True, slots=True)
class Scale:
    """How much of everything."""

    rounds: int
    warm_bytes: int
    bulk_bytes: dict[str, int]  # a measurement of throughput moves so much,
    bulk_s: float  # or what it can in so many seconds
    single_s: float
    paced_s: float
    http_s: float
    paced_rates: dict[int, str]  # messages a second -> all flush modes or the ends of the range
    partitions: tuple[int, ...]
    growth_peers: bool  # whether growth is measured for others than Runnel: the question is whether ours is flat
    growth_requests: int
    backlog_bytes: tuple[int, ...]
    start_rounds: int
    connections: int
    cluster_rounds: int
    cluster_sizes: tuple[str, ...]  # of the messages
    cluster_rates: tuple[int, ...]
    topics: tuple[int, ...]  # of ten partitions each
    lone_topics: bool  # whether topics are also made without copies
    failovers: tuple[str, ...]  # who is killed: a broker, the controller
    end_rounds: int  # of a broker's ends
    transactions: tuple[int, ...]  # messages in each
    transaction_rounds: int
    transaction_s: float
    queue_rounds: int
    queue_messages: int  # to take, at most
    queue_s: float
    queue_backlogs: tuple[int, ...]  # messages
    queue_counts: tuple[int, ...]
    queue_visits: int  # of queues, each for one message
    pending: tuple[int, ...]  # messages that wait while others come due,
    due_rate: int  # so many a second,
    due_s: int  # for so long
    schedule_rounds: int
    filtered: int  # messages that a view is read through
    filter_s: float  # for each expression
    spark_rows: int  # read by Spark
    spark_rounds: int
    spark_batches: int  # micro-batches of next to nothing


SMOKE = Scale(
    rounds=1,
    warm_bytes=0,
    bulk_bytes=dict.fromkeys(SIZES, 200_000),
    bulk_s=1.0,
    single_s=0.05,
    paced_s=0.2,
    http_s=0.5,
    paced_rates={500: "all"},
    partitions=(1, 20),
    growth_peers=False,
    growth_requests=20,
    backlog_bytes=(1 * MB, 4 * MB),
    start_rounds=1,
    connections=20,
    cluster_rounds=1,
    cluster_sizes=("1 KB",),
    cluster_rates=(200,),
    topics=(2,),
    lone_topics=False,
    failovers=(),
    end_rounds=1,
    transactions=(10,),
    transaction_rounds=1,
    transaction_s=0.2,
    queue_rounds=1,
    queue_messages=200,
    queue_s=0.5,
    queue_backlogs=(200, 400),
    queue_counts=(5,),
    queue_visits=10,
    pending=(100,),
    due_rate=50,
    due_s=1,
    schedule_rounds=1,
    filtered=1_000,
    filter_s=0.02,
    spark_rows=2_000,
    spark_rounds=1,
    spark_batches=2,
)
DEFAULT = Scale(
    rounds=5,
    warm_bytes=2_000 * MB,
    bulk_bytes={"100 B": 40 * MB, "1 KB": 256 * MB, "10 KB": 256 * MB},
    bulk_s=0.5,
    single_s=0.5,
    paced_s=1.5,
    http_s=10.0,
    paced_rates={1_000: "all", 11_574: "ends"},
    partitions=(1, 100, 5_000),
    growth_peers=False,
    growth_requests=1_000,
    backlog_bytes=(100 * MB, 2_000 * MB),
    start_rounds=3,
    connections=2_000,
    cluster_rounds=3,
    cluster_sizes=("1 KB",),
    cluster_rates=(1_000, 3_000),
    topics=(100,),
    lone_topics=False,
    failovers=("a broker",),
    end_rounds=1,
    transactions=(10, 100, 1_000),
    transaction_rounds=3,
    transaction_s=1.5,
    queue_rounds=3,
    queue_messages=20_000,
    queue_s=1.5,
    queue_backlogs=(1_000, 1_000_000),
    queue_counts=(10, 1_000),
    queue_visits=1_000,
    pending=(1_000, 100_000),
    due_rate=500,
    due_s=10,
    schedule_rounds=1,
    filtered=100_000,
    filter_s=0.2,
    spark_rows=500_000,
    spark_rounds=3,
    spark_batches=30,
)
FULL = Scale(
    rounds=9,
    warm_bytes=8_000 * MB,
    bulk_bytes={"100 B": 100 * MB, "1 KB": 1_000 * MB, "10 KB": 1_000 * MB},
    bulk_s=5.0,
    single_s=3.0,
    paced_s=10.0,
    http_s=30.0,
    paced_rates={1_000: "all", 11_574: "all"},
    partitions=(1, 100, 5_000),
    growth_peers=True,
    growth_requests=5_000,
    backlog_bytes=(1_000 * MB, 20_000 * MB),
    start_rounds=5,
    connections=2_000,
    cluster_rounds=5,
    cluster_sizes=tuple(SIZES),
    cluster_rates=(1_000, 3_000),
    topics=(100, 1_000),
    lone_topics=True,
    failovers=("a broker", "the controller"),
    end_rounds=3,
    transactions=(10, 100, 1_000),
    transaction_rounds=5,
    transaction_s=5.0,
    queue_rounds=5,
    queue_messages=200_000,
    queue_s=5.0,
    queue_backlogs=(1_000, 1_000_000, 100_000_000),
    queue_counts=(10, 1_000, 10_000),
    queue_visits=2_000,
    pending=(1_000, 1_000_000, 10_000_000),
    due_rate=500,
    due_s=30,
    schedule_rounds=1,
    filtered=500_000,
    filter_s=1.0,
    spark_rows=4_000_000,
    spark_rounds=5,
    spark_batches=60,
)


@dataclass(frozen=True, slots=True)
class Cell:
    """One contender in one case in one round: where its values go."""

    samples: list[Sample]
    scenario: str
    case: str
    contender: str
    number: int

    def record(self, metric: str, unit: str, value: float) -> None:
        """Keep a value, unless this is the warm-up."""
        if self.number:
            self.samples.append(Sample(self.scenario, self.case, metric, unit, self.contender, self.number, value))


@dataclass(slots=True)
class Run:
    peers: list[Peer]
    scale: Scale
    folder: Path
    workers: tuple[Worker, Worker] = field(default_factory=lambda: (Worker(), Worker()))
    samples: list[Sample] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=lambda: count(1))

    def renew_workers(self) -> None:
        """After a failure a worker may still be at its job: it is not asked for another one."""
        self.close()
        self.workers = (Worker(), Worker())

    def close(self) -> None:
        for worker in self.workers:
            worker.close()

    def rounds(self, counted: int | None = None) -> range:
        """Round 0 is the warm-up. A smoke run has no use for it."""
        return range(0 if self.scale.warm_bytes else 1, (counted or self.scale.rounds) + 1)

    def cell(self, scenario: str, case: str, contender: str, number: int) -> "Cell":
        return Cell(self.samples, scenario, case, contender, number)

    def say(self, text: str) -> None:
        print(f"bench: {text}", file=sys.stderr, flush=True)

    def note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def data(self, name: str) -> Path:
        """A folder of its own for one server."""
        return self.folder / f"{name}-{next(self._numbers)}"

    @contextmanager
    def servers(self, flush: Flush, peers: Iterable[Peer] | None = None) -> Iterator[list[Server]]:
        """All peers (or these) that can give this guarantee, running; their data is removed afterwards."""
        with ExitStack() as stack:
            started = []
            for peer in self.peers if peers is None else peers:
                if peer.guarantee(flush) is None:
                    self.note(f"{peer.name} {peer.version()} can't give the guarantee {flush.value!r}: left out there")
                    continue
                data = self.data(peer.name)
                stack.callback(shutil.rmtree, data, ignore_errors=True)
                started.append(stack.enter_context(peer.start(data, flush)))
            yield started

    def clustered(self) -> list[Clustered]:
        """The peers of which a cluster can be had; the others that keep copies are named as missing."""
        found = []
        for peer in self.peers:
            if not isinstance(peer, Clustered):
                continue
            if problem := peer.cluster_missing():
                self.note(f"a cluster of {peer.name} is MISSING: {problem}")
            else:
                found.append(peer)
        return found

    @contextmanager
    def cluster(self, peer: Clustered) -> Iterator[Cluster]:
        """Three brokers of this kind, running; their data is removed afterwards."""
        data = self.data(f"{peer.name}-cluster")
        try:
            with peer.start_cluster(data, BROKERS) as started:
                yield started
        finally:
            shutil.rmtree(data, ignore_errors=True)

    @contextmanager
    def stream(self, server: Running, flush: Flush, *, acks: int = 1, partitions: int = 1) -> Iterator[Dialect]:
        """A stream (a topic) that exists for one measurement."""
        made = self.dialect(server, flush, acks=acks, partitions=partitions)
        made.create()
        try:
            yield made
        finally:
            made.delete()  # soon: what is deleted before the kernel writes it back slows nobody

    def dialect(self, server: Running, flush: Flush, *, acks: int, partitions: int) -> Dialect:
        name = f"bench{next(self._numbers)}"
        match server.peer.protocol:
            case "kafka":
                config = {**server.peer.topic_config(flush), "file.delete.delay.ms": "0"}
                if server.replication > 1:
                    config["min.insync.replicas"] = str(server.replication - 1)
                return KafkaWire(server.address, name, acks, 0, partitions, config, server.replication)
            case "redis":
                return RedisWire(server.address, name)
            case "nats":
                return NatsWire(server.address, name)
