"""One message a request: how many a second, and how long one takes, with one connection and with sixteen."""

from bench.load import drive
from bench.machine import cpu_of
from bench.peers import Flush, Server
from bench.percentiles import percentiles
from bench.scenarios import SIZES, Cell, Run

NAME = "requests"
MODES = ((1, Flush.OS), (-1, Flush.COMMIT))
CONNECTIONS = (1, 16)


def measure(run: Run) -> None:
    for acks, flush in MODES:
        with run.servers(flush) as servers:
            for connections in CONNECTIONS:
                case = f"{connections} connections acks={'all' if acks < 0 else acks} {flush.value}"
                for number in run.rounds():
                    run.say(f"{NAME}: {case}, round {number}")
                    for server in servers:
                        cell = run.cell(NAME, case, server.peer.name, number)
                        with run.stream(server, flush, acks=acks) as stream:
                            job = drive.Single(stream, SIZES["1 KB"], connections, run.scale.single_s)
                            _one(run, server, job, cell)


def _one(run: Run, server: Server, job: drive.Single, cell: Cell) -> None:
    before = cpu_of(server.pid)
    outcome, trips = run.workers[0].run(drive.ping_pong, job)
    used = cpu_of(server.pid) - before
    cell.record("requests", "/s", outcome.rate)
    for label, seconds in percentiles(trips).items():
        cell.record(label, "ms", seconds * 1000)
    cell.record("server CPU", "µs/request", used.total_s / outcome.messages * 1e6)
