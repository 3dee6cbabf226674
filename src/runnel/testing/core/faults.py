"""Faults, drawn from the seed: at any time, and in the moment when something changes.

Rule 1: what nobody promises to survive is not done: a disk is lost only while another copy holds all that is committed.
Rule 2: `heal` ends every fault; from then on nothing else goes wrong.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

from runnel.model.ids import NO_EPOCH, BrokerId, Epoch
from runnel.replica.following import Question
from runnel.replica.partition import Role
from runnel.testing.core.broker import ModelBroker
from runnel.testing.core.swarm import AT_TRANSITIONS, FAULTS

if TYPE_CHECKING:
    from runnel.testing.core.simulation import Simulation

NO_BROKER: Final = BrokerId(99)
LIVES: Final = 1_000  # more than a broker has in one run
EPOCH_HIGHEST: Final = 2**63 - 1  # that the protocol can carry


class Injector:
    """Makes things go wrong."""

    def __init__(self, world: "Simulation", faults: tuple[str, ...]) -> None:
        self._world = world
        self._rng = world.scheduler.rng
        self._faults = faults
        self._at_transitions = tuple(kind for kind in AT_TRANSITIONS if kind in faults)
        self._does: dict[str, Callable[[ModelBroker], bool]] = {
            kind: getattr(self, "_" + kind.replace("-", "_")) for kind in FAULTS
        }
        self.counts: Counter[str] = Counter()
        self.aimed: Counter[str] = Counter()
        self.active = False

    def begin(self) -> None:
        self.active = True
        self._next()

    def _next(self) -> None:
        swarm, scheduler = self._world.swarm, self._world.scheduler
        if not self.active:
            return
        self.strike(self._rng.choice(self._faults), self._anyone())
        scheduler.after(swarm.fault_every_ms * self._rng.uniform(0.3, 1.7), self._next)

    def at(self, where: str, broker: ModelBroker) -> None:
        """Something changes at this broker: perhaps something goes wrong just now."""
        swarm = self._world.swarm
        if not self.active or not self._at_transitions or where not in swarm.at_transitions:
            return
        if self._rng.random() < swarm.transition_chance:
            kind = self._rng.choice(self._at_transitions)
            delay_ms = self._rng.choice((0.0, 1.0, 20.0)) * self._rng.random()
            self._world.scheduler.after(delay_ms, self._late, kind, broker)
            self.aimed[where] += 1

    def _late(self, kind: str, broker: ModelBroker) -> None:
        if self.active:
            self.strike(kind, broker)

    def strike(self, kind: str, broker: ModelBroker) -> None:
        if self._does[kind](broker):
            self.counts[kind] += 1
            self._world.scheduler.note(f"fault {kind} at broker {broker.id}")

    def heal(self) -> None:
        self.active = False
        world = self._world
        world.network.heal()
        world.store.heal()
        for broker in world.brokers.values():
            broker.slow = 1.0
            broker.go_on()
            broker.reach_store()
            if not broker.up:
                world.restart(broker, 1.0)

    def _anyone(self) -> ModelBroker:
        return self._rng.choice(list(self._world.brokers.values()))

    def _later(self, most_ms: float, what: Callable[..., None], *args: object) -> None:
        self._world.scheduler.after(self._rng.uniform(5, most_ms), what, *args)

    # --- processes

    def _kill(self, broker: ModelBroker) -> bool:
        if not broker.up:
            return False
        broker.kill()
        self._world.restart(broker)
        return True

    def _kill_controller(self, broker: ModelBroker) -> bool:
        other = self._world.brokers.get(self._world.store.image.controller.broker)
        return other is not None and self._kill(other)

    def _bounce(self, broker: ModelBroker) -> bool:
        if not broker.up:
            return False
        if self._rng.random() < 0.5:
            broker.lose_power()
        else:
            broker.kill()
        self._world.restart(broker, self._rng.uniform(0.1, self._world.swarm.session_ms / 3))
        return True

    def _power(self, broker: ModelBroker) -> bool:
        if not broker.up:
            return False
        broker.lose_power()
        self._world.restart(broker)
        return True

    def _power_all(self, broker: ModelBroker) -> bool:
        for each in self._world.brokers.values():
            self._power(each)
        return True

    def _pause(self, broker: ModelBroker) -> bool:
        if not broker.up or broker.paused:
            return False
        broker.pause()
        self._later(self._world.swarm.session_ms * 3, broker.go_on)
        return True

    def _stop(self, broker: ModelBroker) -> bool:
        return broker.stop()

    # --- the network and the store

    def _cut(self, broker: ModelBroker) -> bool:
        other = self._anyone()
        return self._sever([(broker.id, other.id), (other.id, broker.id)])

    def _cut_one_way(self, broker: ModelBroker) -> bool:
        other = self._anyone()
        return self._sever([(broker.id, other.id)])

    def _isolate(self, broker: ModelBroker) -> bool:
        others = [other for other in self._world.brokers if other != broker.id]
        return self._sever([pair for other in others for pair in ((broker.id, other), (other, broker.id))])

    def _sever(self, pairs: Iterable[tuple[int, int]]) -> bool:
        cut = self._world.network.cut
        new = [pair for pair in pairs if pair[0] != pair[1] and pair not in cut]
        cut.update(new)
        if new:
            self._later(self._world.swarm.session_ms * 3, cut.difference_update, new)
        return bool(new)

    def _store_cut(self, broker: ModelBroker) -> bool:
        if broker.id in self._world.store.cut:
            return False
        broker.cut_from_store()
        self._later(self._world.swarm.session_ms * 3, broker.reach_store)
        return True

    # --- disks

    def _slow_disk(self, broker: ModelBroker) -> bool:
        if broker.slow > 1.0:
            return False
        broker.slow = self._rng.choice((5.0, 40.0))
        self._later(2_000, self._quick_disk, broker)
        return True

    def _quick_disk(self, broker: ModelBroker) -> None:
        broker.slow = 1.0

    def _new_disk(self, broker: ModelBroker) -> bool:
        if not all(self._can_spare(broker, number) for number in broker.disk):
            return False
        broker.lose_disk()
        self._world.restart(broker)
        return True

    def _damage(self, broker: ModelBroker) -> bool:
        if not broker.disk:
            return False
        number = self._rng.choice(sorted(broker.disk))
        if not self._can_spare(broker, number):
            return False
        broker.lose_copy(number)
        self._world.restart(broker)
        return True

    def _can_spare(self, broker: ModelBroker, number: int) -> bool:
        """Whether another copy counts, and will count, that has all that is committed."""
        truth = self._world.truths[number]
        if broker.id not in (*truth.image.isr, *truth.image.elr):
            return True
        others = {*truth.image.isr, *truth.image.elr} - truth.excused - {broker.id}
        return not truth.excused and bool(others)

    # --- what operators and brokers do

    def _transfer(self, broker: ModelBroker) -> bool:
        number = self._partition()
        return self._ask("elect", self._world.name_of(number), unclean=False)

    def _reassign(self, broker: ModelBroker) -> bool:
        number = self._partition()
        ids = list(self._world.brokers)
        size = self._rng.randrange(1, len(ids) + 1)
        return self._ask("reassign", self._world.name_of(number), tuple(self._rng.sample(ids, size)))

    def _cancel(self, broker: ModelBroker) -> bool:
        return self._ask("reassign", self._world.name_of(self._partition()), None)

    def _ask(self, verb: str, *args: object, **options: object) -> bool:
        controller = self._world.brokers.get(self._world.store.image.controller.broker)
        if controller is None or not controller.up or controller.paused:
            return False
        getattr(controller.controller, verb)(*args, **options)
        return True

    def _resign(self, broker: ModelBroker) -> bool:
        for replica in broker.replicas.values():
            if replica.role is Role.LEADER and not broker.paused and self._can_spare(broker, replica.number):
                return broker.resign(replica)
        return False

    def _retain(self, broker: ModelBroker) -> bool:
        number = self._partition()
        leader = self._world.brokers.get(self._world.store.partition(number).leader)
        if leader is None or leader.paused:
            return False
        replica = leader.replicas.get(number)
        if replica is None or replica.role is not Role.LEADER:
            return False
        replica.retain(self._world.settled_below(number, replica.log))
        return True

    def _imposter(self, broker: ModelBroker) -> bool:
        """A client says of a replica that it holds all that the leader has, in a life that no broker is in."""
        number = self._partition()
        placed = self._world.store.partition(number)
        leader = self._world.brokers.get(placed.leader)
        replica = leader.replicas.get(number) if leader is not None else None
        if leader is None or replica is None:
            return False
        name = self._rng.choice([*placed.replicas, NO_BROKER])
        registered = self._world.store.image.brokers.get(name)
        later = LIVES if registered is None else registered.epoch + LIVES
        epoch = self._rng.choice((NO_EPOCH, later, EPOCH_HIGHEST))
        asked = Question(placed.leader_epoch, replica.log.end_offset, replica.log.last_epoch)
        self._world.network.send(NO_BROKER, leader, leader.on_fetch, name, number, Epoch(epoch), asked)
        return True

    def _partition(self) -> int:
        return self._rng.randrange(len(self._world.truths))
