"""Receiving from queues, on any broker: leases from the partitions led here and elsewhere, and waiting for messages.

Rule 1: nobody leases for the dead: who has gone before the lease is asked for gets none, and what was leased for one
        who went meanwhile is given back.
Rule 2: who waits has leased nothing. It waits at the queue's bell here; leaders elsewhere are asked to ring it, once.
        A ring that nobody hears is passed on.
Rule 3: a leader that can't be asked costs nothing but its own messages.
Rule 4: leases of a connection (lease_ms 0) end when the connection does, or its broker, wherever they are.
Rule 5: where one consumer is to have a partition, consumers have names: two without one could not be told apart.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, NamedTuple

from msgspec.structs import replace

from runnel.broker import queue_calls
from runnel.broker.calls import Calls
from runnel.broker.deliveries import Deliveries, passes_of
from runnel.broker.fetch import Waits
from runnel.broker.hauls import Haul, Want
from runnel.broker.outlet import OPENING_S, Outlet
from runnel.broker.owners import Owners
from runnel.broker.queue_calls import At, Heard, LeaseThere, Watch
from runnel.broker.sources import Queue, Source, Sources
from runnel.model.calls import Delivered, NamedQueue, Receive, Received
from runnel.model.errors import InvalidRequest, RetriableError, RunnelError, WindowFull, as_value
from runnel.model.ids import BrokerId, Life, PartitionKey, TopicId
from runnel.model.limits import MIB
from runnel.model.queue_config import Consumers
from runnel.queues.receipts import written
from runnel.route.filter import compile

WAIT_MS_MAX: Final = 300_000  # who asks to wait longer is answered empty, and asks again
MESSAGES_MAX: Final = 10_000  # at once
BYTES_MAX: Final = 32 * MIB
CALL_MS: Final = 45_000  # a lease is kept before it is answered, which may take 30 s
LOOK_AGAIN_S: Final = 5.0  # a ring from another broker may get lost with its connection


class _Place(NamedTuple):
    """Sources that are asked together."""

    leader: BrokerId
    sources: Sequence[Source]


class Receiving:
    """The verb. `give_back` ends leases whose messages nobody got."""

    def __init__(
        self, deliveries: Deliveries, sources: Sources, calls: Calls, owners: Owners, life: Callable[[], Life],
        give_back: Callable[[str, Sequence[Delivered]], Awaitable[None]],
    ) -> None:  # fmt: skip
        self._deliveries = deliveries
        self._sources = sources
        self._calls = calls
        self._owners = owners
        self._life = life
        self._give_back = give_back
        self._turn = 0  # where the next receiver begins to look
        self._far: dict[tuple[str, BrokerId], _Far] = {}
        self._ringing: set[asyncio.Task[None]] = set()
        calls.serve_waiting(queue_calls.LEASE, self._lease_for_another)
        calls.serve(queue_calls.WATCH, self._watched)
        calls.serve(queue_calls.RING, self._rung)

    async def receive(self, request: Receive, waits: Waits) -> Received:
        """Lease messages; where there are none, wait for some, but not longer than asked, nor than `waits`."""
        queue = self._sources.queue(request.queue)
        ask = self._ask_of(request, waits)
        end = asyncio.get_running_loop().time() + min(max(request.wait_ms, 0), WAIT_MS_MAX) / 1000
        found, error = await self._look(queue, ask, waits)
        if not found and request.wait_ms > 0:
            found, error = await self._wait(queue.name, ask, waits, end)
        if not found and error is not None:
            raise error
        return Received(found)

    def _ask_of(self, request: Receive, waits: Waits) -> LeaseThere:
        if not 1 <= request.messages_max <= MESSAGES_MAX:
            raise InvalidRequest(
                f"{request.messages_max} messages can't be received at once: ask for 1 to {MESSAGES_MAX}"
            )
        if request.lease_ms is not None and request.lease_ms < 0:
            raise InvalidRequest(f"a lease can't last {request.lease_ms} ms: 0 is for as long as the connection")
        if request.filter:
            compile(request.filter)
        owner, life = request.consumer, self._life()
        if request.lease_ms == 0:
            owner = self._owners.bind(waits, request.queue, request.consumer)
        bytes_max = min(max(request.bytes_max, 1), BYTES_MAX)
        return LeaseThere(
            request.queue, [], request.messages_max, bytes_max, owner, request.lease_ms, request.filter, *life,
            bare=request.bare,
        )  # fmt: skip

    # --- looking

    async def _look(self, queue: Queue, ask: LeaseThere, waits: Waits) -> tuple[list[Delivered], RunnelError | None]:
        """Lease what there is now; an error if nobody could be asked."""
        _check_name(queue, ask.owner)
        found: list[Delivered] = []
        failed: RunnelError | None = None
        answered = False
        for leader, sources in self._places(queue):
            if waits.over or self._deliveries.closed or len(found) >= ask.messages_max:
                break
            if found and leader != self._life().broker and queue.config.lanes == 1:
                break  # what is here is enough: another broker is a journey
            try:
                found += await self._lease(leader, sources, ask, len(found))
                answered = True
            except RetriableError as error:
                failed = as_value(error)
        if found and waits.over:
            await self._give_back(queue.name, found)
            return [], None
        if found:
            self._pass_on(queue.name, far=any(source.leader != self._life().broker for source in queue.sources))
        return found, None if answered else failed

    def _places(self, queue: Queue) -> Iterator[_Place]:
        """Whom to ask, in which order: by lanes, or else the partitions here first, and nobody always last."""
        if queue.config.lanes > 1:
            return (_Place(source.leader, [source]) for source in queue.sources)
        self._turn += 1
        begin = self._turn % max(len(queue.sources), 1)
        places: dict[BrokerId, list[Source]] = {}
        for source in (*queue.sources[begin:], *queue.sources[:begin]):
            places.setdefault(source.leader, []).append(source)
        me = self._life().broker
        return (_Place(*place) for place in sorted(places.items(), key=lambda place: place[0] != me))

    async def _lease(self, leader: BrokerId, sources: Sequence[Source], ask: LeaseThere, had: int) -> list[Delivered]:
        places = [At(source.key.topic_id, source.key.number) for source in sources]
        one = replace(ask, places=places, messages_max=ask.messages_max - had)
        if leader == self._life().broker:
            return await self._lease_here(one)
        self._owners.asked(ask, leader)
        await asyncio.sleep(0)  # a request that was answered at once until now goes on in a task: timeouts need one
        return (await self._calls.ask(leader, queue_calls.LEASE, one, timeout_ms=CALL_MS)).messages

    async def _lease_here(self, ask: LeaseThere) -> list[Delivered]:
        found: list[Delivered] = []
        size = 0
        full: WindowFull | None = None
        for place in ask.places:
            outlet = self._deliveries.find(ask.queue, PartitionKey(TopicId(place.topic_id), place.partition))
            if not await outlet.opened(OPENING_S):
                continue
            passes = passes_of(ask.filter, outlet.partition) if ask.filter else None
            left, room = ask.messages_max - len(found), ask.bytes_max - size
            try:
                haul = await outlet.lease(Want(ask.owner, left, room, ask.lease_ms, passes, filter=ask.filter))
            except WindowFull as error:
                full = as_value(error)  # the others may have something
                continue
            found += _bare(outlet, haul) if ask.bare else _delivered(outlet, haul)
            size += sum(len(taken.record.value or b"") for taken in haul.messages)
            if len(found) >= ask.messages_max or size >= ask.bytes_max:
                break
        if full is not None and not found:
            raise full
        return found

    def _pass_on(self, queue: str, *, far: bool) -> None:
        """Somebody got something: there may be more, for who waits next."""
        if queue in self._deliveries.bells and (
            far or any(outlet.has_more() for outlet in self._deliveries.of(queue).values())
        ):
            self._deliveries.bells.ring(queue)

    # --- waiting

    async def _wait(
        self, name: str, ask: LeaseThere, waits: Waits, end: float
    ) -> tuple[list[Delivered], RunnelError | None]:
        bells, loop = self._deliveries.bells, asyncio.get_running_loop()
        with bells.waiting(name) as sleeper:
            waits.begin(sleeper)
            try:
                while True:
                    bells.again(name, sleeper)
                    queue = self._sources.queue(name)
                    far = await self._watch_elsewhere(queue)
                    found, error = await self._look(queue, ask, waits)
                    left_s = end - loop.time()
                    if found or waits.over or self._deliveries.closed or left_s <= 0:
                        return found, error
                    await sleeper.sleep(min(left_s, LOOK_AGAIN_S) if far or error else left_s)
            finally:
                waits.done(sleeper)

    async def _watch_elsewhere(self, queue: Queue) -> bool:
        """Ask the other leaders to ring here; returns whether there are any."""
        life = self._life()
        leaders = {source.leader for source in queue.sources} - {life.broker}
        if leaders:
            await asyncio.gather(*(self._watch_at(leader, Watch(queue.name, *life)) for leader in leaders))
        return bool(leaders)

    async def _watch_at(self, leader: BrokerId, watch: Watch) -> None:
        try:
            await self._calls.ask(leader, queue_calls.WATCH, watch)
        except RetriableError:
            return  # rule 3: it is looked for again

    # --- for other brokers

    async def _lease_for_another(self, ask: LeaseThere, waits: Waits) -> Received:
        self._sources.must_know(ask.queue)  # or it would begin with settings that are not its own
        self._owners.leased(ask)
        found = await self._lease_here(ask)
        if found and waits.over:
            await self._give_back(ask.queue, found)  # the other broker is gone, or did not wait so long
            return Received([])
        if found:
            self._pass_on(ask.queue, far=False)
        return Received(found)

    async def _watched(self, watch: Watch) -> Heard:
        """Ring there, once, when there may be something."""
        queue, broker = self._sources.must_know(watch.queue), BrokerId(watch.broker)
        bells = self._deliveries.bells
        far = self._far.get((queue.name, broker))
        if far is None:
            far = self._far[queue.name, broker] = _Far(lambda: self._ring_there(queue.name, broker))
            bells.add(queue.name, far)
        for source in queue.sources:
            if source.leader == self._life().broker:
                await self._deliveries.find(queue.name, source.key).opened(OPENING_S)
        return Heard(True)

    def _ring_there(self, queue: str, broker: BrokerId) -> None:
        self._far.pop((queue, broker), None)
        task = asyncio.get_running_loop().create_task(self._ring_at(queue, broker))
        self._ringing.add(task)
        task.add_done_callback(self._ringing.discard)

    async def _ring_at(self, queue: str, broker: BrokerId) -> None:
        try:
            heard = (await self._calls.ask(broker, queue_calls.RING, NamedQueue(queue))).yes
        except RunnelError:
            heard = False
        if not heard:
            self._deliveries.bells.ring(queue)  # rule 2

    async def _rung(self, ring: NamedQueue) -> Heard:
        return Heard(self._deliveries.bells.ring(ring.queue))


class _Far:
    """Somebody at another broker, who waits at a bell here."""

    def __init__(self, ring: Callable[[], None]) -> None:
        self._ring = ring

    def wake(self) -> None:
        self._ring()


def _check_name(queue: Queue, owner: str) -> None:
    """Rule 5."""
    if queue.config.consumers is Consumers.SINGLE and not owner:
        raise InvalidRequest(
            f"queue {queue.name!r} has one consumer at a time (consumers=single), which must have a name: give the"
            " parameter consumer, one for each process that receives"
        )


def _delivered(outlet: Outlet, haul: Haul) -> list[Delivered]:
    key, topic = outlet.partition.key, outlet.partition.topic
    until_ms = haul.until_ms or -1
    return [
        Delivered(
            written(key, record.offset, attempt, haul.generation), topic, key.number, record.offset,
            record.timestamp, record.key, record.value, list(record.headers), attempt, until_ms,
        )
        for record, attempt in haul.messages
    ]  # fmt: skip


def _bare(outlet: Outlet, haul: Haul) -> list[Delivered]:
    """The same without what the messages hold."""
    return [
        replace(each, key=None, value=None, headers=[], value_bytes=len(each.value or b""))
        for each in _delivered(outlet, haul)
    ]
