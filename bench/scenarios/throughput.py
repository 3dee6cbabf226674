"""Produce and consume as fast as possible, against what the file system takes and gives.

Two clients for a server that speaks Kafka: librdkafka, as users have it, which costs more CPU time than the broker; and
ready-made requests over a plain socket, which show the broker's own limit.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from bench.load import Outcome, drive, librdkafka, plain
from bench.load.kafka_wire import KafkaWire
from bench.machine import cpu_of
from bench.peers import Flush, Running
from bench.scenarios import LIMIT, MB, SIZES, Run

NAME = "throughput"
MODES = ((1, Flush.OS), (-1, Flush.COMMIT))
BATCH_BYTES = 1_000_000  # librdkafka's batch.size, below Kafka's message.max.bytes
BATCH_MESSAGES_MAX = 10_000  # librdkafka's batch.num.messages
CLIENT_BUSY = 0.9  # cores: above it, one thread of the client was the limit
RECORD_BYTES = 12  # what RecordBatch v2 adds to a message, at most, in batches of this size

J = TypeVar("J")


def measure(run: Run) -> None:
    for acks, flush in MODES:
        with run.servers(flush) as servers:
            for label in SIZES:
                case = f"{label} acks={'all' if acks < 0 else acks} {flush.value}"
                for number in run.rounds():
                    run.say(f"{NAME}: {case}, round {number}")
                    turn = Turn(run, NAME, case, number, label, acks, flush)
                    turn.limit()
                    for server in servers:
                        turn.plain_socket(server)
                        if server.peer.protocol == "kafka":
                            turn.librdkafka(server)


class Turn:
    """One case in one round."""

    def __init__(self, run: Run, scenario: str, case: str, number: int, label: str, acks: int, flush: Flush) -> None:
        self._run, self._scenario, self._case, self._number = run, scenario, case, number
        self._size, self._acks, self._flush = SIZES[label], acks, flush
        total = run.scale.bulk_bytes[label] // self._size
        self._batch = min(BATCH_MESSAGES_MAX, BATCH_BYTES // (self._size + RECORD_BYTES), total)
        self._total = total // self._batch * self._batch
        self._seconds = run.scale.bulk_s

    def limit(self) -> None:
        path = self._run.folder / "limit"
        sync = self._flush is Flush.COMMIT
        job = plain.Plain(str(path), self._total, self._size, self._batch, sync, self._seconds)
        cell = self._run.cell(self._scenario, self._case, LIMIT, self._number)
        for metric, work in (("produce", plain.write), ("consume", plain.read)):
            outcome = self._run.workers[0].run(work, job)
            for client in ("", " librdkafka"):
                cell.record(f"{metric}{client}", "MB/s", outcome.rate * self._size / MB)
        path.unlink()

    def plain_socket(self, server: Running) -> None:
        with self._run.stream(server, self._flush, acks=self._acks) as stream:
            job = drive.Bulk(stream, self._total, self._size, self._batch, self._seconds)
            sent = self._server_cost(server, "produce", drive.publish, job)
            self._server_cost(server, "consume", drive.read, replace(job, total=sent.messages))

    def librdkafka(self, server: Running) -> None:
        with self._run.stream(server, self._flush, acks=self._acks) as stream:
            assert isinstance(stream, KafkaWire)
            job = librdkafka.Bulk(server.address, stream.topic, 0, self._acks, self._total, self._size, self._seconds)
            sent = self._client_cost(server, "produce", librdkafka.publish, job)
            self._client_cost(server, "consume", librdkafka.read, replace(job, total=sent.messages))

    def _server_cost(self, server: Running, metric: str, work: Callable[[J], Outcome], job: J) -> Outcome:
        """The rate, and what a message cost the server, in its own code and in the kernel."""
        cell = self._run.cell(self._scenario, self._case, server.peer.name, self._number)
        before = cpu_of(*server.pids)
        outcome = self._run.workers[0].run(work, job)
        used = cpu_of(*server.pids) - before
        cell.record(metric, "MB/s", outcome.rate * self._size / MB)
        cell.record(f"{metric}: server user", "µs/msg", used.user_s / outcome.messages * 1e6)
        cell.record(f"{metric}: server system", "µs/msg", used.system_s / outcome.messages * 1e6)
        return outcome

    def _client_cost(self, server: Running, metric: str, work: Callable[[J], Outcome], job: J) -> Outcome:
        """The rate, and how busy the client was: if it was, the rate is the client's."""
        cell = self._run.cell(self._scenario, self._case, server.peer.name, self._number)
        outcome = self._run.workers[0].run(work, job)
        busy = outcome.client_cpu_s / outcome.seconds
        cell.record(f"{metric} librdkafka", "MB/s", outcome.rate * self._size / MB)
        cell.record(f"{metric} librdkafka: client busy", "cores", busy)
        if busy > CLIENT_BUSY and self._number:
            name = server.peer.name
            self._run.note(
                f"{self._scenario}: librdkafka, not {name}, was the limit in some round: {self._case} {metric}"
            )
        return outcome
