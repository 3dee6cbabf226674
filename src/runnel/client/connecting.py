"""How programs get hold of a cluster: with the machine's own clock and chance.

Everything else in this package has them handed in, so that it runs simulated as well. This module alone reaches up to
`shell` for them.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace

from runnel.client.cluster import Cluster, ClusterSettings, split_addresses
from runnel.client.producer import ProducerSettings
from runnel.client.session import Runnel
from runnel.client.values import milliseconds
from runnel.shell.clock import SystemClock
from runnel.shell.rng import SystemRng

DEFAULT = "127.0.0.1:9092"


@asynccontextmanager
async def connect(
    *brokers: str | Iterable[str],
    name: str = "runnel",
    linger: float = 0.0,
    timeout: float | None = None,
    producer: ProducerSettings | None = None,
) -> AsyncIterator[Runnel]:
    """A connection to the cluster that these brokers belong to; one that can be reached is enough.

    Brokers are HOST:PORT, several with commas, as arguments or as a list. `linger` is how many seconds a message may
    wait for company: 0 for latency, 0.005 for throughput. `timeout` is for how many seconds calls are tried again while
    brokers are away: 30 if it is not given, 120 for messages.
    """
    settings = producer or ProducerSettings(linger_ms=round(linger * 1000))
    calls = ClusterSettings(client_id=name)
    if timeout is not None:
        settings = replace(settings, delivery_timeout_ms=milliseconds(timeout))
        calls = replace(calls, retry_timeout_ms=milliseconds(timeout))
    addresses = [text for one in brokers for text in split_addresses(one)]
    cluster = Cluster(addresses if brokers else [DEFAULT], clock=SystemClock(), rng=SystemRng(), settings=calls)
    async with Runnel(cluster, settings) as runnel:
        yield runnel
