"""One broker of the model: its life, what it sees of the cluster, and the messages between brokers.

down --start--> registered (starting) --logs open--> ready --admitted--> serving --> stopping --> down, clean
                            any time: killed, power lost, paused, session lost
"""

from typing import TYPE_CHECKING

from runnel.cluster import elections
from runnel.cluster.image import Broker, BrokerState, Image
from runnel.cluster.membership import Identity
from runnel.model.errors import IneligibleReplica, RunnelError, StaleBrokerEpoch
from runnel.model.ids import BrokerId, Epoch, Millis, PartitionKey
from runnel.model.topic_config import TopicConfig
from runnel.replica.following import Answer, Question
from runnel.replica.partition import Role
from runnel.replica.progress import Proposal
from runnel.testing.core.controller import ModelController
from runnel.testing.core.log import ModelLog
from runnel.testing.core.network import Process
from runnel.testing.core.replica import Replica, Reply
from runnel.testing.core.swarm import MINIMUMS

if TYPE_CHECKING:
    from runnel.testing.core.simulation import Simulation


class ModelBroker(Process):
    """A process with a disk, a session and replicas."""

    def __init__(self, world: "Simulation", number: int) -> None:
        super().__init__(world.scheduler, number)
        self.world = world
        self.swarm = world.swarm
        self.pace = world.scheduler.uniform(*self.swarm.paces)  # of its clock
        self.disk: dict[int, ModelLog] = {}
        self.damaged: set[int] = set()  # partitions whose copy was lost, until the controller has heard it
        self.directory = 0
        self.clean_epoch: Epoch | None = None
        self.slow = 1.0  # how many times slower its disk is
        self.base = TopicConfig()  # what its file says
        self._forget()

    def _forget(self) -> None:
        """What a process knows, ends with it."""
        self.epoch = Epoch(-1)
        self.seen = -1  # index of the image
        self.image: Image | None = None
        self.replicas: dict[int, Replica] = {}
        self.controller = ModelController(self)
        self._noticed = False
        self._declared = False
        self._told = False  # what is damaged
        self._stopping = False

    # --- life

    def start(self) -> None:
        if self.up:
            return
        self.begin()
        self._forget()
        if self.swarm.files_count:
            self.base = TopicConfig(min_insync_replicas=self.scheduler.rng.choice(MINIMUMS))
        for log in self.disk.values():
            log.synced = len(log.entries)  # recovery syncs what it found
            log.rebuild()
        self.after(self.scheduler.uniform(0.5, 5), self._register)

    def _register(self) -> None:
        if self.id in self.world.store.cut:
            self.after(50, self._register)
            return
        identity = Identity("model", BrokerId(self.id), f"{self.id}-{self.directory}", self.clean_epoch)
        self.clean_epoch = None
        self.epoch = self.world.store.register(self, identity).epoch
        self.see(len(self.world.store.images) - 1)
        self.after(self.swarm.tick_ms, self._tick)

    def kill(self) -> None:
        """The process is gone; what it had written stays."""
        if not self.up:
            return
        self.end()
        self.world.store.silent(self)
        self._forget()

    def lose_power(self) -> None:
        """What was not synced is gone as well, or part of it."""
        self.kill()
        for number, log in self.disk.items():
            unsynced = len(log.entries) - log.synced
            kept = self.scheduler.rng.randrange(unsynced + 1) if unsynced else 0
            log.power_loss(kept)
            if kept < unsynced and not log.syncs:
                self.world.truths[number].excuse(self.id)
            self.world.truths[number].shortened(self.id)

    def lose_disk(self) -> None:
        """Everything is gone; whoever starts next here has another data directory."""
        self.kill()
        self.directory += 1
        for number in list(self.disk):
            self._lose(number)

    def lose_copy(self, number: int) -> None:
        """One copy is damaged, which is noticed at the next start."""
        self.kill()
        if number in self.disk:
            self._lose(number)
            self.damaged.add(number)

    def _lose(self, number: int) -> None:
        self.world.truths[number].excuse(self.id)
        self.disk[number].wipe()

    def pause(self) -> None:
        if self.up and not self.paused:
            self.paused = True
            self.world.store.silent(self)

    def go_on(self) -> None:
        if not self.paused:
            return
        self.resume()
        self.world.store.heard(self)
        self.after(self.scheduler.uniform(0, self.swarm.zombie_ms), self._check_session)
        self.notice()

    def cut_from_store(self) -> None:
        self.world.store.cut.add(self.id)
        if self.up:
            self.world.store.silent(self)

    def reach_store(self) -> None:
        self.world.store.cut.discard(self.id)
        if self.up:
            self.world.store.heard(self)
            self.after(self.scheduler.uniform(0, self.swarm.zombie_ms), self._check_session)
            self.notice()

    def _check_session(self) -> None:
        """A broker whose session is over ends; another life follows."""
        if self.epoch >= 0 and self.id not in self.world.store.cut and not self.world.store.has_session(self):
            self.world.scheduler.note(f"broker {self.id} lost its session")
            self.end()
            self._forget()
            self.world.restart(self)

    # --- stopping in order

    def stop(self) -> bool:
        """In order; who was not admitted yet has nothing to put in order."""
        mine = None if self.image is None else self.image.brokers.get(BrokerId(self.id))
        if not self.up or self.paused or self._stopping or mine is None or not mine.serving:
            return False
        self._stopping = True
        self._declare(BrokerState.STOPPING)
        self.after(self.swarm.stop_ms, self._stopped)
        return True

    def _stopped(self) -> None:
        if self.id in self.world.store.cut:
            return self.kill()
        for log in self.disk.values():
            log.synced = len(log.entries)
        self.clean_epoch = self.epoch
        self.world.store.end_session(self.id) if self.world.store.has_session(self) else None
        self.end()
        self._forget()
        self.world.restart(self)
        return None

    # --- the image

    def notice(self) -> None:
        """Something changed in the store: look, later."""
        if not self._noticed and self.epoch >= 0:
            self._noticed = True
            self.after(self.world.store.lateness_ms(), self._look)

    def _look(self) -> None:
        self._noticed = False
        store = self.world.store
        if self.id in store.cut or self.seen >= len(store.images) - 1:
            return
        newest = len(store.images) - 1
        self.see(newest if self.scheduler.chance(self.swarm.skip_images) else self.seen + 1)
        if self.up and self.seen < newest:
            self.notice()

    def see(self, index: int) -> None:
        """The next image that this broker knows."""
        if index <= self.seen:
            return
        self.seen = index
        self.image = image = self.world.store.images[index]
        mine = image.brokers.get(BrokerId(self.id))
        if mine is None or mine.epoch != self.epoch:
            self.after(self.scheduler.uniform(0, self.swarm.zombie_ms), self._check_session)
            return
        if mine.serving and not mine.damaged and self._told:
            self.damaged.clear()  # the controller has heard it
            self._told = False
        self._apply(image, mine)
        self.controller.look()
        if mine.state is BrokerState.STARTING and not self._declared:
            self._declared = True
            self.after(self.scheduler.uniform(0.5, 20), self._ready)
        if self._stopping and not elections.is_needed(image, mine.id):
            self.after(self.scheduler.uniform(0, 3), self._stopped)

    def _apply(self, image: Image, mine: Broker) -> None:
        for number, topic_id in enumerate(self.world.topic_ids):
            partition = image.topics[topic_id].partitions[0]
            if self.id not in partition.replicas:
                self._remove(number)
            elif mine.alive or not self.world.rules.role_by_life:
                self._open(number).apply(partition)

    def _open(self, number: int) -> Replica:
        replica = self.replicas.get(number)
        if replica is None:
            log = self.disk.get(number)
            if log is None:
                log = self.disk[number] = self.world.new_log(number, self.id)
            replica = self.replicas[number] = Replica(self, number, log, self.world.truths[number])
        return replica

    def _remove(self, number: int) -> None:
        """The image places this partition elsewhere: its data goes."""
        replica = self.replicas.pop(number, None)
        if replica is not None:
            replica.step_down()
        if number in self.disk:
            del self.disk[number]
            del self.world.truths[number].logs[self.id]
            self.world.truths[number].shortened(self.id)

    def _ready(self) -> None:
        self._declare(BrokerState.READY)

    def _declare(self, state: BrokerState) -> None:
        """Tell the store about this broker; again until it is heard."""
        if self.id in self.world.store.cut:
            self.after(50, self._declare, state)
            return
        damaged: tuple[PartitionKey, ...] = ()
        if self.world.rules.damage_told:
            damaged = tuple(PartitionKey(self.world.topic_ids[number], 0) for number in sorted(self.damaged))
        if self.world.store.declare(self, self.epoch, state, damaged):
            self._told = bool(damaged)

    # --- clocks and the disk

    def now_ms(self) -> Millis:
        return Millis(int(self.scheduler.now * self.pace))

    def minimum(self, number: int) -> int:
        """min.insync.replicas as this broker sees it: the topic's own, or that of its file."""
        return self.swarm.topics[number].minimum or self.base.min_insync_replicas

    def sync_ms(self, log: ModelLog) -> float:
        if log.syncs:
            return self.scheduler.uniform(0.2, self.swarm.sync_ms) * self.slow
        return self.scheduler.uniform(50, 3_000)  # the kernel's own time

    # --- messages between brokers

    def send(self, to: int, what: str, *args: object) -> None:
        other = self.world.brokers.get(to)
        if other is not None:
            self.world.network.send(self.id, other, getattr(other, what), *args)

    def ask(self, leader: int, number: int, asked: Question) -> None:
        self.send(leader, "on_fetch", self.id, number, self.epoch, asked)

    def on_fetch(self, follower: int, number: int, broker_epoch: Epoch, asked: Question) -> None:
        replica = self.replicas.get(number)
        if replica is None or not self._knows(BrokerId(follower), broker_epoch):
            return
        answer = replica.answer(BrokerId(follower), broker_epoch, asked)
        self.send(follower, "on_answer", number, asked, answer)
        if replica.role is Role.LEADER and follower not in replica.progress.isr and replica.progress.proposed is None:
            self.propose(replica)

    def _knows(self, broker: BrokerId, epoch: Epoch) -> bool:
        """Whether a broker is registered under this epoch, as far as is known here."""
        if self.image is None:
            return False
        try:
            self.image.check_life(broker, epoch)
        except StaleBrokerEpoch:
            return False
        return True

    def on_answer(self, number: int, asked: Question, answer: Answer) -> None:
        replica = self.replicas.get(number)
        if replica is not None:
            replica.take(asked, answer)

    def on_produce(self, number: int, value: int, producer: int, sequence: int, acks: int, reply: Reply) -> None:
        replica = self.replicas.get(number)
        if replica is not None:
            replica.produce(value, producer, sequence, acks, reply)

    # --- changes of the ISR

    def _tick(self) -> None:
        self.after(self.swarm.tick_ms, self._tick)
        for number in sorted(self.replicas):
            replica = self.replicas[number]
            if replica.role is Role.LEADER:
                self.propose(replica)
        self.controller.look()

    def propose(self, replica: Replica) -> None:
        """Ask for the change of the ISR that is due; ask again for the one that is under way."""
        assert self.image is not None
        progress = replica.progress
        serving = {broker.id: broker.epoch for broker in self.image.brokers.values() if broker.serving}
        proposal = progress.propose(serving, self.now_ms(), self.swarm.lag_ms)
        if proposal is not None:
            self._alter(replica.number, proposal)
        elif progress.proposed is not None and self.scheduler.chance(self.swarm.ask_again):
            self._alter(replica.number, progress.proposed)

    def resign(self, replica: Replica) -> bool:
        """A leader's copy can't be trusted: another shall lead."""
        if replica.role is not Role.LEADER or replica.progress.proposed is not None:
            return False
        proposal = replica.progress.resign()
        if proposal is None:
            return False
        replica.rotten = True
        self._alter(replica.number, proposal)
        return True

    def tell_damage(self, number: int) -> None:
        """A copy that does not lead is damaged: the controller has to know before it is thrown away."""
        self.damaged.add(number)
        if self.image is not None and self.image.brokers[BrokerId(self.id)].serving:
            self._declare(BrokerState.SERVING)

    def _alter(self, number: int, proposal: Proposal) -> None:
        assert self.image is not None
        self.send(self.image.controller.broker, "on_alter", self.id, self.epoch, number, proposal)

    def on_alter(self, leader: int, broker_epoch: Epoch, number: int, proposal: Proposal) -> None:
        self.controller.alter(leader, broker_epoch, number, proposal)

    def on_altered(self, number: int, proposal: Proposal, error: RunnelError | None) -> None:
        """The controller's answer, taken as broker.isr takes it."""
        replica = self.replicas.get(number)
        if replica is None or replica.role is not Role.LEADER or error is None:
            return
        if isinstance(error, IneligibleReplica) or not self.world.rules.withdraw_if_sure:
            replica.withdrawn(proposal)
