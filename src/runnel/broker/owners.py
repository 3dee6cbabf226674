"""Owners of leases that last as long as a connection: whose they are, and what ends with them.

Rule 1: an owner is named after its broker's life and its connection, so that nobody else ever has its name.
Rule 2: when its connection ends, its broker tells every broker where it has leased; when a broker's life ends, the
        others find out by the image. A leader that changes forgets these leases by itself.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping

from runnel.broker import queue_calls
from runnel.broker.calls import Calls
from runnel.broker.deliveries import Deliveries
from runnel.broker.fetch import Waits
from runnel.broker.queue_calls import LeaseThere, OwnerEnded
from runnel.cluster.image import Broker, Image
from runnel.model.calls import Nothing
from runnel.model.errors import RunnelError
from runnel.model.ids import BrokerId, Epoch, Life


class _Bound:
    """What one connection has leased of one queue. Told of its end by the connection's `Waits`."""

    def __init__(self, queue: str, owner: str, on_end: Callable[["_Bound"], None]) -> None:
        self.queue = queue
        self.owner = owner
        self.brokers: set[BrokerId] = set()
        self._on_end = on_end

    def end(self) -> None:
        self._on_end(self)


class Owners:
    """Those of this broker's connections, and those of other brokers' that have leased here."""

    def __init__(self, deliveries: Deliveries, calls: Calls, life: Callable[[], Life]) -> None:
        self._deliveries = deliveries
        self._calls = calls
        self._life = life
        self._made = 0
        self._bound: dict[str, _Bound] = {}
        self._names: dict[tuple[Waits, str, str], str] = {}
        self._strangers: defaultdict[Life, set[tuple[str, str]]] = defaultdict(set)  # queue and owner
        self._telling: set[asyncio.Task[None]] = set()
        self._alive: Mapping[BrokerId, Broker] = {}
        calls.serve(queue_calls.OWNER_ENDED, self._ended_there)

    def bind(self, waits: Waits, queue: str, consumer: str) -> str:
        """The owner of what a connection leases of a queue from now on."""
        known = self._names.get((waits, queue, consumer))
        if known is not None:
            return known
        self._made += 1
        life = self._life()
        owner = f"{life.broker}.{life.epoch}.{self._made}/{consumer}"
        bound = _Bound(queue, owner, lambda bound: self._end(bound, (waits, queue, consumer)))
        self._bound[owner] = bound
        self._names[waits, queue, consumer] = owner
        waits.begin(bound)
        return owner

    def asked(self, ask: LeaseThere, leader: BrokerId) -> None:
        """An owner is about to lease at another broker."""
        if ask.lease_ms == 0 and ask.owner in self._bound:
            self._bound[ask.owner].brokers.add(leader)

    def _end(self, bound: _Bound, name: tuple[Waits, str, str]) -> None:
        self._bound.pop(bound.owner, None)
        self._names.pop(name, None)
        self.gone(bound.queue, bound.owner, bound.brokers)

    def gone(self, queue: str, owner: str, brokers: Iterable[BrokerId]) -> None:
        """Whoever had this name receives no more: tell those where it has leased."""
        self._release(queue, owner)
        for broker in brokers:
            task = asyncio.get_running_loop().create_task(self._tell(broker, OwnerEnded(queue, owner)))
            self._telling.add(task)
            task.add_done_callback(self._telling.discard)

    async def _tell(self, broker: BrokerId, ended: OwnerEnded) -> None:
        """Tell it until it hears, or is gone: its leases end with its leadership, too."""
        while True:
            try:
                await self._calls.ask(broker, queue_calls.OWNER_ENDED, ended)
                return
            except RunnelError:
                if broker not in self._alive:
                    return
            await asyncio.sleep(1.0)

    # --- of others

    def leased(self, ask: LeaseThere) -> None:
        """An owner of another broker is about to lease here."""
        if ask.lease_ms == 0:
            self._strangers[Life(BrokerId(ask.broker), Epoch(ask.epoch))].add((ask.queue, ask.owner))

    def follow(self, image: Image) -> None:
        """Whoever's life is over holds nothing any more."""
        self._alive = image.brokers
        for life in list(self._strangers):
            broker = image.brokers.get(life.broker)
            if broker is None or broker.epoch != life.epoch:
                for queue, owner in self._strangers.pop(life):
                    self._release(queue, owner)

    async def _ended_there(self, ended: OwnerEnded) -> Nothing:
        for owners in self._strangers.values():
            owners.discard((ended.queue, ended.owner))
        self._release(ended.queue, ended.owner)
        return Nothing()

    def _release(self, queue: str, owner: str) -> None:
        for outlet in self._deliveries.of(queue).values():
            outlet.gone(owner)
