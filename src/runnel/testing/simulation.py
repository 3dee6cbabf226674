"""One run of brokers and clients under faults, all of it decided by a seed.

    load      clients send, read, and commit; faults strike
    heal      faults end, brokers come back, clients go on until all is delivered and every replica has it
    the end   everything is read, once before and once after a restart of all brokers; then the history is checked

State is looked at whenever a broker is about to say something: what has been said can't be taken back.
"""

import asyncio
import gc
import logging
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from runnel.client.calls import call
from runnel.client.cluster import Cluster
from runnel.client.positions import bounds
from runnel.model.calls import SCHEDULE_COUNT, CountPending
from runnel.model.errors import CorruptBatch, RetriableError, RunnelError
from runnel.model.topic_config import FlushMode
from runnel.testing.administrator import Administrator
from runnel.testing.checker import check
from runnel.testing.clock import SeededRng
from runnel.testing.drafts import Drafts
from runnel.testing.faults import Injector
from runnel.testing.health import ailing
from runnel.testing.history import History, Status
from runnel.testing.invariants import Invariants, Truth
from runnel.testing.jobs import Queueing
from runnel.testing.ledger import ACCOUNTING, Transacting
from runnel.testing.loop import Deadlock, Host, SimLoop
from runnel.testing.node import PORT, SimBroker
from runnel.testing.overseer import Overseer
from runnel.testing.planning import Planner
from runnel.testing.publishing import ROWS, TASKS, Publisher
from runnel.testing.reminders import REMINDERS, Reminding
from runnel.testing.store import Ensemble
from runnel.testing.swarm import Swarm
from runnel.testing.transacting import Transactor
from runnel.testing.working import Worker
from runnel.testing.workload import Client

SENDERS = "producer", "transactor", "publisher", "drafter", "jobber", "planner"  # they end when they have sent enough
HEAL_S = 90.0  # virtual; what is not well by then is not going to be


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
    transitions: dict[str, int]  # what faults were aimed at
    violations: list[str] = field(default_factory=list)


class Simulation:
    """Everything of one seed. Use `run`."""

    def __init__(
        self, loop: SimLoop, seed: int, faults: Sequence[str], flush_mode: FlushMode | None, given: Mapping[str, Any]
    ) -> None:
        self.loop = loop
        self.seed = seed
        rng = SeededRng(f"{seed}/swarm")
        drawn = replace(Swarm.draw(rng), **given)
        topic = replace(drawn.topic, flush_mode=flush_mode or drawn.topic.flush_mode)
        kinds = tuple(faults) or drawn.faults
        queueing = drawn.queueing and drawn.queueing.in_place() if "clock" in kinds else drawn.queueing
        reminding = drawn.reminding and drawn.reminding.nameless() if "clock" in kinds else drawn.reminding
        self.swarm = swarm = replace(drawn, faults=kinds, topic=topic, queueing=queueing, reminding=reminding)
        self.history = History(transforming_group=ACCOUNTING if ACCOUNTING in swarm.groups else None)
        if swarm.queueing is not None:
            self.history.queue.attempts_max = swarm.queueing.attempts_max
            self.history.queue.clocks_set = "clock" in swarm.faults
        self.history.schedule.clocks_set = "clock" in swarm.faults
        self.sending = True
        self.violations: list[str] = []
        self.brief = False  # whether the first violation is enough
        self.ensemble = Ensemble(lambda: rng.uniform(0.0001, 0.003), swarm.session_s)
        self.brokers: Sequence[SimBroker] = [SimBroker(self, number) for number in range(1, swarm.brokers + 1)]
        self.bootstrap: Sequence[str] = [f"{broker.host.name}:{PORT}" for broker in self.brokers]
        self._programs: dict[Host, Callable[[Client], Awaitable[None]]] = {}
        self._lives: dict[Host, int] = {}
        self._tasks: dict[Host, asyncio.Task[None]] = {}
        self._rng = SeededRng(f"{seed}/faults")
        loop.network.conditions = swarm.conditions
        loop.lag_chance, loop.lag_s = swarm.lag_chance, swarm.lag_s
        self._name_clients()
        self.clients: Sequence[Host] = list(self._programs)
        self.injector = Injector(self, self._rng)
        self.invariants = Invariants(
            self.brokers, self.ensemble.tree, swarm.topic, self._violated, self._transition
        )  # fmt: skip
        self.ensemble.on_change = self.invariants.changed
        admin = loop.host("admin")
        self._administrator = Administrator(self, admin, lambda: Client(self, admin, 0).cluster())
        self.administer = self._administrator.order

    def _name_clients(self) -> None:
        for number, settings in enumerate(self.swarm.producers):
            self._programs[self.loop.host(f"producer-{number}")] = partial(Client.produce, settings=settings)
        for number in range(self.swarm.readers):
            self._programs[self.loop.host(f"reader-{number}")] = Client.read
        for number in range(self.swarm.members):
            self._programs[self.loop.host(f"member-{number}")] = Client.join
        for number in range(self.swarm.new_members):
            self._programs[self.loop.host(f"new-member-{number}")] = Client.attend
        self._programs[self.loop.host("observer")] = Client.look
        if self.swarm.drafts:
            self._programs[self.loop.host("drafter")] = Drafts(self._violated).run
        if self.swarm.transactions is not None:
            self._name_transactors(self.swarm.transactions)
        if self.swarm.queueing is not None:
            self._name_workers(self.swarm.queueing)
        if self.swarm.reminding is not None:
            for number in range(self.swarm.reminding.planners):
                program = partial(_plan, plan=self.swarm.reminding)
                self._programs[self.loop.host(f"planner-{number}")] = program

    def _name_transactors(self, plan: Transacting) -> None:
        names = {f"transactor-{number}": Transactor.transact for number in range(plan.transactors)}
        names |= {f"transformer-{number}": Transactor.transform for number in range(plan.transformers)}
        for name, program in names.items():
            self._programs[self.loop.host(name)] = partial(_transact, plan=plan, name=name, program=program)
        self.history.batch_rows = TASKS * ROWS
        for name in (f"publisher-{number}" for number in range(plan.publishers)):
            self._programs[self.loop.host(name)] = partial(_publish, plan=plan, noted=self.history.noted)

    def _name_workers(self, plan: Queueing) -> None:
        names = {f"jobber-{number}": Worker.send for number in range(plan.senders)}
        names |= {f"worker-{number}": Worker.work for number in range(plan.workers)}
        for name, program in names.items():
            self._programs[self.loop.host(name)] = partial(_work, plan=plan, program=program)

    # --- the run

    async def run(self) -> None:
        for broker in self.brokers:
            broker.start()
        await self._in_time(self._administrator.create_topic(), "create the topic")
        for host in self._programs:
            self._start_client(host)
        for broker in self.brokers:
            self.injector.watch(broker)
        end = self.loop.time() + self.swarm.load_s
        while self.loop.time() < end and not self._seen_enough():
            await asyncio.sleep(self._rng.uniform(0, 2 * self.swarm.fault_every_s))
            self.injector.strike(self._rng.pick(self.swarm.faults))
        for phase in (self._heal, self._finish):
            if not self._seen_enough():
                await phase()

    def _seen_enough(self) -> bool:
        return self.brief and bool(self.violations)

    def _start_client(self, host: Host) -> None:
        life = self._lives[host] = self._lives.get(host, 0) + 1
        program = self._programs[host]
        self._tasks[host] = host.start(lambda: program(Client(self, host, life)))

    def kill_client(self, host: Host) -> None:
        if host.running:
            host.kill()
            self.loop.call_later(self._rng.uniform(0, 2), self._start_client, host, context=self.loop.world)

    async def _in_time(self, work: Awaitable[None], what: str, why: Callable[[], str] = str) -> None:
        try:
            async with asyncio.timeout(HEAL_S):
                await work
        except TimeoutError:
            self.violations.append(f"not-live: could not {what} within {HEAL_S:g} s {why()}".rstrip())
        except RunnelError as error:
            self.violations.append(f"not-live: could not {what}: {error}")

    async def _heal(self) -> None:
        self.loop.trace("heal")
        self.injector.heal()
        self.sending = False
        if self.swarm.reminding is not None:
            for broker in self.brokers:
                broker.host.clock.offset_ms = 0  # nobody waits for a time that is half an hour away
        durable = self.injector.all_durable()
        may_lose_power = durable and "rot" not in self.swarm.faults  # nothing could tell rot from a torn tail
        for broker in self.brokers if durable or "power" not in self.swarm.faults else ():  # see BESIDE_POWER
            if self._rng.chance(0.3) or self._has_failed_partitions(broker):
                broker.die(power=self._rng.chance(0.5) and may_lose_power)
        await self._in_time(self._healthy(), "get well", lambda: "; ".join(ailing(self.brokers, self.invariants)))

    def _has_failed_partitions(self, broker: SimBroker) -> bool:
        """A log that could not be opened, for want of room say, is tried again at the next start."""
        return broker.up and broker.server is not None and bool(broker.server.broker.partitions._failed)

    async def _some_broker_up(self) -> None:
        while not any(broker.up for broker in self.brokers):  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def _healthy(self) -> None:
        while ailing(self.brokers, self.invariants):  # noqa: ASYNC110
            await asyncio.sleep(0.2)

    async def _finish(self) -> None:
        producers = [host for host in self._programs if host.name.startswith(SENDERS)]
        await self._in_time(self._settled(producers), "settle every send")
        await self._in_time(self._groups_done(), "let the groups read everything")
        if self.swarm.queueing is not None:
            overseer = Overseer(self, self.brokers, self.loop.host("foreman"))
            await self._in_time(overseer.run(), "get all jobs done", lambda: overseer.left)
        if self.swarm.reminding is not None:
            await self._in_time(self._all_due(), "send all that is due")
        await self._in_time(self._healthy(), "stay well", lambda: "; ".join(ailing(self.brokers, self.invariants)))
        self.invariants.final()
        first = await self._read_all("auditor-1")
        self._end_all()
        await self._in_time(self._some_broker_up(), "restart the brokers")
        second = await self._read_all("auditor-2")
        if first != second:
            self.violations.append(f"not-the-same: {first} messages before the last restart, {second} after it")

    def _end_all(self) -> None:
        """In order, or all at once: then nobody knows at first how far what it finds is committed."""
        at_once = self.injector.all_durable() and self._rng.chance(0.5)
        for broker in self.brokers:
            broker.die(power=False) if at_once else broker.stop()

    async def _settled(self, producers: list[Host]) -> None:
        while not all(host.running and self._tasks[host].done() for host in producers):  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    async def _groups_done(self) -> None:
        host = self.loop.host("overseer")

        async def wait() -> None:
            client = Client(self, host, 0)
            cluster = client.cluster()
            for group in self.swarm.groups:
                while not await self._is_group_done(client, cluster, group):  # noqa: ASYNC110
                    await asyncio.sleep(0.5)

        await host.start(wait)

    async def _all_due(self) -> None:
        host = self.loop.host("timekeeper")

        async def wait() -> None:
            cluster = Client(self, host, 0).cluster()
            while True:
                with suppress(RunnelError):
                    if not (await call(cluster, SCHEDULE_COUNT, CountPending(REMINDERS))).messages:
                        return
                await asyncio.sleep(0.5)

        await host.start(wait)

    async def _is_group_done(self, client: Client, cluster: Cluster, group: str) -> bool:
        try:
            ends = await bounds(cluster, client.keys)
            committed = await client.look_once(cluster, group)
        except RunnelError:
            return False
        return all(committed.get(str(where), 0) >= ends[where].end for where in client.keys)

    async def _read_all(self, name: str) -> int | None:
        host = self.loop.host(name)
        count: int | None = None

        async def read() -> None:
            nonlocal count
            while count is None:
                try:
                    count = await Client(self, host, 0).read_all()
                except RetriableError as error:
                    self.loop.trace(f"{name} {type(error).__name__}: {error}")
                    self.troubled(error)
                    await asyncio.sleep(0.1)

        await self._in_time(host.start(read), "read everything")
        return count

    # --- what must hold

    def seen(self, records: dict[str, list[tuple[int, str]]]) -> None:
        for key, found in records.items():
            high = self.invariants.high_of(key.replace("/", "-"))
            for offset, value in found:
                if offset >= high:
                    self._violated(f"read-above-high-watermark: {value} at {offset} of {key}")

    def troubled(self, error: RunnelError) -> None:
        """The network damages nothing here: what comes damaged, left a broker so."""
        if isinstance(error, CorruptBatch):
            self._violated(f"rot-served: {error}")

    def gap_told(self, what: str) -> None:
        self._violated(f"false-gap: {what}")

    def _violated(self, what: str) -> None:
        if what not in self.violations:
            self.loop.trace(f"VIOLATION {what}")
            self.violations.append(what)

    def _transition(self, what: str, truth: Truth) -> None:
        image = truth.image
        self.loop.trace(
            f"{what} {truth.name}: leader {image.leader} epoch {image.leader_epoch} isr {image.isr} elr {image.elr}"
        )
        self.injector.happened(what, image.replicas)

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
            dict(sorted(self.injector.transitions.items())),
            list(dict.fromkeys(violations)),
        )


def run(
    seed: int, *, faults: Sequence[str] = (), flush_mode: FlushMode | None = None,
    transactions: bool | Transacting = False, queues: bool = False, sinks: bool = False, schedule: bool = False,
    brief: bool = False, tracer: Callable[[str], None] | None = None, **given: Any,
) -> Outcome:  # fmt: skip
    """One seed, from beginning to end; a brief run ends when something is violated. What is given of the faults, the
    flush mode and the swarm is not drawn."""
    if transactions or sinks:
        planned = isinstance(transactions, Transacting)
        given["transactions"] = transactions if planned else _transacting(seed, sinks=sinks)
    if queues:
        given.setdefault("queueing", Queueing.draw(SeededRng(f"{seed}/queues")))
    if schedule:
        given.setdefault("reminding", Reminding.draw(SeededRng(f"{seed}/schedule")))
    with _quiet(), SimLoop(seed) as loop:
        loop.tracer = tracer
        simulation = Simulation(loop, seed, faults, flush_mode, given)
        simulation.brief = brief
        try:
            loop.run_until_complete(simulation.run())
        except Deadlock as error:
            simulation.violations.append(f"deadlock: {error}")
        for broker in simulation.brokers:
            broker.disk.discard()
        return simulation.outcome()


def _transacting(seed: int, *, sinks: bool) -> Transacting:
    drawn = Transacting.draw(SeededRng(f"{seed}/transactions"))
    return replace(drawn, publishers=1 + seed % 2) if sinks else drawn


async def _transact(
    client: Client, plan: Transacting, name: str, program: Callable[[Transactor], Awaitable[None]]
) -> None:
    await program(Transactor(client, plan, name))


async def _publish(client: Client, plan: Transacting, noted: dict[str, int]) -> None:
    await Publisher(client, plan, "sink", noted).publish()


async def _work(client: Client, plan: Queueing, program: Callable[[Worker], Awaitable[None]]) -> None:
    await program(Worker(client, plan))


async def _plan(client: Client, plan: Reminding) -> None:
    await Planner(client, plan).plan()


@contextmanager
def _quiet() -> Iterator[None]:
    """Brokers under faults complain a lot: nobody needs to read it. And no garbage is looked for while a seed runs:
    that is faster, and nothing ends at a moment that no seed decides."""
    logger = logging.getLogger("runnel")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None  # of coroutines that died with their process
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        sys.unraisablehook = hook
        logger.setLevel(level)
