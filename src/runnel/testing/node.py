"""One simulated broker: the server's own code on a host, with a disk and a session; it comes back when it dies."""

from collections.abc import Iterable
from typing import Protocol

from runnel.broker.config import Address
from runnel.cluster.store import Store
from runnel.model.errors import RunnelError
from runnel.replica.partition import Partition
from runnel.server import Machine, Server
from runnel.testing.clock import SeededRng
from runnel.testing.disk import PowerCut, SimDisk
from runnel.testing.invariants import Invariants
from runnel.testing.loop import SimLoop
from runnel.testing.network import Network
from runnel.testing.store import Ensemble, SimStore
from runnel.testing.swarm import Swarm

PORT = 9092
FORGOTTEN_CHANCE = 0.5  # that what a failed sync left in memory is gone from there when the broker starts again
STORE = "store"  # the host that the network knows the ensemble by


class Scene(Protocol):
    """What a broker needs of the simulation that it is in."""

    loop: SimLoop
    swarm: Swarm
    ensemble: Ensemble
    invariants: Invariants


class StoreLink:
    """The way from one host to the ensemble, cut when the network is."""

    def __init__(self, network: Network, host: str) -> None:
        self._network = network
        self._host = host

    def is_cut(self, *, outward: bool) -> bool:
        ends = (self._host, STORE) if outward else (STORE, self._host)
        return self._network.is_cut(*ends)


class SimBroker:
    """A broker, life after life."""

    def __init__(self, scene: Scene, number: int) -> None:
        self._scene = scene
        self._loop = loop = scene.loop
        self.number = number
        self.host = loop.host(f"broker-{number}")
        self.host.on_answer = lambda: scene.invariants.look(self)
        self.slowness = 1.0
        self.dwell_s: float | None = None  # how long it stays away next time, if somebody wants to say
        self._rng = SeededRng(f"{loop.seed}/{self.host.name}")
        self.disk = SimDisk(self._rng)
        self.disk.pace_s = self._pace_s
        self.disk.on_end = lambda power: self.die(power=power)
        self.disk.chill(self._is_cold)
        self._session: SimStore | None = None
        self._lives = 0
        self.server: Server | None = None
        self.serving = False
        self.stopping = False
        self.config = scene.swarm.broker(number, Address(self.host.name, PORT))

    def _pace_s(self) -> float:
        return self.slowness * self._rng.uniform(*self._scene.swarm.disk_s)

    def _is_cold(self, path: str) -> bool:
        return self._rng.chance(self._scene.swarm.cold_chance)

    @property
    def up(self) -> bool:
        return self.serving and self.host.running and not self.stopping

    @property
    def session(self) -> int | None:
        """The number of its session with the store, as far as it has one."""
        return None if self._session is None else self._session.session

    def replicas(self) -> Iterable[Partition]:
        broker = getattr(self.server, "broker", None)
        return () if broker is None else broker.partitions

    # --- a life

    def start(self) -> None:
        if not self.host.running:
            self._lives += 1
            self.host.start(self._main)

    async def _main(self) -> None:
        rng = SeededRng(f"{self._loop.seed}/{self.host.name}/{self._lives}")
        machine = Machine(self.disk, self.host.clock, rng, self._open_store)
        server = self.server = Server(self.config, machine, self._fatal)
        try:
            await server.start()
        except PowerCut:
            raise
        except (RunnelError, OSError) as error:
            self._fatal(error)
            return
        self.serving = True
        self._loop.trace(f"{self.host.name} serves")

    async def _open_store(self) -> Store:
        link = StoreLink(self._loop.network, self.host.name)
        self._session = await self._scene.ensemble.open(link)
        return self._session

    # --- its end

    def _fatal(self, error: BaseException) -> None:
        """As in production: the process ends soon, and what is in memory is lost."""
        self._loop.trace(f"{self.host.name} gives up: {type(error).__name__}: {error}")
        process = self.host.process

        def end() -> None:
            if self.host.process is process:
                self.die(power=False)

        self._loop.call_soon(end, context=self._loop.world)

    def die(self, *, power: bool) -> None:
        """Be gone, and come back after a while. After a failed sync memory may be lost, as in a power cut."""
        if not self.host.running:
            return
        self._loop.trace(f"{self.host.name} dies power={power}")
        self._scene.invariants.dies(self)
        before = self.disk
        if power:
            self.host.cut_power()
        else:
            self.host.kill()
        lossy = power or (before.forgot and self._rng.chance(FORGOTTEN_CHANCE))
        self.disk = before.crash() if lossy else before.kill()
        self._gone(before)
        if lossy:
            self._scene.invariants.lost_power(self)

    def _gone(self, before: SimDisk) -> None:
        self.disk.inherit(before)
        before.discard()
        self.disk.chill(self._is_cold)
        self.server, self.serving, self.stopping = None, False, False
        self._session = None
        down_s = self._rng.uniform(0.05, self._rng.pick(self._scene.swarm.down_s))
        self._loop.call_later(self.dwell_s or down_s, self.start, context=self._loop.world)
        self.dwell_s = None

    def stop(self) -> None:
        """An orderly stop, in its own time."""
        server, process = self.server, self.host.process
        if server is None or process is None or not self.up:
            return
        self.stopping = True
        process.context.run(lambda: self._loop.create_task(self._stop(server)))

    async def _stop(self, server: Server) -> None:
        await server.stop()
        self._loop.trace(f"{self.host.name} stopped")
        self._loop.call_soon(self._stopped, self.host.process, context=self._loop.world)

    def _stopped(self, process: object) -> None:
        if self.host.process is process and self.host.running:
            self._scene.invariants.dies(self)
            self.host.kill()
            before, self.disk = self.disk, self.disk.kill()
            self._gone(before)
