"""NATS JetStream: Debian's nats-server with file storage."""

import subprocess
from pathlib import Path

from bench.peers import HOST, Flush, Protocols, Server, free_port, launch
from tools import debian

PROGRAM = "nats-server"


class Nats:
    name = "nats"
    protocol: Protocols = "nats"

    def missing(self) -> str | None:
        return debian.lack(PROGRAM, "nats-server")

    def version(self) -> str:
        said = subprocess.run(
            [debian.find(PROGRAM) or PROGRAM, "--version"], capture_output=True, text=True, check=True
        )
        return said.stdout.strip().rsplit("v", 1)[-1]

    def guarantee(self, flush: Flush) -> str | None:
        """Up to 2.9 it syncs every two minutes and can't be told otherwise; `sync_interval` came with 2.10."""
        return "page cache (synced every 2 minutes)" if flush is Flush.OS else None

    def topic_config(self, flush: Flush) -> dict[str, str]:
        return {}

    def start(self, data: Path, flush: Flush) -> Server:
        port = free_port()
        options = ["--addr", HOST, "--port", str(port), "--jetstream", "--store_dir", str(data.absolute())]
        return launch(self, [debian.find(PROGRAM) or PROGRAM, *options], port, data)
