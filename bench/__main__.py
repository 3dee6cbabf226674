"""Run the measurements and print them side by side: python -m bench [--only NAME] [--full | --smoke]."""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from confluent_kafka import KafkaException

from bench import machine, report, spark_job
from bench.load import Refused, plain
from bench.peers import DidNotStart, Flush, Peer
from bench.peers.kafka import Kafka
from bench.peers.nats import Nats
from bench.peers.redis import Redis
from bench.peers.runnel import Runnel
from bench.scenarios import (
    DEFAULT,
    FULL,
    LIMIT,
    SMOKE,
    Run,
    Scale,
    filters,
    growth,
    http,
    latency,
    memory,
    metadata,
    queues,
    replicated,
    requests,
    schedule,
    spark,
    throughput,
    transactions,
)
from bench.workers import JobFailed

SCENARIOS: dict[str, Callable[[Run], None]] = {
    throughput.NAME: throughput.measure,
    requests.NAME: requests.measure,
    latency.NAME: latency.measure,
    growth.PARTITIONS: growth.partitions,
    growth.BACKLOG: growth.backlog,
    memory.NAME: memory.measure,
    transactions.NAME: transactions.measure,
    queues.NAME: queues.measure,
    schedule.NAME: schedule.measure,
    filters.NAME: filters.measure,
    http.NAME: http.measure,
    replicated.NAME: replicated.measure,
    metadata.NAME: metadata.measure,
    spark.NAME: spark.measure,
}
OF_CLUSTERS = (replicated.NAME, metadata.NAME)
PEERS: tuple[type[Peer], ...] = (Runnel, Kafka, Redis, Nats)
CONTENDERS = (LIMIT, *(kind.name for kind in PEERS), spark_job.JVM)
BUSY_LOAD = 0.5  # runnable processes on average, beside us
RESULTS = Path("build") / "bench"


def arguments_of(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m bench", description="Measure Runnel beside its peers on this machine.")
    parser.add_argument("--only", action="append", choices=SCENARIOS, help="only this scenario (can be repeated)")
    parser.add_argument(
        "--peer", action="append", choices=[p.name for p in PEERS], help="only this peer (can be repeated)"
    )
    parser.add_argument("--rounds", type=int, help="rounds counted, beside the warm-up")
    parser.add_argument(
        "--topics", type=int, action="append", help="topics of ten partitions in metadata (can be repeated)"
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help="larger and longer: 20 GB of backlog, about an hour")
    size.add_argument(
        "--smoke",
        action="store_true",
        help="seconds: only to see that every scenario runs; Runnel alone, unless a peer is named",
    )
    parser.add_argument(
        "--data", type=Path, help="where servers keep their data (default: a new folder in build/bench)"
    )
    return parser.parse_args(words)


def scale_of(arguments: argparse.Namespace) -> Scale:
    chosen = FULL if arguments.full else SMOKE if arguments.smoke else DEFAULT
    if arguments.rounds:
        chosen = replace(chosen, rounds=arguments.rounds)
    return replace(chosen, topics=tuple(arguments.topics)) if arguments.topics else chosen


def had(arguments: argparse.Namespace) -> tuple[list[Peer], dict[str, str]]:
    """The peers that can be had, and for the others why not."""
    wanted = arguments.peer or (["runnel"] if arguments.smoke else [peer.name for peer in PEERS])
    found, missing = [], {}
    for peer in (kind() for kind in PEERS if kind.name in wanted):
        if problem := peer.missing():
            missing[peer.name] = problem
        else:
            found.append(peer)
    return found, missing


def head(run: Run, missing: dict[str, str]) -> str:
    """What was measured, on what, and with which guarantees."""
    lines = [", ".join(f"{key} {value}" for key, value in machine.describe().items())]
    for peer in run.peers:
        given = "; ".join(f"{flush.value}: {peer.guarantee(flush) or 'not to be had'}" for flush in Flush)
        lines.append(f"{peer.name} {peer.version()}: {given}")
    lines += [f"{name} is MISSING: {why}" for name, why in missing.items()]
    lines.append(f"{LIMIT}: a plain sequential write (read) of batches of the same size; commit: fdatasync after each")
    return "\n".join(lines)


def measure(run: Run, name: str) -> bool:
    """Run one scenario and print its table; a failure is reported and does not stop the others."""
    if name in OF_CLUSTERS and not run.clustered():
        print(f"\n{name}: there is no cluster to measure")
        return True
    if name == spark.NAME and (lack := spark.missing()):
        print(f"\n{name}: there is no Spark to measure: {lack}")
        return True
    begun, problem = time.monotonic(), ""
    try:
        SCENARIOS[name](run)
    except (JobFailed, DidNotStart, Refused, KafkaException, OSError) as error:
        problem = f"{name} FAILED: {error}"
        run.note(problem)
        run.renew_workers()
    lines = report.lines_of(sample for sample in run.samples if sample.scenario == name)
    print(f"\n{name} ({time.monotonic() - begun:.0f} s)\n{report.table(lines, CONTENDERS)}", flush=True)
    if not report.complete(lines, [peer.name for peer in run.peers[:1]]):
        run.note(f"{name}: the table has gaps")
        return False
    return not problem


def main() -> None:
    arguments = arguments_of()
    peers, missing = had(arguments)
    RESULTS.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="data-", dir=arguments.data or RESULTS)).absolute()
    run = Run(peers, scale_of(arguments), folder)
    print(head(run, missing), flush=True)
    if (load := os.getloadavg()[0]) > BUSY_LOAD:
        run.note(f"the machine was busy when this began (load {load:.1f}): repeat it before you believe it")
    try:
        names = arguments.only or list(SCENARIOS)
        if names != [metadata.NAME]:  # which writes next to nothing
            plain.warm(str(folder / "warm"), run.scale.warm_bytes)
        good = [measure(run, name) for name in names]
    finally:
        run.close()
        shutil.rmtree(folder, ignore_errors=True)
    for note in run.notes:
        print(f"note: {note}")
    path = RESULTS / time.strftime("%Y%m%dT%H%M%SZ.json", time.gmtime())
    report.write_json(path, {"head": head(run, missing).splitlines(), "notes": run.notes}, run.samples)
    print(f"all values: {path}")
    sys.exit(0 if all(good) else 1)


if __name__ == "__main__":
    main()
