"""Apache Kafka: nodes that are broker and controller in one process (KRaft), from its jars on Maven Central.

    python -m bench.peers.kafka --port 9092 --data DIR      runs one in the foreground, e.g. for tests/compat

`mvn` fetches the jars named in kafka.pom.xml into build/peers once. Heap and collector are those of Kafka's own start
script.
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.load.ask import Asker
from bench.peers import BUILD, HOST, Flush, Protocols, Server, free_port, launch
from bench.peers.clusters import SESSION_MS, Cluster, Place
from tools import debian

VERSION = "4.3.0"
CLUSTER_ID = "RunnelBenchPeerKafka0A"  # 22 characters: a UUID in base64, as the storage tool wants it
POM = Path(__file__).with_name("kafka.pom.xml")
JVM = [
    "-server", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent", "-Djava.awt.headless=true", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
]  # fmt: skip


def jars() -> Path:
    return (BUILD / f"kafka-{VERSION}").absolute()


@dataclass(frozen=True, slots=True)
class Node:
    """One of Kafka's processes, broker and controller in one."""

    number: int
    data: Path
    port: int
    controller_port: int


def properties(node: Node, nodes: Sequence[Node]) -> str:
    """A server.properties for one of these nodes. Its own topics have as many replicas as there are nodes, up to 3."""
    replicas = str(min(len(nodes), 3))
    in_sync = str(min(len(nodes), 2))
    settings = {
        "process.roles": "broker,controller",
        "node.id": str(node.number),
        "controller.quorum.voters": ",".join(f"{each.number}@{HOST}:{each.controller_port}" for each in nodes),
        "listeners": f"PLAINTEXT://{HOST}:{node.port},CONTROLLER://{HOST}:{node.controller_port}",
        "advertised.listeners": f"PLAINTEXT://{HOST}:{node.port}",
        "controller.listener.names": "CONTROLLER",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": str(node.data.absolute() / "log"),
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": replicas,
        "share.coordinator.state.topic.min.isr": in_sync,
        "group.initial.rebalance.delay.ms": "0",
        "broker.session.timeout.ms": str(SESSION_MS),
    }
    return "".join(f"{key}={value}\n" for key, value in settings.items())


def java(main_class: str, *arguments: str | Path, options: list[str] | None = None) -> list[str]:
    return ["java", *(options or []), "-cp", f"{jars()}/*", main_class, *map(str, arguments)]


def prepare(node: Node, nodes: Sequence[Node] = ()) -> Path:
    """Write the settings, and format the storage if this folder is new."""
    node.data.mkdir(parents=True, exist_ok=True)
    settings = node.data / "server.properties"
    settings.write_text(properties(node, nodes or [node]))
    if not (node.data / "log" / "meta.properties").exists():
        with (node.data / "format.log").open("wb") as log:
            format_storage = java("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", settings)
            subprocess.run(format_storage, check=True, stdout=log, stderr=log)
    return settings


def command(settings: Path) -> list[str]:
    return java("kafka.Kafka", settings, options=JVM)


class Kafka:
    name = "kafka"
    protocol: Protocols = "kafka"
    lost_words: str | None = None

    def missing(self) -> str | None:
        for program, package in (("java", "openjdk-17-jre-headless"), ("mvn", "maven")):
            if problem := debian.lack(program, package):
                return problem
        return None if any(jars().glob(f"kafka_*-{VERSION}.jar")) else self._fetch()

    def _fetch(self) -> str | None:
        print(f"bench: fetching Apache Kafka {VERSION} from Maven Central into {BUILD}", file=sys.stderr)
        copy = ["dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars()}"]
        build = ["mvn", "-q", "-B", "-f", str(POM), f"-Dkafka.version={VERSION}", *copy]
        done = subprocess.run(build, capture_output=True, text=True)
        return None if done.returncode == 0 else f"mvn could not fetch its jars: {done.stdout.strip()[-300:]}"

    def version(self) -> str:
        return VERSION

    def guarantee(self, flush: Flush) -> str | None:
        match flush:
            case Flush.OS:
                return "page cache (Kafka's default)"
            case Flush.INTERVAL:
                return "synced every second (flush.ms=1000)"
            case Flush.COMMIT:
                return "fsync before the ack (flush.messages=1)"

    def topic_config(self, flush: Flush) -> dict[str, str]:
        match flush:
            case Flush.OS:
                return {}
            case Flush.INTERVAL:
                return {"flush.ms": "1000"}
            case Flush.COMMIT:
                return {"flush.messages": "1"}

    def start(self, data: Path, flush: Flush) -> Server:
        node = Node(1, data, free_port(), free_port())
        return launch(self, command(prepare(node)), node.port, data)

    def cluster_missing(self) -> str | None:
        return None

    def start_cluster(self, data: Path, brokers: int) -> Cluster:
        """Nodes that are broker and controller each; the controllers are a quorum of all of them."""
        folders = {number: data / str(number) for number in range(1, brokers + 1)}
        for number, folder in folders.items():
            prepare(Node(number, folder, free_port(), free_port()))
        # Formatting takes seconds: ports are chosen after it, so that nobody takes them meanwhile.
        nodes = [Node(number, folder, free_port(), free_port()) for number, folder in folders.items()]
        places = {node.number: Place(command(prepare(node, nodes)), node.port, node.data) for node in nodes}
        return Cluster(self, places).started()

    def controller(self, asker: Asker) -> int:
        return asker.quorum_leader()


def main() -> None:
    parser = argparse.ArgumentParser("python -m bench.peers.kafka", description="Run Apache Kafka in the foreground.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--data", type=Path, required=True)
    arguments = parser.parse_args()
    if problem := Kafka().missing():
        sys.exit(f"bench: Apache Kafka can't be had: {problem}")
    settings = prepare(Node(1, arguments.data, arguments.port, free_port()))
    print(f"bench: Apache Kafka {VERSION} on {HOST}:{arguments.port}", file=sys.stderr, flush=True)
    os.execvp("java", command(settings))


if __name__ == "__main__":
    main()
