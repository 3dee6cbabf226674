"""Delayed messages: how late they come while many others wait. No peer has the like: all of them show what they get at
once.
"""

from bench.load import delays
from bench.load.delays import Delays
from bench.machine import cpu_of, resident_bytes
from bench.peers import Flush, Server
from bench.percentiles import percentiles
from bench.report import OURS
from bench.scenarios import MB, Run

NAME = "schedule"


def measure(run: Run) -> None:
    ours = [peer for peer in run.peers if peer.name == OURS]
    for pending in run.scale.pending:
        with run.servers(Flush.COMMIT, ours) as servers:
            for server in servers:
                for number in run.rounds(run.scale.schedule_rounds):
                    _one(run, server, pending, number)


def _one(run: Run, server: Server, pending: int, number: int) -> None:
    case = f"{pending:,} waiting, {run.scale.due_rate:,}/s due"
    run.say(f"{NAME}: {case}, round {number}")
    cell = run.cell(NAME, case, server.peer.name, number)
    before = cpu_of(server.pid)
    waiting = pending if number == run.rounds()[0] else 0  # they wait for a day, and for all rounds
    job = Delays(server.address, f"delays{number}", waiting, run.scale.due_rate, run.scale.due_s)
    found = run.workers[0].run(delays.measure, job)
    used = cpu_of(server.pid) - before
    if waiting:
        run.cell(NAME, case, server.peer.name, 1).record("parked", "msg/s", waiting / found.park_s)
    for label, late_ms in percentiles(found.late_ms).items():
        cell.record(f"late {label}", "ms", late_ms)
    cell.record("server CPU", "µs/msg", used.total_s / (waiting + len(found.late_ms)) * 1e6)
    cell.record("resident", "MB", resident_bytes(server.pid) / MB)
