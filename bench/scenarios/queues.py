"""Queues: messages that are leased and accepted, a second; and whether that costs the same with a large backlog behind
them and with many queues beside them.

Redis Streams (a consumer group) and NATS JetStream (a pull consumer, acknowledgements that are answered) have the like.
One consumer, one connection, one batch at a time: what is measured is a round trip with a lease and one with a verdict,
both as durable as the guarantee says.
"""

from collections.abc import Iterable
from itertools import count
from statistics import median

from bench.load import leases
from bench.load.kafka_wire import KafkaWire
from bench.load.leases import Fill, Leases, NatsLeases, RedisLeases, RunnelLeases, Take, Visit
from bench.load.nats_wire import NatsWire
from bench.load.redis_wire import RedisWire
from bench.machine import cpu_of, resident_bytes
from bench.peers import Flush, Peer, Server
from bench.report import OURS
from bench.scenarios import MB, SIZES, Cell, Run

NAME = "queues"
MODES = (Flush.OS, Flush.COMMIT)
BATCHES = (1, 10, 100)
SIZE = SIZES["1 KB"]
SMALL = SIZES["100 B"]  # of a backlog
PEERS_BACKLOG_MAX = 2_000_000  # Redis holds it in memory
_numbers = count(1)


def measure(run: Run) -> None:
    for flush in MODES:
        with run.servers(flush, _peers(run)) as servers:
            _prepare(servers, flush)
            for batch in BATCHES:
                _rounds(run, servers, flush, batch)
    with run.servers(Flush.OS, _peers(run)) as servers:
        _prepare(servers, Flush.OS)
        for backlog in run.scale.queue_backlogs:
            _backlog(run, servers, backlog)
        for queues in run.scale.queue_counts:
            _many(run, servers, queues)


def _peers(run: Run) -> list[Peer]:
    return [peer for peer in run.peers if peer.name == OURS or peer.protocol != "kafka"]


def _prepare(servers: Iterable[Server], flush: Flush) -> None:
    for server in servers:
        if server.peer.name == OURS:
            leases.set_flush(server.address, flush.value)


def _leases(run: Run, server: Server, flush: Flush) -> Leases:
    """A queue on a log that is there, and empty."""
    log = run.dialect(server, flush, acks=-1, partitions=1)
    log.create()
    return _on(log)


def _on(log: object) -> Leases:
    match log:
        case KafkaWire():
            return RunnelLeases(log, f"{log.topic}.queue{next(_numbers)}")
        case RedisWire():
            return RedisLeases(log, f"group{next(_numbers)}")
        case NatsWire():
            return NatsLeases(log, f"consumer{next(_numbers)}")
    raise AssertionError(log)


def _rounds(run: Run, servers: list[Server], flush: Flush, batch: int) -> None:
    case = f"batches of {batch} {flush.value}"
    for number in run.rounds(run.scale.queue_rounds):
        run.say(f"{NAME}: {case}, round {number}")
        for server in servers:
            made = _leases(run, server, flush)
            total = run.scale.queue_messages
            run.workers[0].run(leases.fill, Fill(made.log, total, SIZE))
            made.create()
            cell = run.cell(NAME, case, server.peer.name, number)
            _take(run, server, Take(made, batch, total, run.scale.queue_s), cell)
            made.log.delete()


def _take(run: Run, server: Server, job: Take, cell: Cell) -> None:
    before = cpu_of(*server.pids)
    outcome = run.workers[0].run(leases.take, job)
    used = cpu_of(*server.pids) - before
    cell.record("lease+accept", "msg/s", outcome.rate)
    cell.record("server CPU", "µs/msg", used.total_s / outcome.messages * 1e6)


def _backlog(run: Run, servers: list[Server], backlog: int) -> None:
    """The first messages of queues on one log: what lies behind them should not matter."""
    case = f"{backlog:,} behind, batches of 10 os"
    for server in servers:
        if server.peer.name != OURS and backlog > PEERS_BACKLOG_MAX:
            run.note(f"{NAME}: {backlog:,} messages were not given to {server.peer.name}")
            continue
        run.say(f"{NAME}: {case}, {server.peer.name}")
        log = _leases(run, server, Flush.OS).log
        run.workers[0].run(leases.fill, Fill(log, backlog, SMALL))
        for number in run.rounds(run.scale.queue_rounds):
            made = _on(log)
            made.create()
            total = min(run.scale.queue_messages, backlog // 2)
            cell = run.cell(NAME, case, server.peer.name, number)
            _take(run, server, Take(made, 10, total, run.scale.queue_s), cell)
        log.delete()


def _many(run: Run, servers: list[Server], queues: int) -> None:
    """One message of a queue chosen at random, of many on one log."""
    case = f"{queues:,} queues os"
    for server in servers:
        run.say(f"{NAME}: {case}, {server.peer.name}")
        made = _leases(run, server, Flush.OS)
        visits = run.scale.queue_visits * (len(run.rounds(run.scale.queue_rounds)) + 1)
        run.workers[0].run(leases.fill, Fill(made.log, 1_000 + 2 * visits // queues, SMALL))  # enough for each queue
        before = resident_bytes(server.pid)
        for number in range(queues):
            made.another(number).create()
        run.workers[0].run(leases.visit, Visit(made, queues, run.scale.queue_visits))
        for number in run.rounds(run.scale.queue_rounds):
            cell = run.cell(NAME, case, server.peer.name, number)
            used = cpu_of(*server.pids)
            trips = run.workers[0].run(leases.visit, Visit(made, queues, run.scale.queue_visits))
            used = cpu_of(*server.pids) - used
            cell.record("lease+accept p50", "µs", median(trips) * 1e6)
            cell.record("server CPU", "µs/msg", used.total_s / len(trips) * 1e6)
            cell.record("resident growth", "MB", max(0, resident_bytes(server.pid) - before) / MB)
        made.log.delete()
