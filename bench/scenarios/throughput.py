"""Produce and consume as fast as possible, against what the file system takes and gives.

Two clients for a server that speaks Kafka: librdkafka, as users have it, which costs more CPU time than the broker; and
ready-made requests over a plain socket, which show the broker's own limit.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from bench.load import Outcome, drive, librdkafka, plain
from bench.load.kafka_wire import KafkaWire
from bench.machine import Cpu, cpu_of
from bench.peers import Flush, Server
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
            for label, size in SIZES.items():
                case = f"{label} acks={'all' if acks < 0 else acks} {flush.value}"
                for number in run.rounds():
                    run.say(f"{NAME}: {case}, round {number}")
                    _Cell(run, case, number, size, run.scale.bulk_bytes[label] // size, acks, flush).measure(servers)


class _Cell:
    """One case in one round."""

    def __init__(self, run: Run, case: str, number: int, size: int, total: int, acks: int, flush: Flush) -> None:
        self.run, self.case, self.number, self.size, self.acks, self.flush = run, case, number, size, acks, flush
        self.batch = min(BATCH_MESSAGES_MAX, BATCH_BYTES // (size + RECORD_BYTES), total)
        self.total = total // self.batch * self.batch

    def measure(self, servers: list[Server]) -> None:
        self._limit()
        for server in servers:
            self._wire(server)
            if server.peer.protocol == "kafka":
                self._librdkafka(server)

    def _limit(self) -> None:
        path = self.run.folder / "limit"
        sync = self.flush is Flush.COMMIT
        job = plain.Plain(str(path), self.total, self.size, self.batch, sync, self.run.scale.bulk_s)
        for metric, work in (("produce", plain.write), ("consume", plain.read)):
            outcome = self.run.workers[0].run(work, job)
            self._rate(LIMIT, metric, outcome)
            self._rate(LIMIT, f"{metric} librdkafka", outcome)
        path.unlink()

    def _wire(self, server: Server) -> None:
        with self.run.stream(server, self.flush, acks=self.acks) as stream:
            job = drive.Bulk(stream, self.total, self.size, self.batch, self.run.scale.bulk_s)
            sent = self._one(server, "produce", drive.publish, job)
            self._one(server, "consume", drive.read, replace(job, total=sent.messages))

    def _librdkafka(self, server: Server) -> None:
        with self.run.stream(server, self.flush, acks=self.acks) as stream:
            assert isinstance(stream, KafkaWire)
            seconds = self.run.scale.bulk_s
            job = librdkafka.Bulk(server.address, stream.topic, 0, self.acks, self.total, self.size, seconds)
            sent = self._one(server, "produce librdkafka", librdkafka.publish, job)
            job = replace(job, total=sent.messages)
            self._one(server, "consume librdkafka", librdkafka.read, job)

    def _one(self, server: Server, metric: str, work: Callable[[J], Outcome], job: J) -> Outcome:
        before = cpu_of(server.pid)
        outcome = self.run.workers[0].run(work, job)
        self._rate(server.peer.name, metric, outcome)
        self._cpu(server.peer.name, metric, outcome, cpu_of(server.pid) - before)
        return outcome

    def _rate(self, contender: str, metric: str, outcome: Outcome) -> None:
        self._record(metric, "MB/s", contender, outcome.rate * self.size / MB)

    def _cpu(self, contender: str, metric: str, outcome: Outcome, used: Cpu) -> None:
        """What a message cost the server, in its own code and in the kernel; for librdkafka how busy the client was."""
        if metric.endswith("librdkafka"):
            busy = outcome.client_cpu_s / outcome.seconds
            self._record(f"{metric}: client busy", "cores", contender, busy)
            if busy > CLIENT_BUSY and self.number:
                self.run.note(f"{NAME}: librdkafka, not {contender}, was the limit: {self.case} {metric.split()[0]}")
            return
        self._record(f"{metric}: server user", "µs/msg", contender, used.user_s / outcome.messages * 1e6)
        self._record(f"{metric}: server system", "µs/msg", contender, used.system_s / outcome.messages * 1e6)

    def _record(self, metric: str, unit: str, contender: str, value: float) -> None:
        self.run.record(NAME, self.case, metric, unit, contender, self.number, value)
