"""Redis Streams: Debian's redis-server with its append-only file, which is its durable log."""

import subprocess
from pathlib import Path

from bench.peers import HOST, Flush, Protocols, Server, free_port, launch
from tools import debian

PROGRAM = "redis-server"
FSYNC = {Flush.OS: "no", Flush.INTERVAL: "everysec", Flush.COMMIT: "always"}


class Redis:
    name = "redis"
    protocol: Protocols = "redis"

    def missing(self) -> str | None:
        return debian.lack(PROGRAM, "redis-server")

    def version(self) -> str:
        said = subprocess.run([PROGRAM, "--version"], capture_output=True, text=True, check=True).stdout
        return said.split("v=")[1].split()[0]

    def guarantee(self, flush: Flush) -> str | None:
        return f"appendonly, appendfsync {FSYNC[flush]}"

    def topic_config(self, flush: Flush) -> dict[str, str]:
        return {}

    def start(self, data: Path, flush: Flush) -> Server:
        port = free_port()
        settings = {
            "bind": HOST,
            "port": str(port),
            "dir": str(data.absolute()),
            "save": "",  # no snapshots: the append-only file is the log
            "appendonly": "yes",
            "appendfsync": FSYNC[flush],
            "auto-aof-rewrite-percentage": "0",  # a rewrite in the middle of a round would measure the rewrite
        }
        options = [word for key, value in settings.items() for word in (f"--{key}", value)]
        data.mkdir(parents=True, exist_ok=True)
        return launch(self, [debian.find(PROGRAM) or PROGRAM, *options], port, data)
