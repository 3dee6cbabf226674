"""Three copies of every message: three brokers on this machine, acknowledged when all in-sync replicas have it.

All brokers, the clients and both contenders share the cores of one machine: this measures what copies cost, not what
more machines would bring.
"""

import time
from contextlib import ExitStack

from bench.load import drive
from bench.machine import cpu_of, resident_bytes
from bench.peers import Flush
from bench.peers.clusters import Cluster
from bench.scenarios import MB, SIZES, Run, latency, throughput

NAME = "replicated"
MODES = (Flush.OS, Flush.COMMIT)
SIZE = "1 KB"  # of messages at a fixed rate
REST_S = 3.0


def measure(run: Run) -> None:
    with ExitStack() as stack:
        clusters = [stack.enter_context(run.cluster(peer)) for peer in run.clustered()]
        _at_rest(run, clusters)
        for flush in MODES:
            for label in run.scale.cluster_sizes:
                _throughput(run, clusters, label, flush)
            for rate in run.scale.cluster_rates:
                _latency(run, clusters, rate, flush)


def _at_rest(run: Run, clusters: list[Cluster]) -> None:
    """What a cluster takes that nobody uses: memory, and the share of a core for heartbeats and idle fetches."""
    for cluster in clusters:
        cell = run.cell(NAME, "at rest", cluster.peer.name, 1)
        cell.record("resident, all processes", "MB", sum(map(resident_bytes, cluster.pids)) / MB)
        before, watch = cpu_of(*cluster.pids), drive.Stopwatch()
        time.sleep(REST_S)
        cell.record("CPU", "cores", (cpu_of(*cluster.pids) - before).total_s / watch.seconds())


def _throughput(run: Run, clusters: list[Cluster], label: str, flush: Flush) -> None:
    case = f"{label} acks=all {flush.value}"
    for number in run.rounds(run.scale.cluster_rounds):
        run.say(f"{NAME}: {case}, round {number}")
        turn = throughput.Turn(run, NAME, case, number, label, -1, flush)
        for cluster in clusters:
            turn.plain_socket(cluster)
            turn.librdkafka(cluster)


def _latency(run: Run, clusters: list[Cluster], rate: int, flush: Flush) -> None:
    case = f"{rate:,}/s acks=all {flush.value}"
    for number in run.rounds(run.scale.cluster_rounds):
        run.say(f"{NAME}: {case}, round {number}")
        for cluster in clusters:
            with run.stream(cluster, flush, acks=-1) as stream:
                job = drive.Paced(stream, SIZES[SIZE], rate, run.scale.paced_s)
                latency.one(run, cluster, job, run.cell(NAME, case, cluster.peer.name, number))
