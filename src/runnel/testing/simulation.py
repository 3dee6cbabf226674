"""One run of brokers and clients under faults, all of it decided by a seed.

    load      clients send, read, and commit; faults strike
    heal      faults end, brokers come back, clients go on until all is delivered
    the end   everything is read, once before and once after an orderly restart; then the history is checked

State is looked at whenever a broker is about to say something: what has been said can't be taken back.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from runnel.broker.config import Address, BrokerConfig
from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster
from runnel.client.positions import bounds
from runnel.cluster.store import Store
from runnel.model.errors import RunnelError, TopicAlreadyExists
from runnel.model.topic_config import FlushMode
from runnel.server import Machine, Server
from runnel.testing.checker import check
from runnel.testing.clock import SeededRng
from runnel.testing.disk import PowerCut, SimDisk
from runnel.testing.faults import Injector
from runnel.testing.history import History, Status
from runnel.testing.loop import Deadlock, Host, SimLoop
from runnel.testing.store import Ensemble, SimStore
from runnel.testing.swarm import TOPIC, Swarm
from runnel.testing.workload import Client

PORT = 9092
HEAL_S = 120.0  # virtual; what is not well by then is not going to be
DOWN_S = (0.05, 2.0)  # how long a broker is away


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one seed."""

    seed: int
    trace_hash: str
    steps: int
    virtual_s: float
    acknowledged: int
    sent: int
    read: int
    faults: dict[str, int]
    violations: list[str] = field(default_factory=list)


class SimBroker:
    """A broker on a host with a disk; it comes back when it dies."""

    def __init__(self, simulation: "Simulation", number: int) -> None:
        self._simulation = simulation
        self._loop = loop = simulation.loop
        self.number = number
        self.host = loop.host(f"broker-{number}")
        self.host.on_answer = self._look
        self.slowness = 1.0
        self._rng = SeededRng(f"{loop.seed}/{self.host.name}")
        self.disk = SimDisk(self._rng)
        self.disk.pace_s = self._pace_s
        self.disk.on_power_cut = lambda: self.die(power=True)
        self.disk.chill(self._is_cold)
        self._session: SimStore | None = None
        self._lives = 0
        self.server: Server | None = None  # once it has started
        self.stopping = False
        self.config = BrokerConfig(
            data="data", kafka=Address(self.host.name, PORT), broker_id=number, topic=simulation.swarm.topic,
            group_partitions=2, group_initial_delay_ms=50, housekeeping_ms=1_500,
        )  # fmt: skip

    def _pace_s(self) -> float:
        return self.slowness * self._rng.uniform(*self._simulation.swarm.disk_s)

    def _is_cold(self, path: str) -> bool:
        return self._rng.chance(self._simulation.swarm.cold_chance)

    @property
    def up(self) -> bool:
        return self.server is not None and self.host.running and not self.stopping

    def start(self) -> None:
        if not self.host.running:
            self._lives += 1
            self.host.start(self._main)

    async def _main(self) -> None:
        rng = SeededRng(f"{self._loop.seed}/{self.host.name}/{self._lives}")
        server = Server(self.config, Machine(self.disk, self.host.clock, rng, self._open_store), self._fatal)
        try:
            await server.start()
        except PowerCut:
            raise
        except (RunnelError, OSError) as error:
            self._fatal(error)
            return
        self.server = server
        self._loop.trace(f"{self.host.name} serves")

    async def _open_store(self) -> Store:
        self._session = await self._simulation.ensemble.open()
        return self._session

    def _fatal(self, error: BaseException) -> None:
        """As in production: the process ends soon, and what is in memory is lost."""
        self._loop.trace(f"{self.host.name} gives up: {type(error).__name__}")
        self._loop.call_soon(lambda: self.die(power=False), context=self._loop.world)

    def die(self, *, power: bool) -> None:
        """Be gone, and come back after a while."""
        if not self.host.running:
            return
        self._loop.trace(f"{self.host.name} dies power={power}")
        before = self.disk
        if power:
            self.host.cut_power()
            self.disk = before.crash()
        else:
            self.host.kill()
            self.disk = before.kill()
        self.disk.inherit(before)
        before.discard()
        self._gone(self._simulation.swarm.session_s)

    def _gone(self, session_s: float) -> None:
        self.disk.chill(self._is_cold)
        self.server, self.stopping = None, False
        if self._session is not None:
            expire, session = self._simulation.ensemble.expire, self._session.session
            self._loop.call_later(session_s, expire, session, context=self._loop.world)
            self._session = None
        self._loop.call_later(self._rng.uniform(*DOWN_S), self.start, context=self._loop.world)

    def stop(self) -> None:
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
            self.host.kill()
            before, self.disk = self.disk, self.disk.kill()
            self.disk.inherit(before)
            before.discard()
            self._gone(0.0)

    # --- what must hold whenever something is said

    def _look(self) -> None:
        if self.server is not None:
            self._simulation.look_at(self.server)


class Simulation:
    """Everything of one seed. Use `run`."""

    def __init__(self, loop: SimLoop, seed: int, faults: Sequence[str] = ()) -> None:
        self.loop = loop
        self.seed = seed
        rng = SeededRng(f"{seed}/swarm")
        drawn = Swarm.draw(rng)
        self.swarm = swarm = replace(drawn, faults=tuple(faults) or drawn.faults)
        self.history = History()
        self.sending = True
        self.violations: list[str] = []
        self.ensemble = Ensemble(lambda: rng.uniform(0.0001, 0.003))
        self.brokers = [SimBroker(self, 1)]
        self.bootstrap: Sequence[str] = [f"{broker.host.name}:{PORT}" for broker in self.brokers]
        self._high: dict[str, int] = {}  # the highest high watermark that anybody was told
        self._programs: dict[Host, Callable[[Client], Awaitable[None]]] = {}
        self._lives: dict[Host, int] = {}
        self._tasks: dict[Host, asyncio.Task[None]] = {}
        self._rng = SeededRng(f"{seed}/faults")
        loop.network.conditions = swarm.conditions
        loop.lag_chance, loop.lag_s = swarm.lag_chance, swarm.lag_s
        self._name_clients()
        self.injector = Injector(loop, self._rng, self.brokers, list(self._programs), self._kill_client)

    def _name_clients(self) -> None:
        for number, settings in enumerate(self.swarm.producers):
            self._programs[self.loop.host(f"producer-{number}")] = partial(Client.produce, settings=settings)
        for number in range(self.swarm.readers):
            self._programs[self.loop.host(f"reader-{number}")] = Client.read
        for number in range(self.swarm.members):
            self._programs[self.loop.host(f"member-{number}")] = Client.join
        self._programs[self.loop.host("observer")] = Client.look

    # --- the run

    async def run(self) -> None:
        for broker in self.brokers:
            broker.start()
        await self._in_time(self._create_topic(), "create the topic")
        for host in self._programs:
            self._start_client(host)
        end = self.loop.time() + self.swarm.load_s
        while self.loop.time() < end:
            await asyncio.sleep(self._rng.uniform(0, 2 * self.swarm.fault_every_s))
            self.injector.strike(self._rng.pick(self.swarm.faults))
        await self._heal()
        await self._finish()

    async def _create_topic(self) -> None:
        host = self.loop.host("admin")

        async def create() -> None:
            admin = Admin(Client(self, host, 0).cluster())
            while True:
                try:
                    await admin.create_topics([NewTopic(TOPIC, self.swarm.partitions)])
                except TopicAlreadyExists:
                    return
                except RunnelError:
                    await asyncio.sleep(0.1)
                else:
                    return

        await host.start(create)

    def _start_client(self, host: Host) -> None:
        life = self._lives[host] = self._lives.get(host, 0) + 1
        program = self._programs[host]
        self._tasks[host] = host.start(lambda: program(Client(self, host, life)))

    def _kill_client(self, host: Host) -> None:
        if host.running:
            host.kill()
            self.loop.call_later(self._rng.uniform(0, 2), self._start_client, host, context=self.loop.world)

    async def _in_time(self, work: Awaitable[None], what: str) -> None:
        try:
            async with asyncio.timeout(HEAL_S):
                await work
        except TimeoutError:
            self.violations.append(f"not-live: could not {what} within {HEAL_S:g} s")
        except RunnelError as error:
            self.violations.append(f"not-live: could not {what}: {error}")

    async def _heal(self) -> None:
        self.loop.trace("heal")
        self.injector.heal()
        self.sending = False
        for broker in self.brokers:
            if self._rng.chance(0.5) or self._has_failed_partitions(broker):
                broker.die(power=self._rng.chance(0.5))
        await self._in_time(self._brokers_up(), "start the broker again")

    def _has_failed_partitions(self, broker: SimBroker) -> bool:
        """A log that could not be opened, for want of room say, is tried again at the next start."""
        return broker.server is not None and bool(broker.server.broker.partitions._failed)

    async def _brokers_up(self) -> None:
        while not all(broker.up for broker in self.brokers):  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async def _finish(self) -> None:
        producers = [host for host in self._programs if host.name.startswith("producer")]
        await self._in_time(self._settled(producers), "settle every send")
        await self._in_time(self._group_done(), "let the group read everything")
        first = await self._read_all("auditor-1")
        for broker in self.brokers:
            broker.stop()
        await self._in_time(self._brokers_up(), "restart the broker")
        second = await self._read_all("auditor-2")
        if first != second:
            self.violations.append(f"not-the-same: {first} messages before an orderly restart, {second} after it")

    async def _settled(self, producers: list[Host]) -> None:
        while not all(host.running and self._tasks[host].done() for host in producers):  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async def _group_done(self) -> None:
        host = self.loop.host("overseer")

        async def wait() -> None:
            client = Client(self, host, 0)
            cluster = client.cluster()
            while not await self._is_group_done(client, cluster):  # noqa: ASYNC110
                await asyncio.sleep(0.5)

        await host.start(wait)

    async def _is_group_done(self, client: Client, cluster: Cluster) -> bool:
        try:
            ends = await bounds(cluster, client.keys)
            committed = await client.look_once(cluster)
        except RunnelError:
            return False
        return all(committed.get(str(where), 0) >= ends[where].end for where in client.keys)

    async def _read_all(self, name: str) -> int | None:
        host = self.loop.host(name)
        count: int | None = None

        async def read() -> None:
            nonlocal count
            count = await Client(self, host, 0).read_all()

        await self._in_time(host.start(read), "read everything")
        return count

    # --- what must hold

    def look_at(self, server: Server) -> None:
        for partition in server.broker.partitions:
            log, high = partition.log, partition.high_watermark
            known = self._high.get(partition.name, 0)
            if high < known:
                self._violated(f"high-watermark-back: {partition.name} from {known} to {high}")
            if not log.start_offset <= high <= log.end_offset or log.synced_offset > log.end_offset:
                offsets = f"{log.start_offset} {log.synced_offset} {high} {log.end_offset}"
                self._violated(f"offsets-out-of-order: {partition.name} start, synced, high, end: {offsets}")
            if partition.config.flush_mode is FlushMode.COMMIT and high > log.synced_offset:
                self._violated(f"high-above-synced: {partition.name} {high} > {log.synced_offset}")
            if high > known:
                self._high[partition.name] = high

    def seen(self, records: dict[str, list[tuple[int, str]]]) -> None:
        for key, found in records.items():
            where = key.replace("/", "-")
            for offset, value in found:
                if offset >= self._high.get(where, 0):
                    self._violated(f"read-above-high-watermark: {value} at {offset} of {key}")

    def _violated(self, what: str) -> None:
        if what not in self.violations:
            self.violations.append(what)

    def outcome(self) -> Outcome:
        history = self.history
        violations = [*self.violations, *(str(anomaly) for anomaly in check(history)), *self.loop.mishaps]
        return Outcome(
            self.seed,
            f"{self.loop.trace_hash:08x}",
            self.loop.steps,
            self.loop.time(),
            sum(send.status is Status.OK for send in history.sends),
            len(history.sends),
            len(history.polls),
            dict(sorted(self.injector.counts.items())),
            violations,
        )


def run(seed: int, *, faults: Sequence[str] = (), tracer: Callable[[str], None] | None = None) -> Outcome:
    """One seed, from beginning to end; with the faults that it draws, or with these."""
    with _quiet(), SimLoop(seed) as loop:
        loop.tracer = tracer
        simulation = Simulation(loop, seed, faults)
        try:
            loop.run_until_complete(simulation.run())
        except Deadlock as error:
            simulation.violations.append(f"deadlock: {error}")
        for broker in simulation.brokers:
            broker.disk.discard()
        return simulation.outcome()


@contextmanager
def _quiet() -> Iterator[None]:
    """Brokers under faults complain a lot: nobody needs to read it."""
    logger = logging.getLogger("runnel")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)
