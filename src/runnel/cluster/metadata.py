"""The metadata of the cluster, live: the image that a broker follows, and the verbs that change it.

`ledger` says how a change is made, `duties` what a broker does for its place and as controller; what is decided is
pure: `controller` (topics and settings), `elections` (who leads), `isr_changes` (who is in sync), `reassignment` (where
replicas are).
"""

import asyncio
import base64
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Self, TypeVar
from uuid import UUID

from runnel.cluster import controller, elections, nodes
from runnel.cluster.config_rules import ConfigChange, sorted_out
from runnel.cluster.controller import Resource
from runnel.cluster.decision import Decision
from runnel.cluster.duties import Duties
from runnel.cluster.image import Broker, BrokerState, Image, Partition, Topic
from runnel.cluster.isr_changes import IsrChange, alter_partitions
from runnel.cluster.ledger import TRIES_MAX, Ledger, Subscriber
from runnel.cluster.loading import load, must_get
from runnel.cluster.membership import DAMAGED_MAX, Identity
from runnel.cluster.nodes import ProducerIdsNode, Recent
from runnel.cluster.reassignment import Move, reassign
from runnel.cluster.store import Conflict, OutcomeUnknown, Set, Store
from runnel.cluster.topic_rules import Defaults, NewPartitions, NewTopic
from runnel.model.errors import ClientError, RequestTimedOut, RetriableError, RunnelError, UnknownTopic, as_value
from runnel.model.ids import BrokerId, Epoch, PartitionKey, TopicId
from runnel.model.seams import Rng

R = TypeVar("R")

logger = logging.getLogger("runnel.metadata")


class Metadata:
    """The image, and the verbs that change it. Use `Metadata.open`."""

    def __init__(self, store: Store, rng: Rng, defaults: Defaults, image: Image, recent: tuple[Recent, ...]) -> None:
        self._store = store
        self._rng = rng
        self._defaults = defaults
        self._ledger = Ledger(store, image, recent)
        self._duties = Duties(self._ledger, defaults.config)
        self.admitted = False  # whether this life has been let in: if not, the next one has to say the same again

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
        return self._ledger.image

    @property
    def epoch(self) -> Epoch:
        """Of this life of the broker."""
        registered = self._ledger.registered
        assert registered is not None, "register first"
        return registered.epoch

    @property
    def defaults(self) -> Defaults:
        return self._defaults

    @property
    def unclean_elections(self) -> int:
        """How often this broker, as controller, let somebody lead who may lack what was acknowledged."""
        return self._ledger.unclean_elections

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` after every change, on the loop; it must not raise. Returns what ends the subscription."""
        return self._ledger.subscribe(subscriber)

    async def session_lost(self) -> None:
        """Return once another may have taken this broker's place: from then on it must not acknowledge anything.

        Raises what made it impossible to follow the metadata, which is a reason to end as well.
        """
        await self._duties.session_lost()

    async def close(self) -> None:
        """Wait for the change under way, then end the session."""
        async with self._ledger.turn:
            self._ledger.forget_subscribers()
            await self._duties.stop()  # nothing of it is under way: it needs the turn for that
            await self._store.close()

    # --- a broker's life

    async def register(self, broker: Broker, identity: Identity) -> Broker:
        """Announce a broker under a new epoch, and follow from now on. If nobody is controller, it becomes that too.

        It has no role yet: once its logs are open, it has to declare itself `ready`.
        """
        return await self._ledger.whole(self._duties.register(broker, identity))

    async def ready(self, damaged: Sequence[PartitionKey] = ()) -> Broker:
        """Declare that the logs are open, but for the copies named, and return once the controller lets us serve."""
        await self._ledger.whole(self._duties.declare(BrokerState.READY, damaged))
        while not (mine := self._ledger.mine).serving:
            await self._ledger.next_image(self._duties.follower)
        self.admitted = True
        return mine

    async def report_damaged(self, damaged: Sequence[PartitionKey]) -> None:
        """Say that copies here are lost, and return once the controller has heard it: they are out of sync then."""
        for start in range(0, len(damaged), DAMAGED_MAX):
            await self._ledger.whole(self._duties.declare(None, damaged[start : start + DAMAGED_MAX]))
            while self._ledger.mine.damaged:
                await self._ledger.next_image(self._duties.follower)

    async def leave(self, timeout_s: float) -> None:
        """Declare that this broker will stop; returns once the others do without it wherever they can, or in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._ledger.whole(self._duties.declare(BrokerState.STOPPING))
                while elections.is_needed(self.image, self._ledger.mine.id):
                    await self._ledger.next_image(self._duties.follower)
        except (TimeoutError, RetriableError) as error:
            logger.warning("not everything that this broker led was taken over before it stops: %s", error)

    async def newest_topic(self, name: str) -> Topic | None:
        """A topic as the store has it: nothing that was changed before this call is missing. None if it is gone."""
        await self._store.sync()
        if (known := self.image.topic(name)) is None:
            return None
        path = nodes.topic_path(known.id)
        node = await self._store.get(path)
        if node is None:
            return None
        return known if node.version == known.version else nodes.read_topic(path, node)

    # --- topics and settings

    async def create_topics(
        self, specs: Sequence[NewTopic], *, validate_only: bool = False
    ) -> list[Topic | RunnelError]:
        """For each topic: what it became, or why not.

        Raises if the request as a whole is refused, or if the store fails; then some topics may have been made.
        """

        def decide(image: Image, specs: Sequence[NewTopic]) -> Decision[Topic]:
            return controller.create_topics(image, specs, self._new_topic_id, self._defaults, self._rng)

        return await self._topics(specs, decide, validate_only)

    async def create_partitions(
        self, specs: Sequence[NewPartitions], *, validate_only: bool = False
    ) -> list[Topic | RunnelError]:
        def decide(image: Image, specs: Sequence[NewPartitions]) -> Decision[Topic]:
            return controller.create_partitions(image, specs, self._rng)

        return await self._topics(specs, decide, validate_only)

    async def delete_topics(self, topics: Sequence[str | TopicId]) -> list[Topic | RunnelError]:
        """For each topic, by name or id: what it was, or why not."""
        return await self._topics(topics, controller.delete_topics, False)

    async def _topics(
        self, requests: Sequence[R], decide: Callable[[Image, Sequence[R]], Decision[Topic]], validate_only: bool
    ) -> list[Topic | RunnelError]:
        if validate_only:
            self._ledger.fence()
            return list(decide(self.image, requests).results)
        return await self._ledger.whole(self._ledger.change_each(requests, decide))

    async def data_removed(self, broker: BrokerId, topic_ids: Sequence[TopicId]) -> None:
        """Say that a broker has no data of these deleted topics any more."""

        def decide(image: Image) -> Decision[Topic]:
            return Decision(controller.data_removed(image, broker, topic_ids))

        await self._ledger.whole(self._ledger.change(decide, for_itself=True))

    async def alter_configs(
        self,
        resources: Sequence[tuple[Resource, Sequence[ConfigChange]]],
        *,
        incremental: bool,
        validate_only: bool = False,
    ) -> list[RunnelError | None]:
        """For each resource: None, or why its settings stay as they were.

        Of what changes some settings of a broker, those that there are not are refused alone, and the others are set.
        """
        results: list[RunnelError | None] = []
        for resource, changes in resources:
            sound, refusal = sorted_out(resource, changes) if incremental else (changes, None)
            decide = self._alter(resource, sound, incremental)
            try:
                if validate_only:
                    self._ledger.fence()
                    decide(self.image)
                else:
                    await self._ledger.whole(self._ledger.change(decide))
            except (ClientError, UnknownTopic) as error:
                results.append(as_value(error))
            else:
                results.append(refusal)
        return results

    def _alter(
        self, resource: Resource, changes: Sequence[ConfigChange], incremental: bool
    ) -> Callable[[Image], Decision[Topic]]:
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

    def _new_topic_id(self) -> TopicId:
        return TopicId(new_uuid(self._rng))

    async def unregister(self, broker: BrokerId) -> None:
        """Forget a broker that is gone for good; refused while it is alive or holds replicas."""

        def decide(image: Image) -> Decision[Topic]:
            return Decision(controller.unregister(image, broker))

        await self._ledger.whole(self._ledger.change(decide))

    # --- replicas

    async def alter_partitions(
        self, broker: BrokerId, broker_epoch: Epoch, changes: Sequence[IsrChange]
    ) -> list[Partition | RunnelError]:
        """A leader says who is in sync. For each partition: what it is now, or why not; the image says the rest."""

        def decide(image: Image, some: Sequence[IsrChange]) -> Decision[Partition]:
            return alter_partitions(image, broker, broker_epoch, some, self._defaults.config)

        return await self._ledger.whole(self._ledger.change_each(changes, decide))

    async def reassign(self, moves: Sequence[Move], *, factor_may_change: bool = True) -> list[Partition | RunnelError]:
        """Move replicas to other brokers, or take that back. For each partition: what it is now, or why not."""

        def decide(image: Image, some: Sequence[Move]) -> Decision[Partition]:
            return reassign(image, some, self._defaults.config, factor_may_change=factor_may_change)

        return await self._ledger.whole(self._ledger.change_each(moves, decide))

    async def elect_leaders(
        self, partitions: Sequence[tuple[str, int]] | None, *, unclean: bool = False
    ) -> list[Partition | RunnelError]:
        """Give partitions (None: all that need it) their preferred leader, or, unclean, any that serves."""
        base = self._defaults.config
        if partitions is None:
            await self._ledger.whole(self._ledger.change(partial(elections.elect_all, base=base, unclean=unclean)))
            return []

        def decide(image: Image, some: Sequence[tuple[str, int]]) -> Decision[Partition]:
            return elections.elect(image, some, base, unclean=unclean)

        return await self._ledger.whole(self._ledger.change_each(partitions, decide))

    async def rebalance_leaders(self) -> None:
        """As controller, and from time to time: give every partition its preferred leader where that can be."""
        if self._ledger.is_controller:
            try:
                await self.elect_leaders(None)
            except RetriableError as error:
                logger.info("leaders are not where they should be (%s): this is tried again later", error)


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
