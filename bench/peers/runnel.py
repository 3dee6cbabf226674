"""Runnel itself, as `runnel serve` starts it."""

import sys
from importlib.metadata import version
from pathlib import Path

from bench.load.ask import Asker
from bench.peers import HOST, Flush, Protocols, Server, free_port, launch
from bench.peers.clusters import SESSION_MS, Cluster, Place
from runnel.dev import zookeeper
from runnel.dev.cluster import TICK_MS

COMMAND = Path(sys.executable).with_name("runnel")


class Runnel:
    name = "runnel"
    protocol: Protocols = "kafka"
    lost_words: str | None = "the session with ZooKeeper is over"

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
        return launch(self, serve(data, port), port, data)

    def cluster_missing(self) -> str | None:
        return zookeeper.missing()

    def start_cluster(self, data: Path, brokers: int) -> Cluster:
        """One ZooKeeper that syncs what it is told, as its own default is, and brokers that find each other there."""
        keeper = zookeeper.ZooKeeperServer(
            data / "zookeeper", zookeeper.settings(TICK_MS), free_port(), power_safe=True
        )
        cluster = Cluster(self, {number: self._place(data, number, keeper) for number in range(1, brokers + 1)}, keeper)
        return cluster.started()

    def _place(self, data: Path, number: int, keeper: zookeeper.ZooKeeperServer) -> Place:
        own, port = data / str(number), free_port()
        options = ["--store", f"zookeeper://{keeper.address}", "--broker-id", str(number)]
        environment = {"RUNNEL_SESSION_MS": str(SESSION_MS)}
        return Place([*serve(own, port), *options], port, own, environment)

    def controller(self, asker: Asker) -> int:
        return asker.look([]).controller


def serve(data: Path, port: int) -> list[str]:
    return [str(COMMAND), "serve", "--data", str(data), "--kafka", f"{HOST}:{port}"]
