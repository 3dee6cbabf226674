"""Spark reading topics: Runnel's connector beside Spark's own for Kafka, on the same broker and the same messages, and
beside a plain scan of the same rows in Parquet files, which is the limit.

A table and a stream are read into nothing; a stream also into a lake, as `runnel pipeline archive` does. What a
micro-batch costs by itself is seen in batches of next to nothing.
"""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bench import spark_connector, spark_job
from bench.load.kafka_wire import KafkaWire
from bench.machine import cpu_of
from bench.peers import Flush, Server
from bench.report import OURS
from bench.scenarios import MB, SIZES, SMOKE, Cell, Run
from bench.spark_job import BATCH_ROWS, JVM, PARQUET, PARTITIONS, Filled, Opened, Reading, Spent
from bench.workers import JobFailed, Worker
from runnel.pipelines.session import NotInstalled, check_installed

NAME = "spark"
SIZE = SIZES["1 KB"]
FEW = 2 * PARTITIONS * 50  # rows of a batch that is hardly worth it
CASES: dict[str, tuple[Callable[[Reading], Spent], tuple[str, ...]]] = {
    "table": (spark_job.batch, (PARQUET, OURS, JVM)),
    "stream": (spark_job.stream, (OURS, JVM)),
    "stream into a lake": (spark_job.lake, (OURS, JVM)),
}


def missing() -> str | None:
    """Why there is no Spark on this machine, or None."""
    try:
        check_installed()
    except NotInstalled as lack:
        return str(lack)
    return None


def measure(run: Run) -> None:
    jvm = _has_jvm(run)
    worker, folder = Worker(), run.data(NAME)
    folder.mkdir(parents=True)
    try:
        with run.servers(Flush.OS, [peer for peer in run.peers if peer.name == OURS]) as servers:
            worker.run(spark_job.open_spark, Opened(str(folder), jvm))
            for server in servers:
                _measure(run, worker, server, folder, jvm)
    finally:
        with suppress(JobFailed):  # what went wrong before is what counts
            worker.run(spark_job.close_spark, None)
        worker.close()
        shutil.rmtree(folder, ignore_errors=True)


def _has_jvm(run: Run) -> bool:
    """Whether Spark's own connector is there; a smoke run fetches nothing."""
    if run.scale is SMOKE and not spark_connector.jars():
        run.note(f"{JVM} was not fetched for a run that only shows whether all scenarios run")
        return False
    if problem := spark_connector.missing():
        run.note(f"{JVM} is MISSING: {problem}")
        return False
    spark, connector = spark_connector.spark_version(), spark_connector.connector_version()
    run.note(f"{JVM} is Spark's Kafka connector {connector}, in Spark {spark}")
    return True


def _measure(run: Run, worker: Worker, server: Server, folder: Path, jvm: bool) -> None:
    rows = _whole(run.scale.spark_rows)
    with _topic(run, worker, server, rows) as topic:
        _check(run, worker, [_reading(each, server, topic, rows, folder) for each in _connectors(jvm)])
        worker.run(spark_job.write_parquet, _reading(OURS, server, topic, rows, folder))
        for number, case, contender in _turns(run, jvm):
            run.say(f"{NAME}: {case}, {contender}, round {number}")
            reading = _reading(contender, server, topic, rows, folder)
            _read(worker, server, run.cell(NAME, case, contender, number), CASES[case][0], reading)
    little = _whole(FEW * run.scale.spark_batches + PARTITIONS * BATCH_ROWS - 1)
    with _topic(run, worker, server, little) as topic:
        for number in run.rounds(run.scale.spark_rounds):
            for contender in _connectors(jvm):
                reading = _reading(contender, server, topic, little, folder, rows_per_trigger=FEW)
                spent = worker.run(spark_job.stream, reading)
                run.cell(NAME, f"micro-batch of {FEW} rows", contender, number).record("median", "ms", spent.batch_ms)


def _connectors(jvm: bool) -> tuple[str, ...]:
    return (OURS, JVM) if jvm else (OURS,)


def _whole(rows: int) -> int:
    """So many rows, or a few less: whole batches in every partition."""
    return rows // (PARTITIONS * BATCH_ROWS) * PARTITIONS * BATCH_ROWS


def _turns(run: Run, jvm: bool) -> Iterator[tuple[int, str, str]]:
    """Who reads what in which round."""
    for number in run.rounds(run.scale.spark_rounds):
        for case, (_, contenders) in CASES.items():
            yield from ((number, case, contender) for contender in contenders if contender != JVM or jvm)


@contextmanager
def _topic(run: Run, worker: Worker, server: Server, rows: int) -> Iterator[str]:
    with run.stream(server, Flush.OS, partitions=PARTITIONS) as log:
        assert isinstance(log, KafkaWire)
        logs = tuple(log.at(number) for number in range(PARTITIONS))
        worker.run(spark_job.fill, Filled(logs, rows // PARTITIONS, SIZE))
        yield log.topic


def _reading(
    contender: str, server: Server, topic: str, rows: int, folder: Path, *, rows_per_trigger: int = 0
) -> Reading:
    return Reading(
        contender, server.address, topic, rows, str(folder / "stream"), str(folder / "parquet"), rows_per_trigger
    )


def _check(run: Run, worker: Worker, readings: list[Reading]) -> None:
    """A contender that reads less than there is would be the fastest."""
    for reading in readings:
        if (found := worker.run(spark_job.count, reading)) != reading.rows:
            run.note(f"{reading.contender} read {found} rows of {reading.rows}: its numbers mean nothing")


def _read(worker: Worker, server: Server, cell: Cell, work: Callable[[Reading], Spent], reading: Reading) -> None:
    before = cpu_of(*server.pids)
    spent = worker.run(work, reading)
    used = cpu_of(*server.pids) - before
    cell.record("read", "rows/s", spent.rate)
    cell.record("read", "MB/s", spent.rate * SIZE / MB)
    cell.record("Spark CPU", "s/million", spent.cpu_s / spent.rows * 1e6)
    if reading.contender != PARQUET:
        cell.record("server CPU", "s/million", used.total_s / spent.rows * 1e6)
