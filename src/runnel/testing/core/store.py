"""The metadata store as the model has it: one image after the other, sessions, and writers who may be late.

Rule 1: a write is done if the image it was decided on is the present one, and, for a controller, if its epoch is; and
        if every node that it changes is the one that was read.
Rule 2: brokers see images late, each in its order; they may miss some, never go back.
Rule 3: a session that is not heard of for its time ends, and the registration and the controller's place with it.
Rule 4: a write may come long after it was sent, and after those that were sent later; the end of its sender's session
        does not stop it. ZooKeeper would be kinder: safety is not to rest on that.
"""

from collections.abc import Callable
from dataclasses import replace as replaced

from runnel.cluster import membership, nodes
from runnel.cluster.image import NO_LEADER, Broker, BrokerState, Controller, Delta, Image, Partition
from runnel.cluster.membership import Identity, Past
from runnel.cluster.nodes import DirectoryNode
from runnel.cluster.store import Node
from runnel.model.ids import BrokerId, Epoch, PartitionKey
from runnel.testing.core.network import Process
from runnel.testing.core.rules import Rules
from runnel.testing.core.scheduler import Scheduler


class ModelStore:
    """What is stored, and who is connected."""

    def __init__(
        self, scheduler: Scheduler, image: Image, rules: Rules, *, session_ms: float, late_ms: float, late_writes: float
    ) -> None:
        self._scheduler = scheduler
        self._rules = rules
        self._session_ms = session_ms
        self._late_ms = late_ms
        self._late_writes = late_writes  # how many of a controller's writes
        self.images = [image]
        self._topic_ids = list(image.topics)
        self.cut: set[int] = set()
        self.sessions: dict[int, int] = {}  # broker -> the life whose session it is
        self._silences: dict[int, int] = {}  # broker -> which silence this is
        self._epochs: dict[int, int] = {}
        self._directories: dict[int, tuple[str, int]] = {}
        self.changed: Callable[[Image, Image], None] = lambda before, after: None

    @property
    def image(self) -> Image:
        return self.images[-1]

    def partition(self, number: int) -> Partition:
        return self.image.topics[self._topic_ids[number]].partitions[0]

    def delay_ms(self) -> float:
        return self._scheduler.uniform(0.1, 3)

    def write_delay_ms(self) -> float:
        if self._late_writes and self._scheduler.chance(self._late_writes):
            return self._scheduler.uniform(1, 2 * self._session_ms)
        return self.delay_ms()

    def heal(self) -> None:
        """From now on writes come in time."""
        self._late_writes = 0.0

    def lateness_ms(self) -> float:
        return self._scheduler.uniform(0.1, self._late_ms)

    def reaches(self, process: Process) -> bool:
        return process.up and not process.paused and process.id not in self.cut

    # --- sessions

    def silent(self, process: Process) -> None:
        """From now on nothing is heard of this broker, until `heard`."""
        silence = self._silences[process.id] = self._silences.get(process.id, 0) + 1
        wait = self._session_ms * self._scheduler.uniform(1.0, 1.3)
        self._scheduler.after(wait, self._expire, process, silence)

    def heard(self, process: Process) -> None:
        if self.reaches(process):
            self._silences[process.id] = self._silences.get(process.id, 0) + 1

    def _expire(self, process: Process, silence: int) -> None:
        if self._silences.get(process.id) == silence:
            self.end_session(process.id)

    def has_session(self, process: Process) -> bool:
        return self.sessions.get(process.id) == process.life

    def end_session(self, broker: int) -> None:
        """Its ephemeral nodes vanish. The version stays: only writes make versions."""
        if self.sessions.pop(broker, None) is None:
            return
        image = self.image
        brokers = {key: value for key, value in image.brokers.items() if key != broker}
        controller = image.controller
        if controller.broker == broker:
            controller = Controller(NO_LEADER, controller.epoch)
        self._put(replaced(image, brokers=brokers, controller=controller))

    # --- writes

    def register(self, process: Process, identity: Identity) -> Broker:
        """A new life, under the next epoch; an earlier registration is replaced."""
        number = BrokerId(process.id)
        self._silences[number] = self._silences.get(number, 0) + 1
        last = self._epochs.get(number)
        folder = self._directories.get(number)
        past = Past(
            None if last is None else Node(b"", last),
            None if folder is None else Node(nodes.encode(DirectoryNode(folder[0])), folder[1]),
            None,
        )
        broker, _ = membership.register(Broker(number, {}), identity, past)
        self._epochs[number] = broker.epoch
        if self.image.controller.broker == number:
            self.end_session(number)
        self.sessions[number] = process.life
        self._apply(Delta(brokers={number: broker}))
        return broker

    def declare(self, process: Process, epoch: int, state: BrokerState, damaged: tuple[PartitionKey, ...]) -> bool:
        """A broker writes about itself."""
        mine = self.image.brokers.get(BrokerId(process.id))
        if mine is None or mine.epoch != epoch or not self.has_session(process):
            return False
        declared = membership.declare(mine, state, damaged)
        if declared is not mine:
            self._apply(Delta(brokers={mine.id: declared}))
        return True

    def claim(self, process: Process) -> Epoch | None:
        """Become controller, if nobody is."""
        if not self.has_session(process) or self.image.controller.broker != NO_LEADER:
            return None
        epoch = Epoch(self.image.controller.epoch + 1)
        self._apply(Delta(controller=Controller(BrokerId(process.id), epoch)))
        return epoch

    def write(self, version: int, epoch: int, delta: Delta) -> bool:
        """A controller's change."""
        if self._rules.image_version and version != self.image.version:
            return False
        if self._rules.controller_epoch and epoch != self.image.controller.epoch:
            return False
        if not self._is_read(delta):
            return False
        for admission in delta.admitted.values():
            if admission is not None:
                self._directories[admission.broker] = admission.directory, admission.version
        self._apply(delta)
        return True

    def _is_read(self, delta: Delta) -> bool:
        """Whether these are the next versions of the nodes that are there."""
        topics, brokers = self.image.topics, self.image.brokers
        return all(broker is None or _follows(brokers.get(key), broker) for key, broker in delta.brokers.items()) and (
            not self._rules.node_version
            or all(topic is None or topics[key].version + 1 == topic.version for key, topic in delta.topics.items())
        )

    def _apply(self, delta: Delta) -> None:
        self._put(self.image.apply(delta))

    def _put(self, image: Image) -> None:
        before = self.image
        self.images.append(image)
        self.changed(before, image)


def _follows(present: Broker | None, broker: Broker) -> bool:
    return present is not None and (present.epoch, present.version + 1) == (broker.epoch, broker.version)
