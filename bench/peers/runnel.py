"""Runnel itself, as `runnel serve` starts it."""

import sys
from importlib.metadata import version
from pathlib import Path

from bench.peers import HOST, Flush, Protocols, Server, free_port, launch

COMMAND = Path(sys.executable).with_name("runnel")


class Runnel:
    name = "runnel"
    protocol: Protocols = "kafka"

    def missing(self) -> str | None:
        return None if COMMAND.exists() else f"{COMMAND.name} is not beside {sys.executable}: make setup"

    def version(self) -> str:
        return version("runnel")

    def guarantee(self, flush: Flush) -> str | None:
        match flush:
            case Flush.OS:
                return "page cache (flush.mode=os)"
            case Flush.INTERVAL:
                return "synced every second (flush.mode=interval)"
            case Flush.COMMIT:
                return "acks=all after fdatasync (flush.mode=commit)"

    def topic_config(self, flush: Flush) -> dict[str, str]:
        return {"flush.mode": flush.value}

    def start(self, data: Path, flush: Flush) -> Server:
        port = free_port()
        return launch(self, [str(COMMAND), "serve", "--data", str(data), "--kafka", f"{HOST}:{port}"], port, data)
