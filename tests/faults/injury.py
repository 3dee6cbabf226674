"""The faults, each as a block: it begins where the block is entered, and is over when the block ends.

A fault says whom it hit, and may not need more time than it takes to do it; how long it lasts is the nemesis's choice.
Chance comes from the nemesis, so that a seed gives the same choices; the processes take their own time nevertheless.
"""

import random
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.faults.network import OUTSIDE, Network, both_ways
from tests.faults.nodes import BrokerNode
from tests.faults.rig import Rig

if TYPE_CHECKING:
    from tests.faults.operator import Operator

ROLLING_S = 10.0
LOST_PERCENT = (5, 30)
KILOBITS = (200, 4_000)
JUMPS_S = (-86_400.0, -3_600.0, -30.0, -1.0, 1.0, 30.0, 3_600.0, 86_400.0)


@dataclass(frozen=True)
class Hit:
    """Who was hit, in words; and the brokers that thereby lost what they led."""

    what: str
    felled: tuple[int, ...] = ()
    done: bool = True  # False: the cluster refused, or did not answer


@dataclass(frozen=True)
class Scene:
    """What faults are done to."""

    rig: Rig
    rng: random.Random
    topic: str

    def broker(self) -> BrokerNode:
        return self.rng.choice(list(self.rig.brokers.values()))

    @property
    def network(self) -> Network:
        assert self.rig.network is not None
        return self.rig.network

    def others(self, broker: BrokerNode) -> list[str]:
        return [str(node) for node in self.rig.nodes if node is not broker]

    @property
    def zookeepers(self) -> list[str]:
        return [str(node) for node in self.rig.zookeepers]


@dataclass(frozen=True)
class Kind:
    """One kind of fault: how long it lasts (in sessions), how often it is chosen, and what it needs."""

    name: str
    begin: Callable[[Scene], AbstractContextManager[Hit]]
    lasts: tuple[float, float]
    weight: int = 1
    sandbox: bool = False
    clock: bool = False


KINDS: dict[str, Kind] = {}


def fault(
    name: str, lasts: tuple[float, float], weight: int = 1, *, sandbox: bool = False, clock: bool = False
) -> Callable[[Callable[[Scene], Iterator[Hit]]], Callable[[Scene], AbstractContextManager[Hit]]]:
    """Make a generator a kind of fault."""

    def made(work: Callable[[Scene], Iterator[Hit]]) -> Callable[[Scene], AbstractContextManager[Hit]]:
        begin = contextmanager(work)
        KINDS[name] = Kind(name, begin, lasts, weight, sandbox, clock)
        return begin

    return made


# --- processes
@fault("kill a broker", (0.05, 2.5), 6)
def kill(scene: Scene) -> Iterator[Hit]:
    broker = scene.broker()
    with broker.down():
        yield Hit(str(broker), (broker.number,))


@fault("kill all brokers", (0.05, 1.5))
def kill_all(scene: Scene) -> Iterator[Hit]:
    with ExitStack() as stack:
        for broker in scene.rig.brokers.values():
            stack.enter_context(broker.down())
        yield Hit("all", tuple(scene.rig.brokers))


@fault("stop a broker in order", (0.0, 1.0), 4)
def restart(scene: Scene) -> Iterator[Hit]:
    broker = scene.broker()
    with broker.down(signal.SIGTERM):
        yield Hit(str(broker), (broker.number,))


@fault("rolling restart", (0.0, 0.1))
def rolling_restart(scene: Scene) -> Iterator[Hit]:
    for broker in scene.rig.brokers.values():
        with broker.down(signal.SIGTERM):
            pass
        with suppress(RuntimeError):  # other faults may keep it down
            broker.wait(ROLLING_S)
    yield Hit("one after the other")


@fault("pause a broker, shorter than its session", (0.1, 0.8), 2)
def pause(scene: Scene) -> Iterator[Hit]:
    broker = scene.broker()
    with broker.paused():
        yield Hit(str(broker))


@fault("pause a broker, longer than its session", (1.3, 2.5), 2)
def pause_long(scene: Scene) -> Iterator[Hit]:
    broker = scene.broker()
    with broker.paused():
        yield Hit(str(broker), (broker.number,))


# --- ZooKeeper
@fault("kill ZooKeeper's leader", (0.1, 2.0), 2)
def kill_zookeeper_leader(scene: Scene) -> Iterator[Hit]:
    leader = scene.rig.zookeeper_leader() or scene.rng.choice(scene.rig.zookeepers)
    with leader.down():
        yield Hit(str(leader))


@fault("pause one ZooKeeper", (0.2, 2.5))
def pause_zookeeper(scene: Scene) -> Iterator[Hit]:
    node = scene.rng.choice(scene.rig.zookeepers)
    with node.paused():
        yield Hit(str(node))


@fault("pause all ZooKeepers", (0.2, 2.0))
def pause_zookeepers(scene: Scene) -> Iterator[Hit]:
    with ExitStack() as stack:
        for node in scene.rig.zookeepers:
            stack.enter_context(node.paused())
        yield Hit("all")


# --- links
@fault("cut a broker off", (0.3, 3.0), 2, sandbox=True)
def isolate(scene: Scene) -> Iterator[Hit]:
    broker = scene.broker()
    with scene.network.cut(both_ways([str(broker)], [*scene.others(broker), OUTSIDE])):
        yield Hit(str(broker))


@fault("cut one way", (0.3, 3.0), 2, sandbox=True)
def cut_one_way(scene: Scene) -> Iterator[Hit]:
    broker, outward = scene.broker(), scene.rng.random() < 0.5
    far = scene.rng.sample(scene.others(broker), scene.rng.randint(1, 3))
    pairs = [(str(broker), other) if outward else (other, str(broker)) for other in far]
    with scene.network.cut(pairs):
        yield Hit(f"{'from' if outward else 'to'} {broker}: {', '.join(far)}")


@fault("cut a broker off the other brokers", (0.3, 3.0), 2, sandbox=True)
def cut_brokers(scene: Scene) -> Iterator[Hit]:
    broker = scene.broker()
    with scene.network.cut(both_ways([str(broker)], map(str, scene.rig.brokers.values()))):
        yield Hit(str(broker))


@fault("cut a broker off ZooKeeper", (0.3, 2.5), 2, sandbox=True)
def cut_zookeeper(scene: Scene) -> Iterator[Hit]:
    broker = scene.broker()
    with scene.network.cut(both_ways([str(broker)], scene.zookeepers)):
        yield Hit(str(broker))


@fault("cut a broker off the clients", (0.3, 2.0), sandbox=True)
def cut_clients(scene: Scene) -> Iterator[Hit]:
    broker = scene.broker()
    with scene.network.cut(both_ways([str(broker)], [OUTSIDE])):
        yield Hit(str(broker))


@fault("cut a ZooKeeper off the others", (0.3, 2.5), sandbox=True)
def cut_one_zookeeper(scene: Scene) -> Iterator[Hit]:
    node = scene.rng.choice(scene.zookeepers)
    with scene.network.cut(both_ways([node], scene.zookeepers)):
        yield Hit(node)


@fault("slow link", (0.5, 3.0), sandbox=True)
def slow(scene: Scene) -> Iterator[Hit]:
    broker, kilobits = scene.broker(), scene.rng.randint(*KILOBITS)
    with scene.network.slow(str(broker), kilobits):
        yield Hit(f"{broker}, {kilobits} kbit/s")


@fault("lose packets", (0.5, 3.0), sandbox=True)
def lose(scene: Scene) -> Iterator[Hit]:
    broker, percent = scene.broker(), scene.rng.randint(*LOST_PERCENT)
    with scene.network.losing(str(broker), percent):
        yield Hit(f"{broker}, {percent} %")


# --- disk and clock
@fault("full disk", (0.3, 2.0), sandbox=True)
def full_disk(scene: Scene) -> Iterator[Hit]:
    broker = scene.broker()
    with scene.rig.full_disk(broker):
        yield Hit(str(broker))


@fault("jump of the wall clock", (0.3, 2.0), clock=True)
def jump(scene: Scene) -> Iterator[Hit]:
    broker, seconds = scene.broker(), scene.rng.choice(JUMPS_S)
    assert broker.clock is not None
    broker.clock.set(seconds)
    yield Hit(f"{broker}, {seconds:+.0f} s")
    broker.clock.set(0.0)


# --- what an operator does, at the worst moment
@fault("elect the preferred leaders", (0.0, 0.2))
def elect(scene: Scene) -> Iterator[Hit]:
    yield Hit("all partitions", done=_operator(scene.rig).elect(None))


@fault("move the lead", (0.0, 0.5), 2)
def move_lead(scene: Scene) -> Iterator[Hit]:
    number, replicas = _some_partition(scene)
    turned, operator = [*replicas[1:], *replicas[:1]], _operator(scene.rig)
    done = operator.reassign(scene.topic, number, turned) and operator.elect({scene.topic: [number]})
    yield Hit(f"{scene.topic}-{number} to broker {turned[0]}", done=done)


@fault("reassign", (0.1, 1.0), 2)
def reassign(scene: Scene) -> Iterator[Hit]:
    """Take a replica away, and have it again: what it had is removed, and copied anew."""
    number, replicas = _some_partition(scene)
    everywhere = sorted(scene.rig.brokers)
    fewer = scene.rng.sample(everywhere, len(everywhere) - 1)
    wanted = fewer if len(replicas) == len(everywhere) else everywhere
    operator = _operator(scene.rig)
    yield Hit(
        f"{scene.topic}-{number} from {replicas} to {wanted}", done=operator.reassign(scene.topic, number, wanted)
    )
    operator.reassign(scene.topic, number, everywhere)


def _some_partition(scene: Scene) -> tuple[int, list[int]]:
    view = scene.rig.view(scene.topic)
    if view is None or not view.replicas:
        return 0, sorted(scene.rig.brokers)
    number = scene.rng.choice(sorted(view.replicas))
    return number, view.replicas[number]


def _operator(rig: Rig) -> "Operator":
    from tests.faults.operator import Operator  # its client warns when imported, and in tests that is an error

    return Operator(rig.bootstrap)


def possible(rig: Rig) -> tuple[list[Kind], list[str]]:
    """The kinds of fault that can be done here, and the names of those that can't."""
    clocks = all(broker.clock is not None for broker in rig.brokers.values())
    able = [k for k in KINDS.values() if (rig.network is not None or not k.sandbox) and (clocks or not k.clock)]
    return able, [name for name, kind in KINDS.items() if kind not in able]
