"""`runnel dev`: a whole cluster on this machine, in one view."""

import asyncio
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runnel.cli.command import Command
from runnel.dev.cluster import DevCluster, Plan

if TYPE_CHECKING:
    from runnel.cli.dev_view import Screen
    from runnel.client.cluster import Cluster
    from runnel.dev.events import Sight

LOOK_S = 0.25  # between two looks at the processes
ASK_S = 1.0  # between two looks at the cluster
ASK_REST = 10  # with very many partitions: rest so many times as long as a look took
ASK_TIMEOUT_MS = 3_000
HTTP_PORT = 8080

EXAMPLES = """
runnel dev                                        ZooKeeper and three brokers, on ports 9092 to 9094
runnel dev --brokers 5 --port 19092               five, on ports 19092 to 19096
runnel dev --zookeeper 127.0.0.1:2181/try         with a ZooKeeper that runs already
runnel topic create orders -p 12                  in another terminal: use it
runnel cluster status                             and look at it
"""


@click.command(cls=Command, examples=EXAMPLES)
@click.option("--brokers", metavar="N", type=click.IntRange(1, 32), default=3, show_default=True, help="How many.")
@click.option("--zookeeper", metavar="HOST:PORT,...", help="One that runs already, with a path if you like.")
@click.option(
    "--data",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    default="data-dev",
    show_default=True,
    help="Where everything is kept, also the logs.",
)
@click.option(
    "--port",
    metavar="N",
    type=click.IntRange(0, 65_500),
    default=9092,
    show_default=True,
    help="Of the first broker; the others follow. 0: any that are free.",
)
@click.option(
    "--http-port",
    metavar="N",
    type=click.IntRange(0, 65_500),
    help="Of the first broker's HTTP door; the others follow.  [default: 8080; with --port 0: any]",
)
def dev(brokers: int, zookeeper: str | None, data: Path, port: int, http_port: int | None) -> int:
    """Run a cluster on this machine: a ZooKeeper and several brokers, on loopback only.

    They are started together and end together, with Ctrl-C. A broker that dies is shown, not restarted: kill some, and
    see what happens. Start them again with the commands that are shown: ZooKeeper stays for them. The data is kept, and
    found again by the next 'runnel dev'.
    """
    from runnel.cli.dev_view import screen

    store = zookeeper.removeprefix("zookeeper://") if zookeeper else None
    by_default = HTTP_PORT if port else 0
    plan = Plan(brokers, data.resolve(), port, by_default if http_port is None else http_port, store)
    with screen() as shown:
        return asyncio.run(_run(plan, shown))


async def _run(plan: Plan, shown: "Screen") -> int:
    running = DevCluster(plan, shown.tell)
    shown.cluster = running
    stop = _stop_on_signals(running)
    asked = asyncio.ensure_future(stop.wait())
    if not await _start(running, shown, asked):
        return 0
    shown.tell(f"the cluster is up: use it with -b {','.join(running.bootstrap)} (stop it with Ctrl-C)")
    code = await _watch(running, shown, asked)
    shown.tell("stopping: the brokers first, then ZooKeeper")
    shown.forget()
    await _drawn(asyncio.ensure_future(running.stop()), shown)
    shown.tell("everything is stopped")
    return code


async def _start(running: DevCluster, shown: "Screen", asked: "asyncio.Future[Any]") -> bool:
    """Whether it started; False if it was told to stop meanwhile."""
    starting = asyncio.ensure_future(running.start())
    asked.add_done_callback(lambda _: starting.cancel())  # then it ends what it has started
    try:
        await _drawn(starting, shown)
    except asyncio.CancelledError:
        return False
    return True


async def _drawn(work: "asyncio.Future[None]", shown: "Screen") -> None:
    """Wait for it, and show how things are meanwhile."""
    while not work.done():
        shown.draw()
        await asyncio.wait([work], timeout=LOOK_S)
    shown.draw()
    work.result()


def _stop_on_signals(running: DevCluster) -> asyncio.Event:
    """Set by the first signal; the second one kills."""
    stop = asyncio.Event()

    def asked() -> None:
        if stop.is_set():
            running.kill()
        stop.set()

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, asked)
    return stop


async def _watch(running: DevCluster, shown: "Screen", asked: "asyncio.Future[Any]") -> int:
    """Show what happens until asked to stop, or until nobody is left."""
    watching = asyncio.ensure_future(_ask_again_and_again(running, shown))
    try:
        while not asked.done():
            if not running.look():
                shown.tell("no broker is left")
                return 1
            shown.draw()
            await asyncio.wait([asked], timeout=LOOK_S)
        return 0
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _ask_again_and_again(running: DevCluster, shown: "Screen") -> None:
    from runnel.cli.session import SystemClock, SystemRng
    from runnel.client.cluster import Cluster, ClusterSettings

    settings = ClusterSettings(
        client_id="runnel-dev", connect_timeout_ms=ASK_TIMEOUT_MS, request_timeout_ms=ASK_TIMEOUT_MS
    )
    async with Cluster(running.bootstrap, clock=SystemClock(), rng=SystemRng(), settings=settings) as cluster:
        while True:
            began = time.monotonic()
            shown.see(await _sight(cluster))
            shown.zookeeper = await asyncio.to_thread(shown.ask_zookeeper)
            await asyncio.sleep(max(ASK_S, ASK_REST * (time.monotonic() - began)))


async def _sight(cluster: "Cluster") -> "Sight | None":
    """The cluster as one of its brokers sees it; None if none answers."""
    from runnel.client.cluster_admin import ClusterAdmin
    from runnel.dev.events import Sight
    from runnel.model.errors import RunnelError

    try:
        moving = await ClusterAdmin(cluster, timeout_ms=ASK_TIMEOUT_MS).reassignments()
        return Sight.of(await cluster.view(), {where: each.adding for where, each in moving.items()})
    except RunnelError:
        return None
