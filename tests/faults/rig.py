"""Three brokers and three ZooKeepers as processes, each on a host of its own where the sandbox allows it.

Without the sandbox all of them are on loopback: there are no network faults and no full disks then.
A broker that ends on its own is started again, as a service manager would; how it ended is kept.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import confluent_kafka.admin
from confluent_kafka import KafkaException
from tests.faults import wall_clock
from tests.faults.network import Network, run
from tests.faults.nodes import BrokerNode, Node, Place, ZooKeeperNode, zookeeper_lines

from runnel.dev.zookeeper import HOST, free_ports

KAFKA_PORT = 9092
ZOOKEEPER_PORTS = (2181, 2888, 3888)
DISK_MB = 256
REVIVE_S = 0.3  # after an end of its own
LOOK_S = 2.0
HEALTHY_S = 60.0
IN_SYNC_MIN = 2  # min.insync.replicas of what is written under faults
kinds: Any = confluent_kafka.admin  # its names are not typed as exported


@dataclass(frozen=True)
class Shape:
    """How large the cluster is, how quickly it takes a silent broker for dead, and a slow replica out of the ISR."""

    brokers: int = 3
    zookeepers: int = 3
    session_ms: int = 2_000
    tick_ms: int = 500
    replica_lag_ms: int = 2_000
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Death:
    """A process that ended on its own: how, and its last words."""

    name: str
    code: int
    words: str


@dataclass(frozen=True)
class View:
    """What some broker said about a topic: leaders and in-sync replicas by partition."""

    leaders: dict[int, int]
    isr: dict[int, list[int]]
    replicas: dict[int, list[int]]

    @property
    def whole(self) -> bool:
        return bool(self.leaders) and all(
            leader >= 0 and len(self.isr[n]) == len(self.replicas[n]) for n, leader in self.leaders.items()
        )

    def led_by(self, broker: int) -> list[int]:
        return [number for number, leader in self.leaders.items() if leader == broker]

    def outliving(self, broker: int) -> list[int]:
        """The partitions that a broker leads, and that go on without it: enough others are in sync."""
        return [number for number in self.led_by(broker) if len({*self.isr[number]} - {broker}) >= IN_SYNC_MIN]


class Rig:
    """The cluster, until the end of the block."""

    def __init__(self, folder: Path, *, shape: Shape | None = None, sandbox: bool = False) -> None:
        self.shape = shape or Shape()
        self.folder = folder
        names = [f"broker{n}" for n in range(1, self.shape.brokers + 1)]
        coordinators = [f"zookeeper{n}" for n in range(1, self.shape.zookeepers + 1)]
        self.network = Network([*names, *coordinators]) if sandbox else None
        self._ports = iter(free_ports(len(names) + len(ZOOKEEPER_PORTS) * len(coordinators)))
        places = [self._place(name, ZOOKEEPER_PORTS) for name in coordinators]
        lines = zookeeper_lines(places, self.shape.tick_ms)
        self.zookeepers = [
            ZooKeeperNode(n, place, folder / place.name, lines if len(places) > 1 else lines[:-1])
            for n, place in enumerate(places, 1)
        ]
        store = f"zookeeper://{','.join(place.address for place in places)}/runnel"
        environment = {
            "RUNNEL_STORE": store,
            "RUNNEL_SESSION_MS": str(self.shape.session_ms),
            "RUNNEL_REPLICA_LAG_MS": str(self.shape.replica_lag_ms),
            **self.shape.environment,
        }
        library = None if wall_clock.missing() else wall_clock.build(folder)
        self.brokers: dict[int, BrokerNode] = {}
        for number, name in enumerate(names, 1):
            clock = wall_clock.WallClock(library, folder / f"{name}.clock") if library else None
            place = self._place(name, (KAFKA_PORT,))
            self.brokers[number] = BrokerNode(number, place, folder / name, environment, clock)
        self.deaths: list[Death] = []  # of those who ended on their own
        self._built = False
        self._over = threading.Event()
        self._reviver = threading.Thread(target=self._revive, name="reviver", daemon=True)
        self._admin: Any = None

    def _place(self, name: str, ports: tuple[int, ...]) -> Place:
        if self.network is None:
            return Place(name, HOST, tuple(next(self._ports) for _ in ports))
        return Place(name, self.network.addresses[name], ports, self.network.on(name))

    @property
    def nodes(self) -> list[Node]:
        return [*self.brokers.values(), *self.zookeepers]

    @property
    def bootstrap(self) -> str:
        return ",".join(broker.place.address for broker in self.brokers.values())

    @property
    def session_s(self) -> float:
        return self.shape.session_ms / 1000

    # --- life
    def start(self) -> None:
        if self.network is not None:
            self.network.build()
        for broker in self.brokers.values():
            broker.data.parent.mkdir(parents=True, exist_ok=True)
            if self.network is not None:
                run("mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "none", str(broker.data.parent))
        self._built = True
        for node in self.zookeepers:
            node.start()
        for node in self.zookeepers:
            node.wait()
        for broker in self.brokers.values():
            broker.start()
        self._reviver.start()
        for broker in self.brokers.values():
            broker.wait()

    def _revive(self) -> None:
        while not self._over.wait(REVIVE_S):
            for node in [node for node in self.nodes if not node.running]:
                words = node.log().splitlines()[-1:]  # those of the next life come later
                if (code := node.revive()) is not None:
                    self.deaths.append(Death(str(node), code, "".join(words)))

    def stop(self) -> None:
        """Nobody is started again; all processes end."""
        self._over.set()
        if self._reviver.is_alive():
            self._reviver.join()
        for node in self.nodes:
            node.end()
        if self.network is not None and self._built:
            for broker in self.brokers.values():
                run("umount", "--lazy", str(broker.data.parent))
            self.network.remove()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- looking
    @property
    def admin(self) -> Any:
        if self._admin is None:
            quick = {"socket.timeout.ms": 3000, "reconnect.backoff.max.ms": 500, "log_level": 0}
            self._admin = kinds.AdminClient({"bootstrap.servers": self.bootstrap, **quick})
        return self._admin

    def view(self, topic: str) -> View | None:
        """What the cluster says about a topic; None if nobody answers in time."""
        try:
            partitions = self.admin.list_topics(topic, LOOK_S).topics[topic].partitions
        except (KafkaException, KeyError):
            return None
        return View(
            {n: part.leader for n, part in partitions.items()},
            {n: part.isrs for n, part in partitions.items()},
            {n: part.replicas for n, part in partitions.items()},
        )

    def zookeeper_leader(self) -> ZooKeeperNode | None:
        return next((node for node in self.zookeepers if node.mode() in ("leader", "standalone")), None)

    def wait_whole(self, topics: Sequence[str], limit_s: float = HEALTHY_S) -> float:
        """Wait until every replica of these topics is in sync; how long that took."""
        began = time.monotonic()
        while True:
            views = [self.view(topic) for topic in topics]
            if all(view is not None and view.whole for view in views):
                return time.monotonic() - began
            if time.monotonic() - began > limit_s:
                raise RuntimeError(f"not whole after {limit_s:.0f} s: {dict(zip(topics, views, strict=True))}")
            time.sleep(0.1)

    def create_topic(self, topic: str, partitions: int, replication: int, config: dict[str, str]) -> None:
        self.admin.create_topics([kinds.NewTopic(topic, partitions, replication, config=config)])[topic].result(60)
        self.wait_whole([topic])

    @contextmanager
    def full_disk(self, broker: BrokerNode) -> Iterator[None]:
        """Nothing can be written any more on its disk."""
        ballast = broker.data.parent / "ballast"
        with ballast.open("wb", buffering=0) as file:
            for piece in (1 << 20, 4096):
                try:
                    while file.write(bytes(piece)) == piece:
                        pass
                except OSError:
                    continue
        try:
            yield
        finally:
            ballast.unlink(missing_ok=True)
