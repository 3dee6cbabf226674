"""The faults of a simulation: what each does, and for how long.

A fault that lasts returns what ends it; the end of the run ends all. Faults stay within what was promised: who was told
that nothing is synced (flush.mode os or interval) loses power only where another in-sync replica lives on.
"""

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from runnel.log.layout import LOG
from runnel.testing.clock import SeededRng
from runnel.testing.copies import folder_of
from runnel.testing.disk import Fault
from runnel.testing.invariants import Invariants
from runnel.testing.loop import Host, SimLoop
from runnel.testing.node import STORE, SimBroker
from runnel.testing.store import Ensemble
from runnel.testing.swarm import AT_TRANSITIONS, Swarm

FOREVER = 10**9
CALLS = ("", "sync", "sync", "write", "open", "sync_dir", "rename", "truncate", "remove")
FAILING = ("write", "write", "read", "read_cached", "open", "truncate", "rename", "sync", "sync_dir")
LASTS_S = (0.5, 3.0, 8.0)  # one of these is the longest that a fault lasts
KILLED_AT_CALL_CHANCE = 0.3
STRUCK_LATER_S = (0.0, 0.002, 0.05)  # after a transition: one of these, at most
REPLICAS_ROTTING = 2  # of so many, one is no minority
End = Callable[[], None]


class Scene(Protocol):
    """What faults need of the simulation that they are in."""

    loop: SimLoop
    swarm: Swarm
    ensemble: Ensemble
    invariants: Invariants
    brokers: Sequence[SimBroker]
    clients: Sequence[Host]

    def kill_client(self, host: Host) -> None: ...

    def administer(self, what: str) -> None:
        """Let an administrator do something, in its own time."""
        ...


@dataclass(slots=True)
class Tripwire(Fault):
    """Fails nothing: tells when a log is truncated, or gets a new segment."""

    told: Callable[[str], None] = print
    known: set[str] = field(default_factory=set)

    def strikes(self, call: str, path: str) -> bool:
        if call == "truncate" and path.endswith(".log"):  # a new segment is cut to nothing before it is used
            self.told("truncation" if path in self.known else "roll")
            self.known.add(path)
        return False


class Injector:
    """Strikes by chance: at any moment, or right after something changed."""

    def __init__(self, scene: Scene, rng: SeededRng) -> None:
        self._scene = scene
        self._loop = scene.loop
        self._network = scene.loop.network
        self._rng = rng
        self._usual_latency_s = self._network.conditions.latency_s
        self._ends: dict[int, End] = {}
        self._over = False
        self._rotting: SimBroker | None = None
        self.counts: dict[str, int] = {}
        self.transitions: dict[str, int] = {}  # those that something was aimed at

    def strike(self, kind: str, broker: SimBroker | None = None) -> None:
        if self._over:
            return
        target = broker or self._rng.pick(self._scene.brokers)
        strike: Callable[[SimBroker], End | bool | None] = getattr(self, "_" + kind.replace("-", "_"))
        self._loop.trace(f"fault {kind} {target.number}")
        end = strike(target)
        if end is False:
            return  # it would have broken no promise
        self.counts[kind] = self.counts.get(kind, 0) + 1
        if callable(end):
            number = len(self._ends)
            self._ends[number] = end
            delay_s = self._rng.uniform(0.1, self._rng.pick(LASTS_S))
            self._loop.call_later(delay_s, self._end, number, context=self._loop.world)

    def happened(self, what: str, brokers: Sequence[int]) -> None:
        """Something changed: strike one of those whom it concerns, perhaps."""
        swarm = self._scene.swarm
        kinds = [kind for kind in AT_TRANSITIONS if kind in swarm.faults]
        if self._over or not kinds or not self._rng.chance(swarm.transition_chance):
            return
        number = self._rng.pick(brokers)
        target = next((broker for broker in self._scene.brokers if broker.number == number), None)
        if target is not None:
            delay_s = self._rng.uniform(0, self._rng.pick(STRUCK_LATER_S))
            self._loop.call_later(delay_s, self.strike, self._rng.pick(kinds), target, context=self._loop.world)
            self.transitions[what] = self.transitions.get(what, 0) + 1

    def watch(self, broker: SimBroker) -> None:
        """Learn of truncations and rolls on its disk."""
        broker.disk.inject(Tripwire("", told=lambda what: self.happened(what, [broker.number])))

    def _end(self, number: int) -> None:
        self._ends[number]()
        self._ends[number] = lambda: None

    def heal(self) -> None:
        self._over = True
        for number in self._ends:
            self._end(number)
        for broker in self._scene.brokers:
            broker.disk.heal()

    # --- a broker ends

    def may_lose_power(self, broker: SimBroker) -> bool:
        """Whether what it has told to be committed is promised to survive, or lives on with others."""
        others = [other for other in self._scene.brokers if other is not broker]
        return self.all_durable() or (
            all(other.up for other in others)
            and all({*truth.image.isr} != {broker.number} for truth in self._scene.invariants.truths.values())
        )

    def all_durable(self) -> bool:
        """Whether everything that is committed is promised to survive any loss of power."""
        return all(truth.durable for truth in self._scene.invariants.truths.values())

    def _power(self, broker: SimBroker) -> bool:
        if not self.may_lose_power(broker):
            return False
        broker.die(power=True)
        return True

    def _power_at(self, broker: SimBroker) -> bool:
        if not self.all_durable():
            return False
        broker.disk.inject(replace(self._some_call(), power_cut=True))
        return True

    def _some_call(self) -> Fault:
        nth = 1 + self._rng.below(self._rng.pick((3, 30)))
        return Fault(self._rng.pick(CALLS), nth=nth)

    def _power_all(self, _: SimBroker) -> bool:
        if not self.all_durable():
            return False
        for broker in self._scene.brokers:
            broker.die(power=True)
        return True

    def _kill(self, broker: SimBroker) -> None:
        """Now, or in the middle of what the disk is asked to do."""
        if self._rng.chance(KILLED_AT_CALL_CHANCE):
            broker.disk.inject(replace(self._some_call(), killed=True))
        else:
            broker.die(power=False)

    def _kill_all(self, _: SimBroker) -> None:
        for broker in self._scene.brokers:
            broker.die(power=False)

    def _stop(self, broker: SimBroker) -> None:
        broker.stop()

    # --- a broker suffers

    def _any_host(self, broker: SimBroker) -> Host:
        return self._rng.pick([broker.host, broker.host, self._rng.pick(self._scene.clients)])

    def _pause(self, broker: SimBroker) -> End:
        host = self._any_host(broker)
        host.pause()
        return host.resume

    def _disk_full(self, broker: SimBroker) -> End:
        short = self._rng.pick((None, 0, 7, 100, 700))
        fault = Fault("write", errno.ENOSPC, nth=1 + self._rng.below(4), times=FOREVER, short_bytes=short)
        return self._fail_disk(broker, fault)

    def _disk_error(self, broker: SimBroker) -> End:
        call = self._rng.pick(FAILING)
        fault = Fault(call, errno.EIO, nth=1 + self._rng.below(5), times=1 + self._rng.below(2))
        return self._fail_disk(broker, fault)

    def _sync_lost(self, broker: SimBroker) -> End | bool:
        """The system can't write something, and takes it for written: it may be read until memory is short."""
        if not self.all_durable():
            return False
        return self._fail_disk(broker, Fault("sync", errno.EIO, nth=1 + self._rng.below(3), loses=True))

    def _fail_disk(self, broker: SimBroker, fault: Fault) -> End:
        broker.disk.inject(fault)

        def end() -> None:
            fault.times = 0

        return end

    def _rot(self, _: SimBroker) -> bool:
        """A bit of a copy flips, always on the same disk: of every partition, a minority of the copies decays."""
        broker = self._rotting = self._rotting or self._rng.pick(self._scene.brokers)
        folders = [
            folder_of(truth.key)
            for truth in self._scene.invariants.truths.values()
            if truth.durable and truth.config.min_insync_replicas > 1 and len(truth.image.replicas) > REPLICAS_ROTTING
        ]
        files = [path for folder in folders for path in broker.disk.files(folder) if path.endswith(LOG)]
        return bool(files) and broker.disk.decay(self._rng.pick(files))

    def _disk_slow(self, broker: SimBroker) -> End:
        broker.slowness = self._rng.pick((10.0, 100.0))

        def end() -> None:
            broker.slowness = 1.0

        return end

    # --- the network and the clocks

    def _reset(self, broker: SimBroker) -> None:
        host = self._any_host(broker)
        if host.process is not None:
            self._network.reset_all(host.process)

    def _cut(self, broker: SimBroker) -> End:
        others = [other.host for other in self._scene.brokers if other is not broker]
        other = self._rng.pick([*others, self._rng.pick(self._scene.clients)])
        return self._cut_ways(self._some_ways(broker.host.name, other.name))

    def _isolate(self, broker: SimBroker) -> End:
        names = [other.host.name for other in self._scene.brokers if other is not broker]
        if self._rng.chance(0.3):
            names += [client.name for client in self._scene.clients]
        return self._cut_ways([way for name in names for way in self._both(broker.host.name, name)])

    def _ring(self, _: SimBroker) -> End:
        names = [broker.host.name for broker in self._scene.brokers]
        return self._cut_ways(list(zip(names, [*names[1:], names[0]], strict=True)))

    def _cut_store(self, broker: SimBroker) -> End:
        return self._cut_ways(self._some_ways(broker.host.name, STORE))

    def _both(self, one: str, other: str) -> list[tuple[str, str]]:
        return [(one, other), (other, one)]

    def _some_ways(self, one: str, other: str) -> list[tuple[str, str]]:
        both = self._both(one, other)
        return self._rng.pick((both, both[:1], both[1:]))

    def _cut_ways(self, ways: list[tuple[str, str]]) -> End:
        heals = [self._network.cut(*way) for way in ways]

        def end() -> None:
            for heal in heals:
                heal()

        return end

    def _slow(self, _: SimBroker) -> End:
        conditions = self._network.conditions
        conditions.latency_s = (0.05, self._rng.pick((0.3, 1.0)))

        def end() -> None:
            conditions.latency_s = self._usual_latency_s

        return end

    def _clock(self, broker: SimBroker) -> None:
        self._any_host(broker).clock.offset_ms = self._rng.below(3_000_000) - 1_500_000

    # --- the store, administrators, clients

    def _store_stall(self, _: SimBroker) -> End | None:
        if self._rng.chance(0.3):
            self._scene.ensemble.break_connections()
            return None
        return self._scene.ensemble.stall()

    def _expire(self, broker: SimBroker) -> bool:
        if broker.session is None:
            return False
        self._scene.ensemble.expire(broker.session)
        return True

    def _elect(self, _: SimBroker) -> None:
        self._scene.administer("elect")

    def _reassign(self, _: SimBroker) -> None:
        self._scene.administer("reassign")

    def _client_kill(self, _: SimBroker) -> None:
        self._scene.kill_client(self._rng.pick(self._scene.clients))
