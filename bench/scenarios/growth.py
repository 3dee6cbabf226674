"""Whether one append and one fetch cost the same however much there is: partitions, backlog; and how start-up grows.

Only servers that speak Kafka: a partition has no equal elsewhere.
"""

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

from bench.load import Refused, drive, payload
from bench.load.kafka_wire import KafkaWire
from bench.load.line import Line
from bench.machine import cpu_of, free_bytes
from bench.peers import Flush, Peer, Server
from bench.report import OURS
from bench.scenarios import MB, SIZES, Cell, Run

PARTITIONS = "partitions"
BACKLOG = "backlog"
SIZE = SIZES["1 KB"]
SEED = 1
FILL_S_MAX = 600.0
FREE_SHARE = 0.8  # of the free disk may be used
BATCH = 16  # messages: 16 KB, the batch size Java's producer comes with


def partitions(run: Run) -> None:
    """One message to, and one from, a random partition of many that all hold something."""
    for count in run.scale.partitions:
        case = f"{count:,} partitions"
        with run.servers(Flush.OS, _peers(run)) as servers:
            streams = [_stream(run, server, count) for server in servers]
            for server, stream in zip(servers, streams, strict=True):
                run.say(f"{PARTITIONS}: {server.peer.name} makes {count:,}")
                begun = time.perf_counter()
                stream.create()
                run.cell(PARTITIONS, case, server.peer.name, 1).record("creation", "s", time.perf_counter() - begun)
                for partition in range(count):
                    _append(stream.at(partition))
            for number in run.rounds():
                for server, stream in zip(servers, streams, strict=True):
                    job = Job(stream, count, 1, run.scale.growth_requests)
                    _requests(run, server, job, run.cell(PARTITIONS, case, server.peer.name, number))


def backlog(run: Run) -> None:
    """One message to the end of a partition, and one from a random place in it; then the start-ups on that data."""
    for size in run.scale.backlog_bytes:
        free = free_bytes(run.folder)
        if size > free * FREE_SHARE:
            run.note(f"{BACKLOG}: {size / MB:,.0f} MB were not tried, the disk has {free / MB:,.0f} MB left")
            continue
        for peer in _peers(run):
            run.say(f"{BACKLOG}: {peer.name} with {size / MB:,.0f} MB")
            data = run.data(peer.name)
            try:
                _backlog(run, peer, data, size)
            finally:
                shutil.rmtree(data, ignore_errors=True)


def _backlog(run: Run, peer: Peer, data: Path, size: int) -> None:
    case = f"{size / MB:,.0f} MB backlog"
    with peer.start(data, Flush.OS) as server:
        stream = _stream(run, server, 1)
        stream.create()
        run.workers[0].run(drive.publish, drive.Bulk(stream, size // SIZE, SIZE, BATCH, FILL_S_MAX))
        job = Job(stream, 1, size // SIZE, run.scale.growth_requests)
        for number in run.rounds():
            _requests(run, server, job, run.cell(BACKLOG, case, peer.name, number))
    for number in range(1, run.scale.start_rounds + 1):
        for before, after in (("clean stop", Server.kill), ("SIGKILL", Server.stop)):
            cell = run.cell(BACKLOG, f"{case}, start after {before}", peer.name, number)
            _start_up(peer, data, stream.topic, cell, after)


def _start_up(peer: Peer, data: Path, topic: str, cell: Cell, end: Callable[[Server], None]) -> None:
    """Time a start until it listens, and until it serves the backlog; end it so that the next has what it needs."""
    begun = time.perf_counter()
    with peer.start(data, Flush.OS) as server:
        cell.record("until it listens", "s", time.perf_counter() - begun)
        stream = KafkaWire(server.address, topic)
        stream.await_ready()
        cell.record("until it serves", "s", time.perf_counter() - begun)
        _append(stream)
        end(server)


@dataclass(frozen=True, slots=True)
class Job:
    """So many requests, one after another, each at a random partition and offset."""

    stream: KafkaWire
    partitions: int
    offsets: int
    requests: int


def _requests(run: Run, server: Server, job: Job, cell: Cell) -> None:
    for metric, work in (("append", _appends), ("fetch", _fetches)):
        before = cpu_of(server.pid)
        trips = run.workers[0].run(work, job)
        used = cpu_of(server.pid) - before
        cell.record(metric, "µs", median(trips) * 1e6)
        cell.record(f"{metric}: server CPU", "µs", used.total_s / len(trips) * 1e6)


def _appends(job: Job) -> list[float]:
    rng, trips = Random(SEED), []
    with job.stream.connect() as connection:
        for _ in range(job.requests):
            chosen = job.stream.at(rng.randrange(job.partitions))
            request, acks = chosen.request([payload(SIZE)]), chosen.acks()
            begun = time.perf_counter()
            connection.sendall(request)
            while not acks(drive.receive(connection)):
                pass
            trips.append(time.perf_counter() - begun)
    return trips


def _fetches(job: Job) -> list[float]:
    rng, trips = Random(SEED), []
    with job.stream.connect() as connection:
        line = Line(connection)
        for _ in range(job.requests):
            chosen, offset = job.stream.at(rng.randrange(job.partitions)), rng.randrange(job.offsets)
            begun = time.perf_counter()
            if not chosen.fetch(line, offset, bytes_max=1):
                raise Refused(f"nothing came from offset {offset} of {chosen.topic}-{chosen.partition}")
            trips.append(time.perf_counter() - begun)
    return trips


def _peers(run: Run) -> list[Peer]:
    if not run.scale.growth_peers and len(run.peers) > 1:
        run.note(f"growth was measured for {OURS} alone; --full, or --peer kafka alone, measures Kafka's")
        return [peer for peer in run.peers if peer.name == OURS]
    return [peer for peer in run.peers if peer.protocol == "kafka"]


def _append(stream: KafkaWire) -> None:
    drive.publish(drive.Bulk(stream, 1, SIZE, 1, 1))


def _stream(run: Run, server: Server, count: int) -> KafkaWire:
    made = run.dialect(server, Flush.OS, acks=1, partitions=count)
    assert isinstance(made, KafkaWire)
    return made
