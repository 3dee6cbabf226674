"""The design load through the slowest door: one message of 1 KB in each POST, durable, from when it was due.

11,574 POST /send a second are a thousand million messages a day. Each is received by long polling, on a connection for
each user: "to receiver" is the way from one user to the other. Runnel alone: its peers have no such door.
"""

import shutil

from bench.load import letters
from bench.machine import cpu_of
from bench.peers.runnel import Runnel
from bench.percentiles import percentiles
from bench.scenarios import SIZES, Run
from runnel.testing.process import BrokerProcess

NAME = "http"
SIZE = SIZES["1 KB"]
USERS = (50, 1_000)  # who receive: the fewer, the more messages in each answer
SETTLING_SHARE = 0.25  # of the messages, the first: connections and caches warm up on them


def measure(run: Run) -> None:
    if not any(isinstance(peer, Runnel) for peer in run.peers):
        return
    data = run.data(f"{Runnel.name}-http")
    data.mkdir(parents=True)
    try:
        with BrokerProcess(data / "data") as broker:
            for rate in run.scale.paced_rates:
                for users in USERS if run.scale.warm_bytes else USERS[:1]:
                    for number in run.rounds(run.scale.queue_rounds):
                        run.say(f"{NAME}: {rate:,}/s to {users:,} users, round {number}")
                        _one(run, broker, rate, users, number)
    finally:
        shutil.rmtree(data, ignore_errors=True)


def _one(run: Run, broker: BrokerProcess, rate: int, users: int, number: int) -> None:
    sender, receiver = run.workers
    job = letters.Letters(broker.http, f"{rate}-{users}-{number}", users, SIZE, rate, run.scale.http_s)
    before = cpu_of(broker.pid)
    receiver.begin(letters.receive, job)
    sent = sender.run(letters.send, job)
    received = receiver.finish()
    used = cpu_of(broker.pid) - before
    cell = run.cell(NAME, f"{rate:,}/s to {users:,} users, acks=all commit", Runnel.name, number)
    for metric, latencies in (("to answer", sent), ("to receiver", received)):
        settled = latencies[int(len(latencies) * SETTLING_SHARE) :]
        for label, seconds in percentiles(settled).items():
            cell.record(f"{metric} {label}", "ms", seconds * 1000)
    cell.record("server CPU", "µs/msg", used.total_s / len(sent) * 1e6)
