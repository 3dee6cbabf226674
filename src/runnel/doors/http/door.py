"""The HTTP door: what its operations share."""

from typing import Final

from runnel.broker.broker import Broker
from runnel.broker.config import Address
from runnel.client.cluster import Cluster, ClusterSettings
from runnel.model.seams import Clock, Rng
from runnel.net.http import HttpListener

CLIENT_ID: Final = "runnel-http"


class HttpDoor:
    """One broker's side of the door."""

    def __init__(self, broker: Broker, clock: Clock, rng: Rng) -> None:
        self.broker = broker
        self.clock = clock
        self.rng = rng
        self.body_bytes_max = broker.config.http_body_bytes_max
        self.bodies_bytes_max = broker.config.inflight_bytes_max
        self.stopping = False
        self._cluster: Cluster | None = None
        self.listener: HttpListener

    def cluster(self) -> Cluster:
        """The cluster as its clients see it: what belongs to other brokers is asked of them, in Kafka's words."""
        if self._cluster is None:
            settings = ClusterSettings(client_id=CLIENT_ID)
            self._cluster = Cluster(self._addresses(), clock=self.clock, rng=self.rng, settings=settings)
        return self._cluster

    def _addresses(self) -> list[str]:
        """Those of all brokers, this one first."""
        brokers = self.broker.image.brokers
        known = sorted(brokers.values(), key=lambda each: each.id != self.broker.id)
        endpoints = [each.listeners["kafka"] for each in known]
        return [str(Address(endpoint.host, endpoint.port)) for endpoint in endpoints]

    async def close(self) -> None:
        if self._cluster is not None:
            await self._cluster.close()
