"""Resident memory: at rest, and with many connections."""

import resource
import socket

from bench.load.kafka_wire import KafkaWire, greet
from bench.machine import resident_bytes
from bench.peers import Flush, Server
from bench.scenarios import MB, Run

NAME = "memory"
SPARE_FILES = 200


def measure(run: Run) -> None:
    limit = max(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 0)
    connections = min(run.scale.connections, limit - SPARE_FILES)
    if connections < run.scale.connections:
        run.note(f"{NAME}: only {connections} connections, because this process may open {limit} files (ulimit -n)")
    with run.servers(Flush.OS) as servers:
        run.say(f"{NAME}: {connections} connections")
        for server in servers:
            idle = resident_bytes(server.pid)
            run.cell(NAME, "at rest", server.peer.name, 1).record("resident", "MB", idle / MB)
            full = _with_connections(run, server, connections)
            cell = run.cell(NAME, f"{connections:,} connections", server.peer.name, 1)
            cell.record("resident", "MB", full / MB)
            cell.record("more for each", "KB", (full - idle) / connections / 1000)


def _with_connections(run: Run, server: Server, count: int) -> int:
    dialect = run.dialect(server, Flush.OS, acks=1, partitions=1)
    opened: list[socket.socket] = []
    try:
        for _ in range(count):
            opened.append(dialect.connect())
            if isinstance(dialect, KafkaWire):
                greet(opened[-1])
        return resident_bytes(server.pid)
    finally:
        for connection in opened:
            connection.close()
