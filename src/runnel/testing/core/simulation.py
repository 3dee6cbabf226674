"""One run of the pure cores under faults, all of it decided by a seed.

load      producers send, followers copy, the controller decides; faults strike; every invariant at every step
heal      faults end, everybody comes back; within a bounded time all is led, in sync, committed and the same everywhere
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from runnel.cluster.image import NO_LEADER, BrokerState, Image, Partition, Topic
from runnel.model.ids import BrokerId, Epoch, TopicId
from runnel.testing.core.broker import ModelBroker
from runnel.testing.core.clients import ModelProducer
from runnel.testing.core.faults import Injector
from runnel.testing.core.invariants import Truth, Violation
from runnel.testing.core.log import ModelLog
from runnel.testing.core.network import Network
from runnel.testing.core.rules import ALL, Rules
from runnel.testing.core.scheduler import Endless, Scheduler, Tracer
from runnel.testing.core.store import ModelStore
from runnel.testing.core.swarm import Swarm, TopicSwarm

HEAL_MS = 60_000.0  # virtual; what is not well by then is not going to be
LOOK_MS = 250.0
READ_MS = 40.0
MARK_MS = 1_000.0
OLD_MARKS = 4  # what was committed so many marks ago, nobody sends again


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one seed."""

    seed: int
    trace_hash: str
    turns: int
    virtual_s: float
    acknowledged: int
    sent: int
    lossy: int  # partitions that lost what nobody promised to keep
    faults: dict[str, int]
    transitions: dict[str, int]  # what faults were aimed at
    violations: list[str]  # the first one ends a run

    @property
    def violation(self) -> str | None:
        return self.violations[0] if self.violations else None


def run(
    seed: int, *, faults: tuple[str, ...] = (), rules: Rules = ALL, tracer: Tracer | None = None, **given: Any
) -> Outcome:
    """Replay a seed. What is given of the swarm is not drawn."""
    simulation = Simulation(seed, faults, rules, tracer, given)
    violation = None
    try:
        simulation.run()
    except (Violation, Endless) as found:
        violation = str(found)
        simulation.scheduler.note(f"VIOLATION {violation}")
    return simulation.outcome(seed, violation)


class Simulation:
    """The whole world of one seed."""

    def __init__(
        self, seed: int, faults: tuple[str, ...], rules: Rules, tracer: Tracer | None, given: Mapping[str, Any]
    ) -> None:
        self.scheduler = scheduler = Scheduler(seed, tracer)
        self.rules = rules
        self.swarm = swarm = replace(Swarm.draw(scheduler.rng, faults), **given)
        self.network = Network(scheduler, reach_ms=swarm.reach_ms, far=swarm.far, lose=swarm.lose, double=swarm.double)
        self.topic_ids = [TopicId(UUID(int=number + 1)) for number in range(len(swarm.topics))]
        image = self._first_image()
        self.store = ModelStore(
            scheduler, image, rules,
            session_ms=swarm.session_ms, late_ms=swarm.late_ms, late_writes=swarm.late_writes,
        )  # fmt: skip
        self.store.changed = self._changed
        self.truths = [
            Truth(f"t{number}", self.store.partition(number), minimums=topic.minimums, unclean=topic.unclean)
            for number, topic in enumerate(swarm.topics)
        ]
        self.brokers = {number: ModelBroker(self, number) for number in range(1, swarm.brokers + 1)}
        self._producer_ids = 0
        self._controllers: dict[int, int] = {}
        self._losers: set[int] = set()
        self._marks: list[list[int]] = []
        self.injector = Injector(self, swarm.faults)
        self.producers: list[ModelProducer] = []

    def _first_image(self) -> Image:
        topics = {}
        brokers = [BrokerId(number) for number in range(1, self.swarm.brokers + 1)]
        for number, topic in enumerate(self.swarm.topics):
            replicas = tuple(self.scheduler.rng.sample(brokers, topic.replicas))
            partition = Partition(NO_LEADER, Epoch(0), Epoch(0), replicas, replicas)
            topic_id = self.topic_ids[number]
            topics[topic_id] = Topic(topic_id, self.name_of(number), (partition,), _config(topic))
        names = {topic.name: topic.id for topic in topics.values()}
        return Image("model", topics=topics, names=names)

    # --- the run

    def run(self) -> None:
        for broker in self.brokers.values():
            self.restart(broker, 20)
        self.scheduler.run(300)
        for number, (acks, idempotent) in enumerate(self.swarm.producers):
            partition = number % len(self.truths)
            self.producers.append(ModelProducer(self, number, partition, acks=acks, idempotent=idempotent))
        self.scheduler.after(READ_MS, self._read)
        self.scheduler.after(MARK_MS, self._mark)
        self.injector.begin()
        self.scheduler.run(self.scheduler.now + self.swarm.load_ms)
        self._heal()

    def _heal(self) -> None:
        self.scheduler.note("heal")
        self.injector.heal()
        for producer in self.producers:
            producer.ended = True
        deadline = self.scheduler.now + HEAL_MS
        while (ill := self._ill()) is not None:
            if self.scheduler.now > deadline:
                raise Violation("Liveness", ill)
            self._operate()
            self.scheduler.run(self.scheduler.now + LOOK_MS)

    def _operate(self) -> None:
        """An operator who accepts a loss, where all who held everything are lost."""
        for number, truth in enumerate(self.truths):
            partition = self.store.partition(number)
            controller = self.brokers.get(self.store.image.controller.broker)
            if controller is not None and not (partition.isr or partition.elr):
                truth.unclean = True
                controller.controller.elect(self.name_of(number), unclean=True)

    def _ill(self) -> str | None:
        """What is not well yet."""
        image = self.store.image
        for broker in self.brokers.values():
            registered = image.brokers.get(BrokerId(broker.id))
            if registered is None or not registered.serving:
                return f"broker {broker.id} does not serve: {registered}"
        for producer in self.producers:
            if producer.busy:
                return f"producer {producer.id} waits for an answer"
        return next((ill for number in range(len(self.truths)) if (ill := self._ill_partition(number))), None)

    def _ill_partition(self, number: int) -> str | None:
        partition, truth = self.store.partition(number), self.truths[number]
        if partition.leader == NO_LEADER or set(partition.isr) != set(partition.replicas) or partition.adding:
            return f"{truth.name} is not led by all: {partition}"
        first = self.brokers[partition.leader].replicas.get(number)
        for broker in partition.replicas:
            replica = self.brokers[broker].replicas.get(number)
            if replica is None or first is None:
                return f"{truth.name} is not open at broker {broker}"
            log, start = replica.log, max(replica.log.start, first.log.start)
            if replica.high != log.end_offset or log.entries[start:] != first.log.entries[start:]:
                return f"{truth.name} at broker {broker}: high watermark {replica.high} of {log.end_offset}"
            if not truth.lossy and log.entries[start:] != truth.committed[start:]:
                raise Violation("Acked", f"{truth.name}: broker {broker} has not what was committed")
            truth.producers(broker, log)
        return None

    # --- for everybody

    def restart(self, broker: ModelBroker, delay_ms: float | None = None) -> None:
        delay = self.scheduler.uniform(1, self.swarm.down_ms) if delay_ms is None else delay_ms
        self.scheduler.after(delay, broker.start)

    def new_log(self, number: int, broker: int) -> ModelLog:
        log = self.truths[number].logs[broker] = ModelLog(self.swarm.topics[number].syncs)
        return log

    def name_of(self, number: int) -> str:
        return f"t{number}"

    def next_producer_id(self) -> int:
        self._producer_ids += 1
        return self._producer_ids

    def leader_hint(self, number: int) -> BrokerId:
        """Who leads, as some broker sees it."""
        asked = self.brokers[self.scheduler.rng.randrange(len(self.brokers)) + 1]
        image = asked.image if asked.up and not asked.paused else None
        return NO_LEADER if image is None else image.topics[self.topic_ids[number]].partitions[0].leader

    def controls(self, broker: int, epoch: int) -> None:
        if self._controllers.setdefault(epoch, broker) != broker:
            raise Violation("OneController", f"brokers {self._controllers[epoch]} and {broker} in epoch {epoch}")
        self.scheduler.note(f"broker {broker} is controller in epoch {epoch}")

    def transition(self, where: str, broker: ModelBroker, number: int) -> None:
        self.scheduler.note(f"{where} {number} at broker {broker.id}")
        self.injector.at(where, broker)

    def settled_below(self, number: int, log: ModelLog) -> int:
        """Below this offset lies nothing that anybody still sends."""
        if len(self._marks) < OLD_MARKS:
            return 0
        old = self._marks[-OLD_MARKS][number]
        waiting = {producer.lowest() for producer in self.producers if producer.busy}
        return next(
            (offset for offset in range(log.start, min(old, log.end_offset)) if log.entries[offset].value in waiting),
            old,
        )

    def _read(self) -> None:
        self.scheduler.after(READ_MS, self._read)
        broker = self.brokers[self.scheduler.rng.randrange(len(self.brokers)) + 1]
        if broker.up and not broker.paused:
            for replica in broker.replicas.values():
                replica.read()

    def _mark(self) -> None:
        self.scheduler.after(MARK_MS, self._mark)
        self._marks.append([len(truth.committed) for truth in self.truths])

    def _changed(self, before: Image, after: Image) -> None:
        """The store has another image."""
        serving = self._restarted(after)
        losers = self._lost_places(after)
        for number, truth in enumerate(self.truths):
            was = truth.image
            now = self.store.partition(number)
            if now is not was:
                self.scheduler.note(f"t{number} {_shown(now)}")
            truth.stored(now, serving, losers)
            if now.leader_epoch != was.leader_epoch:
                self._strike("elected", (now.leader, was.leader))
            elif now.isr != was.isr:
                self._strike("isr", now.replicas)
        for broker in self.brokers.values():
            broker.notice()

    def _lost_places(self, image: Image) -> set[int]:
        """Who came back with less than it had, or may have, or says so; until it serves again."""
        for broker in image.brokers.values():
            if broker.state is BrokerState.READY or broker.damaged:
                self._losers.add(broker.id)
        losers = set(self._losers)
        self._losers -= {broker.id for broker in image.brokers.values() if broker.serving and not broker.damaged}
        return losers

    def _strike(self, where: str, brokers: Iterable[int]) -> None:
        for number in brokers:
            if number != NO_LEADER:
                self.injector.at(where, self.brokers[number])

    def _restarted(self, image: Image) -> frozenset[int]:
        """Who serves in its present life."""
        return frozenset(
            broker.id
            for broker in image.brokers.values()
            if broker.serving and self.brokers[broker.id].up and self.brokers[broker.id].epoch == broker.epoch
        )

    def outcome(self, seed: int, violation: str | None) -> Outcome:
        return Outcome(
            seed=seed,
            trace_hash=self.scheduler.trace_hash(),
            turns=self.scheduler.turns,
            virtual_s=self.scheduler.now / 1_000,
            acknowledged=sum(producer.acknowledged for producer in self.producers),
            sent=sum(producer.sent for producer in self.producers),
            lossy=sum(truth.lossy for truth in self.truths),
            faults=dict(self.injector.counts),
            transitions=dict(self.injector.aimed),
            violations=[] if violation is None else [violation],
        )


def _config(topic: TopicSwarm) -> dict[str, str]:
    own = {} if topic.minimum is None else {"min.insync.replicas": str(topic.minimum)}
    return own | {
        "flush.mode": "commit" if topic.syncs else "os",
        "unclean.leader.election.enable": "true" if topic.unclean else "false",
    }


def _shown(partition: Partition) -> str:
    return (
        f"leader {partition.leader} epoch {partition.leader_epoch}/{partition.epoch} replicas {partition.replicas}"
        f" isr {partition.isr} elr {partition.elr} adding {partition.adding} removing {partition.removing}"
    )
