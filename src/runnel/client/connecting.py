"""How programs get hold of a cluster: with the machine's own clock and chance.

Everything else in this package has them handed in, so that it runs simulated as well. This module alone reaches up to
`shell` for them.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from runnel.client.cluster import Cluster, ClusterSettings
from runnel.client.producer import ProducerSettings
from runnel.client.session import Runnel
from runnel.shell.clock import SystemClock
from runnel.shell.rng import SystemRng

DEFAULT = "127.0.0.1:9092"


@asynccontextmanager
async def connect(
    *brokers: str, name: str = "runnel", linger: float = 0.0, producer: ProducerSettings | None = None
) -> AsyncIterator[Runnel]:
    """A connection to the cluster that these brokers (HOST:PORT) belong to; one that can be reached is enough.

    `linger` is how many seconds a message may wait for company: 0 for latency, 0.005 for throughput.
    """
    settings = producer or ProducerSettings(linger_ms=round(linger * 1000))
    cluster = Cluster(
        brokers or (DEFAULT,), clock=SystemClock(), rng=SystemRng(), settings=ClusterSettings(client_id=name)
    )
    async with Runnel(cluster, settings) as runnel:
        yield runnel
