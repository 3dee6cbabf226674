"""Filters: what choosing a hundredth of the messages costs the broker for each message that it looks at, what crosses
the network, and what the worst filters that are allowed cost.

NATS chooses by subject, so it stands beside the choice by key. Redis Streams have nothing of the kind.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from bench.load import filtering, librdkafka
from bench.load.filtering import KINDS, WANTED, Judged, Sought, Written
from bench.load.kafka_wire import KafkaWire
from bench.load.nats_wire import NatsWire
from bench.machine import cpu_of
from bench.peers import Flush, Peer, Server
from bench.report import OURS
from bench.scenarios import SIZES, Cell, Run

NAME = "filters"
SIZE = SIZES["1 KB"]
VIEWS = {
    "1 % by key": f"key = 'k{WANTED}'",
    "1 % by header": f"headers.region = 'r{WANTED}'",
    "1 % by JSON field": f"body.amount = {WANTED}",
    "1 % by LIKE": f"""value LIKE '%"amount": {WANTED},%'""",
}
BY_SUBJECT = "1 % by key"
EXPRESSIONS = {
    "key": "key = 'x'",
    "header": "headers.region = 'x'",
    "JSON field": "body.amount > 1000",
    "LIKE": "value LIKE '%not there%'",
    "header and JSON field": "headers.region = 'r7' AND body.amount > 1000",
    "hostile: 32 deep": "NOT (" * 16 + "body.customer.city = 'x'" + ")" * 16,
    "hostile: 250 in a row": " OR ".join(["offset = 0"] * 250),
    "hostile: 500 in a list": f"body.amount IN ({','.join(map(str, range(1000, 1500)))})",
    "hostile: 16 LIKE": " OR ".join(f"value LIKE '%a%b%c%d%e%{n}x%'" for n in range(16)),
    "hostile: gaps in LIKE": "value LIKE '%" + " _" * 31 + " x%'",
    "hostile: 60 JSON fields": " OR ".join(f"body.f{n}.g = 1" for n in range(60)),
}


def measure(run: Run) -> None:
    with run.servers(Flush.OS, _peers(run)) as servers:
        for server in servers:
            with _source(run, server) as log:
                for number in run.rounds():
                    run.say(f"{NAME}: {server.peer.name}, round {number}")
                    _read(run, server, log, number)
    for label, text in EXPRESSIONS.items():
        for number in run.rounds():
            _judge(run, text, run.cell(NAME, f"one message, {label}", OURS, number))


def _peers(run: Run) -> list[Peer]:
    return [peer for peer in run.peers if peer.name == OURS or peer.protocol == "nats"]


@contextmanager
def _source(run: Run, server: Server) -> Iterator[KafkaWire | NatsWire]:
    log = run.dialect(server, Flush.OS, acks=1, partitions=1)
    assert isinstance(log, KafkaWire | NatsWire)
    if isinstance(log, NatsWire):
        filtering.create_nats(log)
    else:
        log.create()
    run.workers[0].run(filtering.write, Written(log, run.scale.filtered // KINDS * KINDS, SIZE))
    try:
        yield log
    finally:
        log.delete()


def _read(run: Run, server: Server, log: KafkaWire | NatsWire, number: int) -> None:
    if isinstance(log, NatsWire):
        _seek(run, server, log, run.cell(NAME, BY_SUBJECT, server.peer.name, number))
        return
    _seek(run, server, log, run.cell(NAME, "all, no filter", server.peer.name, number))
    for case, text in VIEWS.items():
        view = KafkaWire(server.address, f"{log.topic}-view", config={"view.of": log.topic, "view.filter": text})
        view.create()
        try:
            _seek(run, server, view, run.cell(NAME, case, server.peer.name, number))
        finally:
            librdkafka.delete_topic(server.address, view.topic)


def _seek(run: Run, server: Server, log: KafkaWire | NatsWire, cell: Cell) -> None:
    before = cpu_of(*server.pids)
    found = run.workers[0].run(filtering.seek, Sought(log, run.scale.filtered // KINDS * KINDS))
    used = cpu_of(*server.pids) - before
    cell.record("looked at", "msg/s", found.outcome.rate)
    cell.record("server CPU", "µs/msg", used.total_s / found.outcome.messages * 1e6)
    cell.record("received", "% of the bytes", 100 * found.received_bytes / (found.outcome.messages * SIZE))


def _judge(run: Run, text: str, cell: Cell) -> None:
    cost = run.workers[0].run(filtering.judge, Judged(text, run.scale.filter_s, SIZE))
    cell.record("cost", "µs/msg", cost.message_s * 1e6)
    cell.record("compile", "ms", cost.compile_s * 1e3)
