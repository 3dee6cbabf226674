"""Whether one append and one fetch cost the same however much there is: partitions, backlog; and how start-up grows.

Only servers that speak Kafka: a partition has no equal elsewhere.
"""

import shutil
import time
from pathlib import Path
from random import Random
from statistics import median

from bench.load import Refused, drive
from bench.load.kafka_wire import KafkaWire
from bench.machine import cpu_of, free_bytes
from bench.peers import Flush, Peer, Server
from bench.report import OURS
from bench.scenarios import MB, SIZES, Run

PARTITIONS = "partitions"
BACKLOG = "backlog"
SIZE = SIZES["1 KB"]
SEED = 1
FILL_S_MAX = 600.0
FREE_SHARE = 0.8  # of the free disk may be used
CLEAN, KILLED = "clean stop", "SIGKILL"
BATCH = 16  # messages: 16 KB, the batch size Java's producer comes with


def partitions(run: Run) -> None:
    """One message to, and one from, a random partition of many that all hold something."""
    for count in run.scale.partitions:
        with run.servers(Flush.OS, _peers(run)) as servers:
            streams = {}
            for server in servers:
                run.say(f"{PARTITIONS}: {server.peer.name} makes {count:,}")
                streams[server.peer.name] = _stream(run, server, count)
                begun = time.perf_counter()
                streams[server.peer.name].create()
                _record(
                    run, PARTITIONS, f"{count:,} partitions", "creation", "s", server, 1, time.perf_counter() - begun
                )
                for number in range(count):
                    _append(streams[server.peer.name].at(number))
            for number in run.rounds():
                for server in servers:
                    _requests(
                        run, PARTITIONS, f"{count:,} partitions", server, streams[server.peer.name], count, number
                    )


def backlog(run: Run) -> None:
    """One message to the end of a partition, and one from a random place in it; then the start-ups on that data."""
    for size in run.scale.backlog_bytes:
        if size > free_bytes(run.folder) * FREE_SHARE:
            run.note(
                f"{BACKLOG}: {size / MB:,.0f} MB were not tried, the disk has {free_bytes(run.folder) / MB:,.0f} MB"
            )
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
        for number in run.rounds():
            _requests(run, BACKLOG, case, server, stream, 1, number, size // SIZE)
    _start_ups(run, peer, data, stream.topic, case)


def _start_ups(run: Run, peer: Peer, data: Path, topic: str, case: str) -> None:
    """Each start is timed, until it listens and until it serves the backlog, after a clean stop and a kill in turn."""
    for number in range(1, run.scale.start_rounds + 1):
        for before, after in ((CLEAN, Server.kill), (KILLED, Server.stop)):
            begun = time.perf_counter()
            server = peer.start(data, Flush.OS)
            stream = KafkaWire(server.address, topic)
            listens = time.perf_counter() - begun
            stream.await_ready()
            serves = time.perf_counter() - begun
            _append(stream)
            after(server)
            _record(run, BACKLOG, f"{case}, start after {before}", "until it listens", "s", server, number, listens)
            _record(run, BACKLOG, f"{case}, start after {before}", "until it serves", "s", server, number, serves)


def _requests(
    run: Run, scenario: str, case: str, server: Server, stream: KafkaWire, count: int, number: int, offsets: int = 1
) -> None:
    for metric, work in (("append", _appends), ("fetch", _fetches)):
        before = cpu_of(server.pid)
        job = (stream, count, offsets, run.scale.growth_requests)
        trips = run.workers[0].run(work, job)
        used = cpu_of(server.pid) - before
        _record(run, scenario, case, metric, "µs", server, number, median(trips) * 1e6)
        _record(run, scenario, case, f"{metric}: server CPU", "µs", server, number, used.total_s / len(trips) * 1e6)


def _appends(job: tuple[KafkaWire, int, int, int]) -> list[float]:
    stream, partitions_count, _, requests = job
    rng, trips = Random(SEED), []
    with stream.connect() as connection:
        for _ in range(requests):
            chosen = stream.at(rng.randrange(partitions_count))
            request, acks = chosen.request([b"x" * SIZE]), chosen.acks()
            begun = time.perf_counter()
            connection.sendall(request)
            while not acks(connection.recv(65536)):
                pass
            trips.append(time.perf_counter() - begun)
    return trips


def _fetches(job: tuple[KafkaWire, int, int, int]) -> list[float]:
    stream, partitions_count, offsets, requests = job
    rng, trips = Random(SEED), []
    with stream.connect() as connection:
        for _ in range(requests):
            chosen, offset = stream.at(rng.randrange(partitions_count)), rng.randrange(offsets)
            begun = time.perf_counter()
            if not chosen.fetch(connection, offset, bytes_max=1):
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


def _record(
    run: Run, scenario: str, case: str, metric: str, unit: str, server: Server, number: int, value: float
) -> None:
    run.record(scenario, case, metric, unit, server.peer.name, number, value)
