"""One command's conversation with a cluster: the real clock and chance, an event loop, and its end."""

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import click

from runnel.cli.ending import Terminated
from runnel.cli.outages import Outages
from runnel.client.admin import Admin
from runnel.client.calls import call
from runnel.client.cluster import Cluster, ClusterSettings, parse_address, split_addresses
from runnel.client.group_admin import GroupAdmin
from runnel.client.transactions_admin import TransactionsAdmin
from runnel.model.calls import QUEUE_LIST, ListQueues
from runnel.model.errors import InvalidConfig, RunnelError
from runnel.model.ids import Millis

T = TypeVar("T")

CONNECT_TIMEOUT_MS = 5_000


class SystemClock:
    def monotonic_ms(self) -> Millis:
        return Millis(time.monotonic_ns() // 1_000_000)

    def wall_ms(self) -> Millis:
        return Millis(time.time_ns() // 1_000_000)


class SystemRng:
    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def below(self, bound: int) -> int:
        return self._random.randrange(bound)

    def token(self, size: int) -> bytes:
        return self._random.randbytes(size)


def run(broker: str, work: Callable[[Cluster], Awaitable[T]], *, timeout_ms: int | None = None) -> T:
    """Do the work of one command on a cluster; its connections are closed afterwards, whatever happens."""
    import uvloop

    settings = ClusterSettings(
        client_id="runnel-cli",
        connect_timeout_ms=timeout_ms or CONNECT_TIMEOUT_MS,
        request_timeout_ms=timeout_ms or ClusterSettings().request_timeout_ms,
        on_connect=Outages().connected,
    )

    addresses = _addresses(broker)

    async def conversation() -> T:
        _cancel_on_sigterm()
        async with Cluster(addresses, clock=SystemClock(), rng=SystemRng(), settings=settings) as cluster:
            return await work(cluster)

    try:
        return uvloop.run(conversation())
    except asyncio.CancelledError:  # after Ctrl-C, it would be KeyboardInterrupt
        raise Terminated from None


def _addresses(broker: str) -> list[str]:
    addresses = split_addresses(broker) or [broker]
    try:
        for text in addresses:
            parse_address(text)
    except InvalidConfig as error:
        raise click.UsageError(str(error)) from None
    return addresses


def _cancel_on_sigterm() -> None:
    """Let SIGTERM end the task that runs as Ctrl-C does, also where Ctrl-C is ignored: behind a shell's '&'."""
    work = asyncio.current_task()
    assert work is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)


def completions(broker: str, what: str, begun: str, timeout_ms: int) -> list[str]:
    """What there is of a kind and begins so, names or numbers of brokers; none if anything goes wrong."""

    async def names(cluster: Cluster) -> list[str]:
        if what == "groups":
            return [group.name for group in await GroupAdmin(cluster).groups()]
        if what == "transactions":
            return [found.id for found in await TransactionsAdmin(cluster).transactions()]
        if what == "queues":
            return [each.queue for each in (await call(cluster, QUEUE_LIST, ListQueues(begun))).queues]
        view = await Admin(cluster).view()
        return [str(number) for number in sorted(view.brokers)] if what == "brokers" else sorted(view.topics)

    try:
        return [name for name in run(broker, names, timeout_ms=timeout_ms) if name.startswith(begun)]
    except (RunnelError, OSError, click.UsageError):
        return []
