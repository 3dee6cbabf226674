"""The metadata as one broker knows it, and the one way to change it.

Rule 1: an image is published after the store has it, never before; each image once, in order.
Rule 2: one change at a time. A change that meets another writer's is thought over again with what that one left.
Rule 3: once a change has begun, it ends, whether or not its caller still waits.
Rule 4: requests change metadata on the controller alone, and the store checks that it still is: its epoch is part of
        every write. What a broker says about itself, that broker writes: the version of /changes refuses what was
        decided on an old image, whoever decided it.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, TypeAlias, TypeVar

from runnel.cluster import nodes
from runnel.cluster.decision import Decision
from runnel.cluster.image import Broker, Change, Controller, Delta, Image, diff
from runnel.cluster.loading import catch_up, load
from runnel.cluster.nodes import Fence, Recent
from runnel.cluster.store import Conflict, Op, OutcomeUnknown, Store
from runnel.model.errors import BrokerIdInUse, NotController, PlaceLost, RequestTimedOut, RunnelError
from runnel.model.ids import Epoch

TRIES_MAX: Final = 10  # each failed try means that another writer got through

T = TypeVar("T")
R = TypeVar("R")
Subscriber: TypeAlias = Callable[[Change], None]

logger = logging.getLogger("runnel.metadata")
_UNDECIDED: Final = RunnelError("not decided")


class Ledger:
    """The image, who follows it, and the line of those who change it."""

    def __init__(self, store: Store, image: Image, recent: tuple[Recent, ...]) -> None:
        self.store = store
        self.image = image
        self.recent = recent
        self.registered: Broker | None = None  # as this life began
        self.controller_epoch: Epoch | None = None  # of our own time as controller
        self.unclean_elections = 0  # that were decided here
        self.turn = asyncio.Lock()
        self._running: set[asyncio.Future[Any]] = set()
        self._subscribers: list[Subscriber] = []
        self._news: asyncio.Future[None] | None = None  # done with the next image

    # --- following

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` after every change, on the loop; it must not raise. Returns what ends the subscription."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    def forget_subscribers(self) -> None:
        self._subscribers.clear()

    @property
    def mine(self) -> Broker:
        """Our registration as it is now."""
        self.check_place()
        assert self.registered is not None
        return self.image.brokers[self.registered.id]

    def check_place(self) -> None:
        """Our registration is ours as long as the session lives, unless another broker took the same id."""
        mine = self.registered
        if mine is None:
            return
        now = self.image.brokers.get(mine.id)
        if now is None:
            raise PlaceLost(f"the registration of broker {mine.id} is gone: it has to begin a new life")
        if now.epoch != mine.epoch:
            raise BrokerIdInUse(f"another broker registered as broker {mine.id}: this one has to end")

    async def next_image(self, end: "asyncio.Task[None]") -> None:
        """Wait for the next image; raises what ended those who read it."""
        self._news = self._news or asyncio.get_running_loop().create_future()
        await asyncio.wait([self._news, end], return_when=asyncio.FIRST_COMPLETED)
        if end.done():
            end.result()

    async def catch_up(self) -> bool:
        """Read what others changed; returns whether there was anything."""
        found = False
        async for image, recent in catch_up(self.store, self.image, self.recent):
            found = self._publish_if_new(image, recent) or found
        return found

    async def _reload(self) -> None:
        """After a refusal or a broken connection: see what others, or we ourselves, did."""
        await self.store.sync()
        if not await self.catch_up():  # the refusal had a reason that the image does not show
            self._publish_if_new(*await load(self.store))

    def _publish_if_new(self, image: Image, recent: tuple[Recent, ...]) -> bool:
        delta = diff(self.image, image)
        if not delta and image.version == self.image.version:
            return False
        self._publish(image, delta, recent)
        return True

    def _publish(self, image: Image, delta: Delta, recent: tuple[Recent, ...]) -> None:
        change = Change(self.image, image, delta)
        self.image, self.recent = image, recent
        for subscriber in tuple(self._subscribers):
            subscriber(change)
        if self._news is not None:
            self._news.set_result(None)
            self._news = None

    # --- changing

    async def whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Rule 3: what has begun goes on when the caller is cancelled."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def change(self, decide: Callable[[Image], Decision[Any]], *, for_itself: bool = False) -> bool:
        """Make so what is decided; returns whether that was anything."""
        async with self.turn:
            for _ in range(TRIES_MAX):
                self.fence(for_itself)
                decision = decide(self.image)
                if await self._commit(decision, for_itself) >= decision.delta.keys:
                    return bool(decision.delta)
        raise RequestTimedOut("the metadata kept changing while this change was made: try again")

    async def change_each(
        self, requests: Sequence[R], decide: Callable[[Image, Sequence[R]], Decision[T]]
    ) -> list[T | RunnelError]:
        """Do many requests in few multis; after a conflict, what is not done yet is decided anew."""
        results: list[T | RunnelError] = [_UNDECIDED] * len(requests)
        pending = list(range(len(requests)))
        async with self.turn:
            for _ in range(TRIES_MAX):
                self.fence()
                decision = decide(self.image, [requests[index] for index in pending])
                done = await self._commit(decision, for_itself=False)
                undone = decision.delta.keys - done
                for index, result in zip(pending, decision.results, strict=True):
                    results[index] = result
                pending = [index for index, key in zip(pending, decision.keys, strict=True) if key in undone]
                if not pending:
                    return results
        raise RequestTimedOut("the metadata kept changing while this request was done: try again")

    async def _commit(self, decision: Decision[Any], for_itself: bool) -> set[object]:
        """Write a decision piece by piece; returns the keys that are stored, which after a conflict are not all."""
        done: set[object] = set()
        for piece in nodes.pieces(self.image, decision.delta):
            stored, fits = await self._write(piece.delta, piece.ops, self.fence(for_itself))
            if stored:
                done |= piece.delta.keys
                self._count_unclean(decision, piece.delta)
            if not fits:
                break
        return done

    async def attempt(self, ops: Sequence[Op], delta: Delta) -> bool:
        """Make a change that is not the controller's; False, with a fresh image, if somebody else was faster."""
        _, fits = await self._write(delta, ops, Fence(self.image.version, self.recent, None))
        return fits

    async def _write(self, delta: Delta, ops: Sequence[Op], fence: Fence) -> tuple[bool, bool]:
        """One multi: whether it is stored, and whether the image that it was decided on still was the newest."""
        touched = [op.path for op in ops]
        try:
            await self.store.multi([*fence.ops(touched), *ops])
        except (Conflict, OutcomeUnknown):
            await self._reload()
            return self.image.reflects(delta), False
        self._publish(self.image.apply(delta), delta, fence.after(touched))
        return True, True

    def _count_unclean(self, decision: Decision[Any], stored: Delta) -> None:
        for election in decision.unclean:
            if election.key.topic_id in stored.topics:
                self.unclean_elections += 1
                logger.warning(
                    "broker %d leads %s-%d by an unclean election: messages that were acknowledged may be lost",
                    election.leader, election.topic, election.key.number,
                )  # fmt: skip

    def fence(self, for_itself: bool = False) -> Fence:
        """What the store checks with every change; unless it is for a broker itself, that we still are controller."""
        if for_itself and self.registered is not None:
            return Fence(self.image.version, self.recent, None)
        if not self.is_controller:
            raise NotController("this broker is not the controller: ask the cluster again who is")
        return Fence(self.image.version, self.recent, self.controller_epoch)

    @property
    def is_controller(self) -> bool:
        if self.controller_epoch is None or self.registered is None:
            return False
        return self.image.controller == Controller(self.registered.id, self.controller_epoch)
