"""Latency at a fixed rate: from when a message was due to be sent, to its acknowledgement, and to its consumer.

Measured from when it was due, not from when it was sent: a server that stalls can't hide it by stalling its client.
11,574 messages a second are a thousand million a day, the load Runnel is designed for.
"""

from bench.load import drive, librdkafka
from bench.load.kafka_wire import KafkaWire
from bench.machine import cpu_of
from bench.peers import Flush, Running, Server
from bench.percentiles import percentiles
from bench.scenarios import SIZES, Cell, Run

NAME = "latency"
ENDS = ((1, Flush.OS), (-1, Flush.COMMIT))
ALL = ((1, Flush.OS), (-1, Flush.OS), (-1, Flush.INTERVAL), (1, Flush.COMMIT), (-1, Flush.COMMIT))
SIZE = SIZES["1 KB"]
SETTLING_SHARE = 0.25  # of the messages, the first: connections and caches warm up on them


def measure(run: Run) -> None:
    for flush in Flush:
        with run.servers(flush) as servers:
            for rate, which in run.scale.paced_rates.items():
                for acks in [acks for acks, mode in (ALL if which == "all" else ENDS) if mode is flush]:
                    _rounds(run, servers if (acks, flush) in ENDS else _kafkas(servers), flush, acks, rate)


def _kafkas(servers: list[Server]) -> list[Server]:
    """To others, acks means nothing: they are measured where the guarantee is the least and where it is the most."""
    return [server for server in servers if server.peer.protocol == "kafka"]


def _rounds(run: Run, servers: list[Server], flush: Flush, acks: int, rate: int) -> None:
    case = f"{rate:,}/s acks={'all' if acks < 0 else acks} {flush.value}"
    for number in run.rounds():
        run.say(f"{NAME}: {case}, round {number}")
        for server in servers:
            with run.stream(server, flush, acks=acks) as stream:
                job = drive.Paced(stream, SIZE, rate, run.scale.paced_s)
                one(run, server, job, run.cell(NAME, case, server.peer.name, number))


def one(run: Run, server: Running, job: drive.Paced, cell: Cell) -> None:
    """Send at a rate, and read in another process; what that took, and what a message cost the server."""
    before = cpu_of(*server.pids)
    acked, arrived = _through_librdkafka(run, job) if isinstance(job.dialect, KafkaWire) else _through_socket(run, job)
    used = cpu_of(*server.pids) - before
    for metric, latencies in (("to ack", acked), ("to consumer", arrived)):
        settled = latencies[int(len(latencies) * SETTLING_SHARE) :]
        for label, seconds in percentiles(settled).items():
            cell.record(f"{metric} {label}", "ms", seconds * 1000)
    cell.record("server CPU", "µs/msg", used.total_s / len(acked) * 1e6)


def _through_librdkafka(run: Run, job: drive.Paced) -> tuple[list[float], list[float]]:
    sender, reader = run.workers
    stream = job.dialect
    assert isinstance(stream, KafkaWire)
    asked = librdkafka.Paced(stream.address, stream.topic, stream.acks_wanted, job.size, job.rate, job.seconds)
    reader.begin(librdkafka.follow, asked)
    return sender.run(librdkafka.pace, asked), reader.finish()


def _through_socket(run: Run, job: drive.Paced) -> tuple[list[float], list[float]]:
    sender, reader = run.workers
    reader.begin(drive.follow, job)
    return sender.run(drive.pace, job), reader.finish()
