"""The metadata of the cluster, live: reads the store, performs the controller's decisions, publishes every image.

Rule 1: an image is published after the store has it, never before; each image once, in order.
Rule 2: one change at a time. A change that meets another writer's is thought over again with what that one left.
Rule 3: once a change has begun, it ends, whether or not its caller still waits.
Rule 4: a broker follows what others change from its registration on: it reads what /changes names, learns who is alive
        from /brokers, and claims the controller's place when that is free. The controller admits who is ready.
Rule 5: requests change metadata on the controller alone. What a broker needs for itself, any broker does: the version
        of /changes refuses what was decided on an old image, whoever decided it.
"""

import asyncio
import base64
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Any, Final, Self, TypeAlias, TypeVar
from uuid import UUID

from msgspec.structs import replace

from runnel.cluster import controller, membership, nodes
from runnel.cluster.config_rules import ConfigChange
from runnel.cluster.controller import Decision, Resource
from runnel.cluster.following import follow
from runnel.cluster.image import Broker, BrokerState, Change, Controller, Delta, Image, Topic, diff
from runnel.cluster.loading import catch_up, load, must_get
from runnel.cluster.membership import Identity, Past
from runnel.cluster.nodes import Fence, ProducerIdsNode, Recent
from runnel.cluster.store import Conflict, Op, OutcomeUnknown, Set, Store, StoreUnavailable
from runnel.cluster.topic_rules import Defaults, NewPartitions, NewTopic
from runnel.model.errors import (
    BrokerIdInUse,
    ClientError,
    NotController,
    RequestTimedOut,
    RetriableError,
    RunnelError,
    UnknownTopic,
)
from runnel.model.ids import BrokerId, Epoch, PartitionKey, TopicId
from runnel.model.seams import Rng

TRIES_MAX: Final = 10  # each failed try means that another writer got through

T = TypeVar("T")
R = TypeVar("R")
Subscriber: TypeAlias = Callable[[Change], None]

WATCHED: Final = (nodes.CHANGES_PATH, nodes.BROKERS_PATH, nodes.CONTROLLER_PATH)

logger = logging.getLogger("runnel.metadata")
_UNDECIDED: Final = RunnelError("not decided")


class Metadata:
    """The image, and the verbs that change it. Use `Metadata.open`."""

    def __init__(self, store: Store, rng: Rng, defaults: Defaults, image: Image, recent: tuple[Recent, ...]) -> None:
        self._store = store
        self._rng = rng
        self._defaults = defaults
        self._image = image
        self._recent = recent
        self._registered: Broker | None = None  # as this life began
        self._follower: asyncio.Task[None] | None = None
        self._news: asyncio.Future[None] | None = None  # done with the next image
        self._epoch: Epoch | None = None  # of our own time as controller
        self._turn = asyncio.Lock()
        self._running: set[asyncio.Future[Any]] = set()
        self._subscribers: list[Subscriber] = []

    @classmethod
    async def open(
        cls, store: Store, *, rng: Rng, defaults: Defaults | None = None, features: Mapping[str, int] | None = None
    ) -> Self:
        """Read the cluster's metadata; in an empty store, a new cluster begins."""
        await store.sync()
        await _begin(store, rng, features or {})
        image, recent = await load(store)
        return cls(store, rng, defaults or Defaults(), image, recent)

    @property
    def image(self) -> Image:
        return self._image

    @property
    def defaults(self) -> Defaults:
        return self._defaults

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` after every change, on the loop; it must not raise. Returns what ends the subscription."""
        self._subscribers.append(subscriber)
        return lambda: self._subscribers.remove(subscriber)

    async def session_lost(self) -> None:
        """Return once another may have taken this broker's place: from then on it must not acknowledge anything.

        Raises what made it impossible to follow the metadata, which is a reason to end as well.
        """
        lost = asyncio.ensure_future(self._store.session_lost())
        ends: set[asyncio.Future[None]] = {lost} if self._follower is None else {lost, self._follower}
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if self._follower is not None and self._follower.done():
                self._follower.result()
        except StoreUnavailable as error:
            logger.error("the metadata can't be followed any more: %s", error)
        finally:
            lost.cancel()

    async def close(self) -> None:
        """Wait for the change under way, then end the session."""
        async with self._turn:
            self._subscribers.clear()
            if self._follower is not None:
                self._follower.cancel()  # nothing of it is under way: it needs the turn for that
                await asyncio.gather(self._follower, return_exceptions=True)
            await self._store.close()

    # --- verbs

    async def register(self, broker: Broker, identity: Identity) -> Broker:
        """Announce a broker under a new epoch, and follow from now on. If nobody is controller, it becomes that too.

        It has no role yet: once its logs are open, it has to declare itself `ready`.
        """
        return await self._whole(self._register(broker, identity))

    async def ready(self, damaged: Sequence[PartitionKey] = ()) -> Broker:
        """Declare that the logs are open, but for the copies named, and return once the controller lets us serve."""
        await self._whole(self._declare(BrokerState.READY, damaged))
        while not (mine := self._mine()).serving:
            await self._next_image()
        return mine

    async def leave(self, timeout_s: float) -> None:
        """Declare that this broker will stop; returns once it leads nothing that another could lead, or in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._whole(self._declare(BrokerState.STOPPING))
                while controller.is_needed(self._image, self._mine().id):
                    await self._next_image()
        except (TimeoutError, RetriableError) as error:
            logger.warning("not everything that this broker led was taken over before it stops: %s", error)

    async def create_topics(
        self, specs: Sequence[NewTopic], *, validate_only: bool = False, for_itself: bool = False
    ) -> list[Topic | RunnelError]:
        """For each topic: what it became, or why not.

        Raises if the request as a whole is refused, or if the store fails; then some topics may have been made.
        `for_itself`: no client asked for this change, the broker needs it (rule 5).
        """

        def decide(image: Image, specs: Sequence[NewTopic]) -> Decision[Topic]:
            return controller.create_topics(image, specs, self._new_topic_id, self._defaults, self._rng)

        return await self._topics(specs, decide, validate_only, for_itself)

    async def create_partitions(
        self, specs: Sequence[NewPartitions], *, validate_only: bool = False
    ) -> list[Topic | RunnelError]:
        def decide(image: Image, specs: Sequence[NewPartitions]) -> Decision[Topic]:
            return controller.create_partitions(image, specs, self._rng)

        return await self._topics(specs, decide, validate_only)

    async def delete_topics(self, topics: Sequence[str | TopicId]) -> list[Topic | RunnelError]:
        """For each topic, by name or id: what it was, or why not."""
        return await self._topics(topics, controller.delete_topics, False)

    async def data_removed(self, broker: BrokerId, topic_ids: Sequence[TopicId]) -> None:
        """Say that a broker has no data of these deleted topics any more."""
        await self._whole(self._change(lambda image: controller.data_removed(image, broker, topic_ids), True))

    async def alter_configs(
        self,
        resources: Sequence[tuple[Resource, Sequence[ConfigChange]]],
        *,
        incremental: bool,
        validate_only: bool = False,
    ) -> list[RunnelError | None]:
        """For each resource: None, or why its settings stay as they were."""
        results: list[RunnelError | None] = []
        for resource, changes in resources:
            decide = self._alter(resource, changes, incremental)
            try:
                if validate_only:
                    self._fence()
                    decide(self._image)
                else:
                    await self._whole(self._change(decide))
            except (ClientError, UnknownTopic) as error:
                results.append(error)
            else:
                results.append(None)
        return results

    def _alter(
        self, resource: Resource, changes: Sequence[ConfigChange], incremental: bool
    ) -> Callable[[Image], Delta]:
        base = self._defaults.config
        return lambda image: controller.alter_config(image, resource, changes, incremental=incremental, base=base)

    async def next_producer_ids(self) -> range:
        """A block of producer ids that nobody else gets, not even after a crash."""
        path = nodes.PRODUCER_IDS_PATH
        for _ in range(TRIES_MAX):
            node = await must_get(self._store, path)
            block = controller.producer_id_block(nodes.decode(path, node.value, ProducerIdsNode).next)
            try:
                await self._store.multi([Set(path, nodes.encode(ProducerIdsNode(block.stop)), node.version)])
            except (Conflict, OutcomeUnknown):  # at worst a block is lost, never handed out twice
                await self._store.sync()
            else:
                return block
        raise RequestTimedOut("no producer ids could be had: other brokers took each block first; try again")

    # --- performing

    async def _whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Rule 3: what has begun goes on when the caller is cancelled."""
        task = asyncio.ensure_future(work)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return await asyncio.shield(task)

    async def _topics(
        self,
        requests: Sequence[R],
        decide: Callable[[Image, Sequence[R]], Decision[Topic]],
        validate_only: bool,
        for_itself: bool = False,
    ) -> list[Topic | RunnelError]:
        if validate_only:
            self._fence(for_itself)
            return decide(self._image, requests).results
        return await self._whole(self._change_topics(requests, decide, for_itself))

    async def _change_topics(
        self, requests: Sequence[R], decide: Callable[[Image, Sequence[R]], Decision[Topic]], for_itself: bool
    ) -> list[Topic | RunnelError]:
        """Change many topics in few multis; after a conflict, what is not done yet is decided anew."""
        results: list[Topic | RunnelError] = [_UNDECIDED] * len(requests)
        pending = list(range(len(requests)))
        async with self._turn:
            for _ in range(TRIES_MAX):
                self._fence(for_itself)
                decision = decide(self._image, [requests[index] for index in pending])
                done = await self._commit(decision.delta, for_itself)
                rest = []
                for index, result in zip(pending, decision.results, strict=True):
                    results[index] = result
                    if isinstance(result, Topic) and result.id not in done:
                        rest.append(index)
                pending = rest
                if not pending:
                    return results
        raise RequestTimedOut("the metadata kept changing while topics were changed: try again")

    async def _change(self, decide: Callable[[Image], Delta], for_itself: bool = False) -> None:
        async with self._turn:
            for _ in range(TRIES_MAX):
                self._fence(for_itself)
                delta = decide(self._image)
                if await self._commit(delta, for_itself) >= delta.keys:
                    return
        raise RequestTimedOut("the metadata kept changing while this change was made: try again")

    async def _commit(self, delta: Delta, for_itself: bool) -> set[object]:
        """Write a delta piece by piece; returns the keys that are stored, which after a conflict are not all."""
        done: set[object] = set()
        for piece in nodes.pieces(self._image, delta):
            fence = self._fence(for_itself)
            touched = [op.path for op in piece.ops]
            keys = piece.delta.keys
            try:
                await self._store.multi([*fence.ops(touched), *piece.ops])
            except (Conflict, OutcomeUnknown):
                await self._reload()
                return done | keys if self._image.reflects(piece.delta) else done
            self._publish(self._image.apply(piece.delta), piece.delta, fence.after(touched))
            done |= keys
        return done

    def _fence(self, for_itself: bool = False) -> Fence:
        """What the store checks with every change; unless it is for a broker itself, that we still are controller."""
        if for_itself and self._registered is not None:
            return Fence(self._image.version, self._recent, None)
        if not self._is_controller():
            raise NotController("this broker is not the controller: ask the cluster again who is")
        return Fence(self._image.version, self._recent, self._epoch)

    def _is_controller(self) -> bool:
        if self._epoch is None or self._registered is None:
            return False
        return self._image.controller == Controller(self._registered.id, self._epoch)

    def _publish(self, image: Image, delta: Delta, recent: tuple[Recent, ...]) -> None:
        change = Change(self._image, image, delta)
        self._image, self._recent = image, recent
        for subscriber in tuple(self._subscribers):
            subscriber(change)
        if self._news is not None:
            self._news.set_result(None)
            self._news = None

    async def _reload(self) -> None:
        """After a refusal or a broken connection: see what others, or we ourselves, did."""
        await self._store.sync()
        if not await self._catch_up():  # the refusal had a reason that the image does not show
            image, recent = await load(self._store)
            self._publish_if_new(image, recent)

    async def _catch_up(self) -> bool:
        image, recent = await catch_up(self._store, self._image, self._recent)
        return self._publish_if_new(image, recent)

    def _publish_if_new(self, image: Image, recent: tuple[Recent, ...]) -> bool:
        delta = diff(self._image, image)
        if not delta and image.version == self._image.version:
            return False
        self._publish(image, delta, recent)
        return True

    # --- following

    async def _look(self) -> None:
        """Something changed: learn it, and do what is now to be done."""
        try:
            async with self._turn:
                await self._catch_up()
                self._check_place()
                await self._claim()
            await self._admit()
        except (Conflict, NotController, OutcomeUnknown, RequestTimedOut) as error:
            logger.info("others changed the metadata at the same time (%s): looking again", error)

    def _check_place(self) -> None:
        """Our registration is ours as long as the session lives, unless another broker took the same id."""
        mine = self._registered
        now = None if mine is None else self._image.brokers.get(mine.id)
        if mine is not None and (now is None or now.epoch != mine.epoch):
            raise BrokerIdInUse(f"the registration of broker {mine.id} was removed or replaced: this one has to end")

    async def _admit(self) -> None:
        """As controller: let those who are ready serve."""
        while self._is_controller():
            ready = [broker.id for broker in self._image.brokers.values() if broker.state is BrokerState.READY]
            if not ready:
                return
            await self._change(partial(controller.admit, broker=ready[0]))

    def _mine(self) -> Broker:
        """Our registration as it is now."""
        assert self._registered is not None
        self._check_place()
        return self._image.brokers[self._registered.id]

    async def _declare(self, state: BrokerState, damaged: Sequence[PartitionKey] = ()) -> None:
        """Write how far this broker is; that it is so far already is fine."""

        def decide(image: Image) -> Delta:
            mine = self._mine()
            if mine.state is state:
                return Delta()
            declared = replace(mine, state=state, damaged=tuple(damaged), version=mine.version + 1)
            return Delta(brokers={mine.id: declared})

        await self._change(decide, True)

    async def _next_image(self) -> None:
        """Wait for the next image; raises if there can't be one."""
        assert self._follower is not None
        self._news = self._news or asyncio.get_running_loop().create_future()
        await asyncio.wait([self._news, self._follower], return_when=asyncio.FIRST_COMPLETED)
        if self._follower.done():
            self._follower.result()

    # --- registering

    async def _register(self, broker: Broker, identity: Identity) -> Broker:
        async with self._turn:
            self._registered = await self._announce(broker, identity)
        await self._look()
        self._follower = asyncio.get_running_loop().create_task(follow(self._store, WATCHED, self._look))
        return self._registered

    async def _announce(self, broker: Broker, identity: Identity) -> Broker:
        paths = nodes.broker_epoch_path(broker.id), nodes.directory_path(broker.id), nodes.broker_path(broker.id)
        for _ in range(TRIES_MAX):
            past = Past(*[await self._store.get(path) for path in paths])
            registered, ops = membership.register(broker, identity, past)
            if await self._try(ops, Delta(brokers={broker.id: registered})):
                return registered
        raise RequestTimedOut(f"broker {broker.id} could not be registered: the metadata kept changing; try again")

    async def _claim(self) -> None:
        """Become controller unless somebody is."""
        assert self._registered is not None
        me, session = self._registered.id, self._store.session
        while membership.is_free(present := await self._store.get(nodes.CONTROLLER_PATH), me, session):
            last = await must_get(self._store, nodes.CONTROLLER_EPOCH_PATH)
            claim = Controller(me, Epoch(last.version + 1))
            if await self._try(membership.claim(claim, present), Delta(controller=claim)):
                logger.info("this broker is controller now, in epoch %d", claim.epoch)
        if present is not None and present.session == session:
            self._epoch = self._image.controller.epoch  # ours, also where the store could not say so at once

    async def _try(self, ops: Sequence[Op], delta: Delta) -> bool:
        """Make a change that is not the controller's; False, with a fresh image, if somebody else was faster."""
        fence = Fence(self._image.version, self._recent, None)
        touched = [op.path for op in ops]
        try:
            await self._store.multi([*fence.ops(touched), *ops])
        except (Conflict, OutcomeUnknown):
            await self._reload()
            return False
        self._publish(self._image.apply(delta), delta, fence.after(touched))
        return True

    def _new_topic_id(self) -> TopicId:
        return TopicId(new_uuid(self._rng))


def new_uuid(rng: Rng) -> UUID:
    """A random (version 4) UUID whose text form in Kafka's tools does not begin with '-', like an option."""
    while True:
        number = UUID(bytes=rng.token(16), version=4)
        if not text_of(number).startswith("-"):
            return number


def text_of(number: UUID) -> str:
    """A UUID in the 22 characters that Kafka's tools show."""
    return base64.urlsafe_b64encode(number.bytes).rstrip(b"=").decode()


async def _begin(store: Store, rng: Rng, features: Mapping[str, int]) -> None:
    """Make a new cluster unless there is one."""
    for _ in range(TRIES_MAX):
        if await store.get(nodes.CLUSTER_PATH) is not None:
            return
        try:
            await store.multi(nodes.first_nodes(text_of(new_uuid(rng)), features))
        except (Conflict, OutcomeUnknown):
            await store.sync()  # another broker began the same cluster at the same time
