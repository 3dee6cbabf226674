"""The HTTP door: what its operations share."""

from runnel.broker.broker import Broker
from runnel.client.cluster import Cluster
from runnel.model.seams import Clock, Rng
from runnel.net.http import HttpListener


class HttpDoor:
    """One broker's side of the door."""

    def __init__(self, broker: Broker, clock: Clock, rng: Rng) -> None:
        self.broker = broker
        self.clock = clock
        self.rng = rng
        self.body_bytes_max = broker.config.http_body_bytes_max
        self.bodies_bytes_max = broker.config.inflight_bytes_max
        self.stopping = False
        self.listener: HttpListener

    def cluster(self) -> Cluster:
        """The cluster as its clients see it: what belongs to other brokers is asked of them, in Kafka's words."""
        return self.broker.client.cluster()
