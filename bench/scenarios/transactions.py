"""What a transaction costs: messages in transactions of 10, 100 and 1,000, against as many without.

Without, the client flushes where a transaction would end, so that the difference is the transaction: its partitions
are named to the coordinator, its end is logged there, and markers go to each partition. The coordinator's own log has
the same guarantee as the messages, on both sides.
"""

from collections.abc import Callable

from bench.load import transactions
from bench.load.kafka_wire import KafkaWire
from bench.load.leases import set_flush
from bench.load.transactions import Done, Job
from bench.machine import cpu_of
from bench.peers import Flush, Server
from bench.percentiles import percentiles
from bench.report import OURS
from bench.scenarios import SIZES, Cell, Run

NAME = "transactions"
MODES = (Flush.OS, Flush.COMMIT)
SIZE = SIZES["1 KB"]
PARTITIONS = 3
SHOWN = ("p50", "p99")
CLIENTS: dict[str, Callable[[Job], Done]] = {
    "librdkafka": transactions.through_librdkafka,
    "own client": transactions.through_own,
}


def measure(run: Run) -> None:
    kafkas = [peer for peer in run.peers if peer.protocol == "kafka"]
    for flush in MODES:
        with run.servers(flush, kafkas) as servers:
            for server in servers:
                _prepare(server, flush)
            for per in run.scale.transactions:
                _rounds(run, servers, flush, per)


def _prepare(server: Server, flush: Flush) -> None:
    """Let the coordinator's log have the guarantee of the messages. Runnel has it from the default of all topics."""
    ours = server.peer.name == OURS
    if ours:
        set_flush(server.address, flush.value)
    transactions.prepare(server.address, {} if ours else server.peer.topic_config(flush))


def _rounds(run: Run, servers: list[Server], flush: Flush, per: int) -> None:
    case = f"{per:,} messages {flush.value}"
    for number in run.rounds(run.scale.transaction_rounds):
        run.say(f"{NAME}: {case}, round {number}")
        for server in servers:
            cell = run.cell(NAME, case, server.peer.name, number)
            for client, work in CLIENTS.items():
                _one(run, server, flush, per, client, work, cell)


def _one(
    run: Run, server: Server, flush: Flush, per: int, client: str, work: Callable[[Job], Done], cell: Cell
) -> None:
    """The same messages without and with transactions, one right after the other."""
    for transactional, label in ((False, "without"), (True, "with")):
        with run.stream(server, flush, acks=-1, partitions=PARTITIONS) as stream:
            assert isinstance(stream, KafkaWire)
            seconds = run.scale.transaction_s
            job = Job(server.address, stream.topic, PARTITIONS, SIZE, per, seconds, transactional)
            before = cpu_of(*server.pids)
            done = run.workers[0].run(work, job)
            used = cpu_of(*server.pids) - before
        cell.record(f"{client} {label}", "msg/s", done.messages / done.seconds)
        cell.record(f"{client} {label}: server CPU", "µs/msg", used.total_s / done.messages * 1e6)
    for name, took_s in percentiles(done.commits).items():
        if name in SHOWN:
            cell.record(f"{client}: commit {name}", "ms", took_s * 1000)
