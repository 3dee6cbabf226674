"""The cluster as its clients see it, for a broker that asks in the name of those who have no client.

What belongs to the controller, to coordinators and to leaders is asked of them in Kafka's words, wherever they are.
"""

from collections.abc import Callable
from typing import Final

from runnel.broker.config import Address
from runnel.client.cluster import Cluster, ClusterSettings
from runnel.cluster.image import Image
from runnel.model.ids import Life
from runnel.model.members import client_id_of
from runnel.model.seams import Clock, Rng

LISTENER: Final = "kafka"


class OwnClient:
    """Made when it is first needed."""

    def __init__(self, life: Callable[[], Life], image: Callable[[], Image], clock: Clock, rng: Rng) -> None:
        self._life = life
        self._image = image
        self._clock = clock
        self._rng = rng
        self._cluster: Cluster | None = None

    def cluster(self) -> Cluster:
        if self._cluster is None:
            settings = ClusterSettings(client_id=client_id_of(self._life()))
            self._cluster = Cluster(self._addresses(), clock=self._clock, rng=self._rng, settings=settings)
        return self._cluster

    def _addresses(self) -> list[str]:
        """Those of all brokers, this one first."""
        known = sorted(self._image().brokers.values(), key=lambda each: each.id != self._life().broker)
        return [str(Address(*each.listeners[LISTENER])) for each in known]

    async def close(self) -> None:
        if self._cluster is not None:
            await self._cluster.close()
            self._cluster = None
