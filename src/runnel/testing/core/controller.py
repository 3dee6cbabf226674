"""The controller of the model: the real decisions, written to the model's store one change at a time.

Rule 1: whoever sees no controller claims the place. Only the store says who got it.
Rule 2: a change that was refused, or whose fate is unknown, is thought over again with the newest image.
Rule 3: first who leads is put right, then who is ready is admitted: whoever comes back has lost its leaderships.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from runnel.cluster import elections, isr_changes, nodes, reassignment
from runnel.cluster.decision import Decision
from runnel.cluster.image import NO_LEADER, Controller, Delta, Image
from runnel.cluster.isr_changes import IsrChange
from runnel.cluster.reassignment import Move
from runnel.model.errors import NotController, RunnelError
from runnel.model.ids import BrokerId, Epoch, PartitionKey
from runnel.replica.progress import Proposal

if TYPE_CHECKING:
    from runnel.testing.core.broker import ModelBroker

UNSURE_MS = 400.0  # after which a controller looks what became of its write
QUEUE_MAX = 50

Answered: TypeAlias = Callable[[RunnelError | None], None]


class Request(NamedTuple):
    """Something that a controller was asked for."""

    decide: Callable[[Image], Decision[Any]]
    answered: Answered


class ModelController:
    """A broker's wish, and sometimes its time, to be controller."""

    __slots__ = ("_broker", "_busy", "_epoch", "_requests", "_settled", "_thought", "_turn")

    def __init__(self, broker: "ModelBroker") -> None:
        self._broker = broker
        self._epoch: Epoch | None = None
        self._requests: list[Request] = []
        self._busy = False
        self._turn = 0
        self._settled: Image | None = None  # everybody who can lead in this one, leads
        self._thought: Image | None = None  # nothing is left to do with this one

    @property
    def active(self) -> bool:
        image = self._broker.image
        return image is not None and image.controller == Controller(BrokerId(self._broker.id), self._epoch or Epoch(-1))

    def look(self) -> None:
        """Do what the image asks for."""
        image = self._broker.image
        if image is None or self._busy:
            return
        if image.controller.broker == NO_LEADER:
            self._busy = True
            self._broker.after(self._broker.world.store.delay_ms(), self._claim)
        elif self.active and (self._requests or image is not self._thought):
            self._think(image)

    def _claim(self) -> None:
        self._busy = False
        broker, store = self._broker, self._broker.world.store
        if broker.id in store.cut:
            return
        epoch = store.claim(broker)
        if epoch is not None:
            self._epoch = epoch
            broker.world.controls(broker.id, epoch)
        broker.see(len(store.images) - 1)

    # --- what is asked

    def alter(self, leader: int, broker_epoch: Epoch, number: int, proposal: Proposal) -> None:
        """AlterPartition."""
        world = self._broker.world
        key = PartitionKey(world.topic_ids[number], 0)
        change = IsrChange(key, proposal.leader_epoch, proposal.partition_epoch, proposal.isr)

        def decide(image: Image) -> Decision[Any]:
            return isr_changes.alter_partitions(image, BrokerId(leader), broker_epoch, [change], self._broker.base)

        self.request(decide, partial(self._broker.send, leader, "on_altered", number, proposal))

    def elect(self, name: str, *, unclean: bool) -> None:
        """ElectLeaders: the preferred one, or any."""
        self.request(lambda image: elections.elect(image, [(name, 0)], self._broker.base, unclean=unclean), _nobody)

    def reassign(self, name: str, target: tuple[BrokerId, ...] | None) -> None:
        """Move a partition; None: leave it where it was."""
        self.request(lambda image: reassignment.reassign(image, [Move(name, 0, target)], self._broker.base), _nobody)

    def request(self, decide: Callable[[Image], Decision[Any]], answered: Answered) -> None:
        if not self.active:
            answered(NotController("not here"))
        elif len(self._requests) < QUEUE_MAX:
            self._requests.append(Request(decide, answered))
            self.look()

    # --- thinking and writing

    def _think(self, image: Image) -> None:
        if image is not self._settled:
            decision = elections.settle(image, self._broker.base)
            if decision.delta:
                return self._write(image, decision.delta, None)
            self._settled = image
        if self._requests:
            return self._answer(image, self._requests.pop(0))
        ready = elections.waiting(image)
        if ready is not None:
            return self._write(image, elections.admit(image, ready, self._broker.base).delta, None)
        self._thought = image
        return None

    def _answer(self, image: Image, request: Request) -> None:
        try:
            decision = request.decide(image)
        except RunnelError as error:
            request.answered(error)
            return self.look()
        refusal = next((result for result in decision.results if isinstance(result, RunnelError)), None)
        if refusal is None and decision.delta:
            return self._write(image, decision.delta, request)
        request.answered(refusal)
        return self.look()

    def _write(self, image: Image, delta: Delta, request: Request | None) -> None:
        """Write it piece by piece, as the real one does."""
        self._busy = True
        pieces = [piece.delta for piece in nodes.pieces(image, delta)]
        self._write_next(image.version, pieces, request)

    def _write_next(self, version: int, pieces: list[Delta], request: Request | None) -> None:
        self._turn += 1
        broker, store = self._broker, self._broker.world.store
        assert self._epoch is not None
        args = broker.life, self._turn, version, self._epoch, pieces, request
        broker.scheduler.after(store.write_delay_ms(), self._at_store, *args)
        broker.after(UNSURE_MS, self._written, self._turn, False, -1, [], request)

    def _at_store(
        self, life: int, turn: int, version: int, epoch: Epoch, pieces: list[Delta], request: Request | None
    ) -> None:
        """The write arrives, whether or not its sender still lives."""
        broker, store = self._broker, self._broker.world.store
        if broker.id in store.cut:
            return
        done = store.write(version, epoch, pieces[0])
        index = len(store.images) - 1
        args = turn, done, index, pieces[1:], request
        broker.scheduler.after(store.delay_ms(), broker.deliver, life, self._heard, args)

    def _heard(self, turn: int, done: bool, index: int, rest: list[Delta], request: Request | None) -> None:
        if self._broker.id not in self._broker.world.store.cut:
            self._written(turn, done, index, rest, request)

    def _written(self, turn: int, done: bool, index: int, rest: list[Delta], request: Request | None) -> None:
        if turn != self._turn:
            return None
        self._turn += 1
        broker, store = self._broker, self._broker.world.store
        if done:
            broker.see(index)
        elif broker.id not in store.cut:
            broker.see(len(store.images) - 1)
        if not self.active:
            return self._give_up(request)
        if done and rest and broker.image is not None:
            return self._write_next(broker.image.version, rest, request)
        self._busy = False
        if request is not None:
            request.answered(None) if done else self._requests.insert(0, request)
        return self.look()

    def _give_up(self, request: Request | None) -> None:
        """Another is controller."""
        self._busy = False
        for each in [*([] if request is None else [request]), *self._requests]:
            each.answered(NotController("not any more"))
        self._requests.clear()
        self.look()


def _nobody(error: RunnelError | None) -> None:
    """Operators look at the image."""
