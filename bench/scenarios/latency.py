"""Latency at a fixed rate: from when a message was due to be sent, to its acknowledgement, and to its consumer.

Measured from when it was due, not from when it was sent: a server that stalls can't hide it by stalling its client.
11,574 messages a second are a thousand million a day, the load Runnel is designed for.
"""

from typing import Any

from bench.load import drive, librdkafka
from bench.load.kafka_wire import KafkaWire
from bench.machine import cpu_of
from bench.peers import Flush, Server
from bench.percentiles import percentiles
from bench.scenarios import SIZES, Run

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
                    case = f"{rate:,}/s acks={'all' if acks < 0 else acks} {flush.value}"
                    for number in run.rounds():
                        run.say(f"{NAME}: {case}, round {number}")
                        for server in servers if (acks, flush) in ENDS else _kafkas(servers):
                            _one(run, case, number, server, flush, acks, rate)


def _kafkas(servers: list[Server]) -> list[Server]:
    """To others, acks means nothing: they are measured where the guarantee is the least and where it is the most."""
    return [server for server in servers if server.peer.protocol == "kafka"]


def _one(run: Run, case: str, number: int, server: Server, flush: Flush, acks: int, rate: int) -> None:
    sender, reader = run.workers
    name = server.peer.name
    with run.stream(server, flush, acks=acks) as stream:
        before, job = cpu_of(server.pid), drive.Paced(stream, SIZE, rate, run.scale.paced_s)
        if isinstance(stream, KafkaWire):
            kafka_job = librdkafka.Paced(server.address, stream.topic, acks, SIZE, rate, run.scale.paced_s)
            reader.begin(librdkafka.follow, kafka_job)
            acked: list[float] = sender.run(librdkafka.pace, kafka_job)
        else:
            reader.begin(drive.follow, job)
            acked = sender.run(drive.pace, job)
        arrived: list[float] = reader.finish()
        used = cpu_of(server.pid) - before
    for metric, latencies in (("to ack", acked), ("to consumer", arrived)):
        for label, seconds in percentiles(_settled(latencies)).items():
            run.record(NAME, case, f"{metric} {label}", "ms", name, number, seconds * 1000)
    run.record(NAME, case, "server CPU", "µs/msg", name, number, used.total_s / len(acked) * 1e6)


def _settled(latencies: list[Any]) -> list[Any]:
    return latencies[int(len(latencies) * SETTLING_SHARE) :]
