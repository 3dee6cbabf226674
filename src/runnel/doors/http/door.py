"""The HTTP door: what its operations share."""

from typing import Protocol

from runnel.broker.broker import Broker
from runnel.client.cluster import Cluster
from runnel.doors.http.hosts import Hosts
from runnel.doors.http.pages import Pages
from runnel.model.seams import Clock, Rng
from runnel.net.traffic import Traffic


class Listener(Protocol):
    """What is counted of a door."""

    traffic: Traffic

    @property
    def open_connections(self) -> int: ...


class HttpDoor:
    """One broker's side of the door."""

    def __init__(self, broker: Broker, clock: Clock, rng: Rng) -> None:
        self.broker = broker
        self.clock = clock
        self.rng = rng
        self.body_bytes_max = broker.config.http_body_bytes_max
        self.bounds = broker.bounds
        self.hosts = Hosts(broker.config.http_hosts.split(","))
        self.pages = Pages(broker.config.http_origins.split(","))
        self.stopping = False
        self.traffic = Traffic()  # of this door
        self.doors: dict[str, Listener] = {}  # all of this broker, by name

    def cluster(self) -> Cluster:
        """The cluster as its clients see it: what belongs to other brokers is asked of them, in Kafka's words."""
        return self.broker.client.cluster()
