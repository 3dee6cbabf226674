"""ZooKeeper and brokers on one machine, as processes that live and end together.

Rule 1: all start, or none stays.
Rule 2: nothing is restarted by itself. Who ended is told, with the command that starts it again. ZooKeeper stays for
        brokers that were started again like that, and a while for those that may be.
Rule 3: the end is orderly: brokers first, then ZooKeeper. Who does not end in time is killed.
Rule 4: our end is theirs, also if we are killed (on Linux).
Rule 5: one folder is used by one cluster at a time.
"""

import asyncio
import fcntl
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from runnel.dev import zookeeper
from runnel.dev.children import BrokerChild, State, end_with_parent
from runnel.dev.zookeeper import HOST, ZooKeeperServer
from runnel.model.errors import RunnelError

LOOK_S = 0.05  # between two looks at the processes
READY_S = 60.0  # generous: a busy machine may be slow
LEFT_S = 60.0  # that ZooKeeper waits for brokers to be started again, when none is left
STOP_S = 20.0  # for brokers, which hand over what they lead; then they are killed
TICK_MS = 500
REBALANCE_MS = 10_000  # sooner than usual: who tries things out wants to see it
REPLICAS = 3  # of topics that do not say, where there are as many brokers


class DevFailed(RunnelError):
    """The cluster on this machine could not be started."""


@dataclass(frozen=True, slots=True)
class Plan:
    brokers: int
    data: Path
    port: int  # of the first broker; 0 lets the system choose them all
    http_port: int = 0  # the same for HTTP
    zookeeper: str | None = None  # HOST:PORT,...[/PATH] of one that runs already


class DevCluster:
    """The processes; `tell` gets a line for everything that happens to them."""

    def __init__(self, plan: Plan, tell: Callable[[str], None]) -> None:
        self.plan = plan
        self._tell = tell
        self.brokers: list[BrokerChild] = []
        self.zookeeper: ZooKeeperServer | None = None
        self._zookeeper_over = False
        self._told: set[int] = set()
        self._none_since: float | None = None  # no broker is left, ours or started again
        self._lock: TextIO | None = None

    # --- starting
    async def start(self) -> None:
        """Return when every broker serves; on failure, end what was started and say why."""
        self.plan.data.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._take_folder()
        try:
            store = await self._start_zookeeper()
            await self._start_brokers(store)
        except BaseException:
            await self.stop()
            raise

    def _take_folder(self) -> None:
        self._lock = (self.plan.data / "dev.lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise DevFailed(
                f"{self.plan.data} is used by another 'runnel dev': stop that one, or give another folder with --data"
            ) from None

    async def _start_zookeeper(self) -> str:
        """The store of all brokers."""
        if self.plan.zookeeper:
            return f"zookeeper://{self.plan.zookeeper}"
        if problem := zookeeper.missing():
            raise DevFailed(f"a cluster needs ZooKeeper; {problem}; or name one that runs with --zookeeper HOST:PORT")
        [port] = zookeeper.free_ports(1)
        lines = zookeeper.settings(TICK_MS)
        server = self.zookeeper = ZooKeeperServer(self.plan.data / "zookeeper", lines, port, power_safe=True)
        server.start(end_with_parent)
        self._tell(f"ZooKeeper starts on {server.address} (pid {server.process.pid})")
        deadline = time.monotonic() + READY_S
        while await asyncio.to_thread(server.mode) is None:
            if server.process.poll() is not None or time.monotonic() > deadline:
                raise DevFailed(f"ZooKeeper did not start; its log is {self.plan.data}/zookeeper/server.log")
            await asyncio.sleep(LOOK_S)
        return f"zookeeper://{server.address}"

    async def _start_brokers(self, store: str) -> None:
        settings = self.plan.data / "brokers.toml"
        settings.write_text(_settings(self.plan.brokers))
        for number in range(1, self.plan.brokers + 1):
            port = self.plan.port + number - 1 if self.plan.port else 0
            http = self.plan.http_port + number - 1 if self.plan.http_port else 0
            options = ["--store", store, "--config", str(settings), "--http", f"{HOST}:{http}"]
            child = BrokerChild(number, self.plan.data, f"{HOST}:{port}", options)
            self.brokers.append(child)
            child.start()
            self._tell(f"broker {number} starts (pid {child.pid})")
        await self._until_all_serve()

    async def _until_all_serve(self) -> None:
        deadline = time.monotonic() + READY_S
        waiting = list(self.brokers)
        while waiting:
            for child in [child for child in waiting if child.look() is not State.STARTING]:
                if child.state is State.ENDED:
                    raise DevFailed(f"broker {child.number} did not start: {child.how_it_ended()} (log: {child.log})")
                self._tell(f"broker {child.number} is ready on {child.address}, HTTP on {child.http}")
                waiting.remove(child)
            if waiting and time.monotonic() > deadline:
                raise DevFailed(f"broker {waiting[0].number} was not ready after {READY_S:.0f} s: see {waiting[0].log}")
            await asyncio.sleep(LOOK_S)

    # --- while it runs
    @property
    def bootstrap(self) -> list[str]:
        return [child.address for child in self.brokers]

    def look(self) -> bool:
        """Notice who ended since the last look; False once no broker is left, and none was started again in time."""
        for child in self.brokers:
            if child.look() is State.ENDED and child.number not in self._told:
                self._told.add(child.number)
                again = shlex.join(child.command)
                self._tell(f"broker {child.number} {child.how_it_ended()}; to start it again: {again}")
        if self.zookeeper is not None and self.zookeeper.process.poll() is not None and not self._zookeeper_over:
            self._zookeeper_over = True
            self._tell("ZooKeeper ended: the brokers will end too, as soon as they can't trust their session any more")
        return self._is_used()

    def _is_used(self) -> bool:
        if any(child.state is not State.ENDED or child.successor() for child in self.brokers):
            self._none_since = None
            return True
        if self._none_since is None:
            self._none_since = time.monotonic()
            self._tell(f"no broker is left: there are {LEFT_S:.0f} s to start one again")
        return not self._zookeeper_over and time.monotonic() - self._none_since < LEFT_S

    # --- the end
    async def stop(self) -> None:
        """End the brokers in order, then ZooKeeper; called again meanwhile, see `kill`."""
        running = [child for child in self.brokers if child.look() is not State.ENDED]
        for child in running:
            child.end()
        deadline = time.monotonic() + STOP_S
        while running := [child for child in running if child.look() is not State.ENDED]:
            if time.monotonic() > deadline:
                self._tell(f"broker {running[0].number} did not stop within {STOP_S:.0f} s: it is killed")
                running[0].kill()
            await asyncio.sleep(LOOK_S)
        for child in self.brokers:
            if self.zookeeper is not None and (pid := child.successor()):
                self._tell(f"broker {child.number} was started again by somebody else: stop it too (kill {pid})")
        if self.zookeeper is not None:
            await asyncio.to_thread(self.zookeeper.stop)
        if self._lock is not None:
            self._lock.close()

    def kill(self) -> None:
        """End every process at once: nobody wants to wait any longer."""
        for child in self.brokers:
            child.kill()
        if self.zookeeper is not None:
            self.zookeeper.process.kill()


def _settings(brokers: int) -> str:
    """What the brokers are set up with: one of three copies may be lost, and nobody notices."""
    lines = [
        "# Written by 'runnel dev' at each start.",
        f"default-replication = {min(brokers, REPLICAS)}",
        f"leader-rebalance-ms = {REBALANCE_MS}",
    ]
    if brokers >= REPLICAS:
        lines += ["[topic]", '"min.insync.replicas" = 2']
    return "\n".join([*lines, ""])
