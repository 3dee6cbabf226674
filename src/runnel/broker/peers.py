"""The other brokers: connections to them, where the image says that they are.

Rule 1: a connection ends when its broker leaves the cluster, begins a new life, or is somewhere else.
Rule 2: every question has a deadline; a broker that can't be reached is tried again after a pause that grows.
Rule 3: what may wait long on the other side (a follower's fetch) has a lane, a connection, of its own.
"""

from typing import Any, Final, NamedTuple, TypeVar

from runnel.client.cluster import ClusterSettings, Node
from runnel.client.errors import BrokerUnreachable
from runnel.client.metadata import BrokerAddress
from runnel.cluster.image import Broker, Image
from runnel.model.ids import BrokerId, Epoch
from runnel.wire.kafka.apis import Api

LISTENER: Final = "kafka"  # brokers talk to each other through the door that clients use
MAIN: Final = "main"
NAME: Final = "runnel-broker-"  # the client id of a broker that asks another begins so
CONNECT_MS: Final = 3_000

R = TypeVar("R")


class Life(NamedTuple):
    """One life of a broker, and where it can be reached."""

    epoch: Epoch
    host: str
    port: int


class Peers:
    """Connections by broker and lane, made when they are needed."""

    def __init__(self, me: BrokerId) -> None:
        self._settings = ClusterSettings(client_id=f"{NAME}{me}", connect_timeout_ms=CONNECT_MS)
        self._lives: dict[BrokerId, Life] = {}
        self._nodes: dict[tuple[BrokerId, str], Node] = {}

    def follow(self, image: Image) -> None:
        """The image changed: forget whoever is not where it was."""
        lives = {broker.id: _life(broker) for broker in image.brokers.values()}
        if lives == self._lives:
            return
        for key in [key for key in self._nodes if lives.get(key[0]) != self._lives.get(key[0])]:
            self._nodes.pop(key).close()
        self._lives = lives

    def close(self) -> None:
        for node in self._nodes.values():
            node.close()
        self._nodes.clear()
        self._lives.clear()

    def drop(self, broker: BrokerId, lane: str) -> None:
        """Close a connection: who waits over there learns that nobody is left to be answered."""
        node = self._nodes.pop((broker, lane), None)
        if node is not None:
            node.close()

    async def reach(self, broker: BrokerId, lane: str = MAIN) -> None:
        """Connect, unless we are; raises if that fails. What is asked afterwards may have been done if it fails."""
        node = self._node(broker, lane)
        try:
            await node.connection()
        finally:
            self._check(node, broker, lane)

    async def ask(
        self, broker: BrokerId, api: Api, request: Any, reply: type[R], *,
        timeout_ms: int, lane: str = MAIN, version_max: int | None = None,
    ) -> R:  # fmt: skip
        """Put a request to a broker in the newest version that both know; raises if there is no answer in time."""
        node = self._node(broker, lane)
        try:
            return await node.ask(api, request, reply, timeout_ms=timeout_ms, version_max=version_max)
        finally:
            self._check(node, broker, lane)

    def _check(self, node: Node, broker: BrokerId, lane: str) -> None:
        if self._nodes.get((broker, lane)) is not node:
            node.close()  # it was forgotten while it connected

    def _node(self, broker: BrokerId, lane: str) -> Node:
        life = self._lives.get(broker)
        if life is None:
            raise BrokerUnreachable(f"broker {broker} is not alive: wait until it is back")
        if (broker, lane) not in self._nodes:
            self._nodes[broker, lane] = Node(BrokerAddress(broker, life.host, life.port), self._settings)
        return self._nodes[broker, lane]


def _life(broker: Broker) -> Life:
    endpoint = broker.listeners[LISTENER]
    return Life(broker.epoch, endpoint.host, endpoint.port)
