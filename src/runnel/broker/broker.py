"""One broker: its parts, and the verbs that doors call.

The parts are handed in; this class follows the cluster's image with them, in order, one change at a time.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from runnel.broker.calls import Calls
from runnel.broker.config import BrokerConfig
from runnel.broker.confirming import Confirming
from runnel.broker.damage import Damages
from runnel.broker.departed import Departed
from runnel.broker.endings import Endings
from runnel.broker.fetch import Fetching
from runnel.broker.followers import Followers
from runnel.broker.forwarding import GROUP, TRANSACTION, Forwarding
from runnel.broker.gate import Gate
from runnel.broker.groups import Groups
from runnel.broker.housekeeping import Housekeeping, LeaderBalance
from runnel.broker.inbox import PARTITIONS, PARTITIONS_ALONE, Inbox, inbox_topic
from runnel.broker.internal import GROUPS, QUEUES, REQUESTS, SCHEDULE, SINKS, TRANSACTIONS
from runnel.broker.internal_topics import InternalTopics
from runnel.broker.isr import InSync
from runnel.broker.keepers import Keepers
from runnel.broker.log_sizes import LogSizes
from runnel.broker.markers import MarkerSender
from runnel.broker.members import Members
from runnel.broker.messages import Messages
from runnel.broker.once import Once
from runnel.broker.own_client import OwnClient
from runnel.broker.partitions import Partitions
from runnel.broker.peers import Peers
from runnel.broker.produce import Producing
from runnel.broker.queue_definitions import QueueDefinitions
from runnel.broker.queueing import Queueing, Surroundings
from runnel.broker.reading import PartitionReading
from runnel.broker.recompression import Recompression
from runnel.broker.removal import Removal
from runnel.broker.replication import Replication
from runnel.broker.replication import Settings as ReplicationSettings
from runnel.broker.requests import Requests
from runnel.broker.routing import Routing
from runnel.broker.schedule import Schedule
from runnel.broker.seen import Seen
from runnel.broker.sending import Sending
from runnel.broker.sending_once import SendingOnce
from runnel.broker.share_groups import ShareGroups
from runnel.broker.share_offsets import ShareOffsets
from runnel.broker.share_places import SharePlaces
from runnel.broker.sharing import Sharing
from runnel.broker.sifting import Sifting
from runnel.broker.sinks import Sinks
from runnel.broker.sinks_coordinators import Coordinators
from runnel.broker.throttle import Throttle
from runnel.broker.topics import Topics
from runnel.broker.transactions import Transactions
from runnel.broker.unserved import Unserved
from runnel.broker.views import Views
from runnel.broker.watchdog import Watchdog
from runnel.broker.webhooks import Webhooks
from runnel.cluster.config_rules import topic_defaults
from runnel.cluster.image import Broker as BrokerImage
from runnel.cluster.image import Change, Image
from runnel.cluster.metadata import Metadata
from runnel.groups.values import GroupConfig
from runnel.model.ids import BrokerId, Life, Offset, ProducerId
from runnel.model.limits import MIB
from runnel.model.schedule import OpenDueIndex
from runnel.model.seams import Clock, Disk, Rng
from runnel.net.bounds import Bounds
from runnel.replica.partition import Partition
from runnel.transactions.sink_values import SinkConfig
from runnel.transactions.values import TransactionConfig

READERS_BYTES_MAX = 16 * MIB  # messages that were decoded for readers, for those who come next

logger = logging.getLogger("runnel.broker")


class Part(Protocol):
    """What serves what this broker leads, and follows the image for that."""

    def start(self, image: Image) -> None: ...

    def follow(self, change: Change) -> None: ...


class Broker:
    """What a door talks to."""

    def __init__(
        self, config: BrokerConfig, metadata: Metadata, *,
        disk: Disk, files_max: int, clock: Clock, rng: Rng, on_fatal: Callable[[BaseException], None],
        open_due: OpenDueIndex, note_open: Callable[[int], None] = lambda _: None,
    ) -> None:  # fmt: skip
        self.id = BrokerId(config.broker_id)
        self.config = config
        self.metadata = metadata
        self.disk = disk
        self._on_fatal = on_fatal
        self.bounds = Bounds(
            requests=config.inflight_bytes_max, bodies=config.inflight_bytes_max,
            answers=config.answers_bytes_max, unpacked=config.unpacked_bytes_max,
            recompressed=config.recompressed_bytes_max,
        )  # fmt: skip
        self._changes: deque[Change] = deque()
        self._follower: asyncio.Task[None] | None = None
        self._producer_ids: deque[int] = deque()
        self._seen = Seen(metadata.image)
        self.partitions = Partitions(
            self.id, config.topic, disk=disk, files_max=files_max, clock=clock, on_fatal=on_fatal,
            on_damage=lambda partition: self._damages.found(partition), note_open=note_open,
            room=lambda size: self.bounds.room(self.bounds.unpacked, size, "unpacked-bytes-max"),
        )  # fmt: skip
        self._reach_others(config, rng)
        self._recompression = Recompression(self.bounds)
        self.once = Once(self.id, self.partitions, self.calls, self._newest, self._recompression, clock, rng)
        self.schedule = Schedule(
            self.partitions, self.calls, self.once, self._newest, lambda: self.internal_topics.make(SCHEDULE),
            clock=clock, rng=rng, disk=disk, open_index=open_due,
        )  # fmt: skip
        self._coordinate(config, clock, rng)
        self._replicate(config, clock, rng)
        self._append_and_read(config, clock, rng)
        self._serve_queues(clock, rng)
        self._serve_http(config, clock, rng)
        self._keep_house(config, clock)
        self._parts: tuple[Part, ...] = (
            self.groups, self.transactions, self.sinks, self.inbox, self.requests, self._webhooks, self.keepers,
            self.schedule.shards, self._queueing, self.queue_definitions.deletion,
        )  # fmt: skip

    def _reach_others(self, config: BrokerConfig, rng: Rng) -> None:
        """Make the ways to other brokers, and what the controller alone does."""
        self._peers = Peers(self.id)
        self.calls = Calls(self.id, self._peers, self.bounds, config.call_values_max)
        self.forwarding = Forwarding(self.id, self._peers, self.metadata, rng)
        self.topics = Topics(
            self.metadata, self.forwarding, self._seen, self.bounds, auto_create=config.auto_create_topics,
            topics_max=config.topics_max, created_per_second_max=config.auto_create_per_second_max,
        )  # fmt: skip
        self.internal_topics = InternalTopics(config, self.metadata, self.forwarding, self.calls, self._seen)

    def _replicate(self, config: BrokerConfig, clock: Clock, rng: Rng) -> None:
        """Make what keeps the copies of partitions alike, and who is in sync."""
        self._in_sync = InSync(
            self.id, self.partitions, self._newest, self.forwarding.alter_partitions, clock,
            lag_ms=config.replica_lag_ms, on_look=lambda: self.followers.note_heard(), on_fatal=self._on_fatal,
        )  # fmt: skip
        self.followers = Followers(self.partitions, self._newest, clock, rng, on_fetched=self._in_sync.notice)
        self._damages = Damages(self.metadata, self._in_sync, self._on_fatal)
        throttle = Throttle(self.id, self._newest, clock)
        self._replication = Replication(
            self.id, lambda: self.metadata.epoch, self._peers, _replication_of(config), throttle, rng, self._on_fatal
        )

    def _append_and_read(self, config: BrokerConfig, clock: Clock, rng: Rng) -> None:
        """Make the verbs of messages."""
        self._fetching = Fetching(config.fetch_bytes_max, self._near, self.bounds)
        self.views = Views(self.partitions)
        producing = Producing(clock, self.gate, Sifting(self.once, self.schedule, self._recompression, clock, rng))
        self.produce = producing.produce
        self._routing = Routing(self.partitions, producing, self._peers, self._newest, rng)
        self.forward_produce = self._routing.produce
        self.fetch = self._fetching.fetch
        self.sending = Sending(
            self._newest, append=self.forward_produce, new_producer=self.new_producer_id,
            make_topics=self.topics.create_asked_for, once=self.once, schedule=self.schedule, clock=clock, rng=rng,
        )  # fmt: skip
        self.requests = Requests(
            self.partitions, self.calls, self.once, self._newest,
            append=self._routing.produce_own, new_producer=self.new_producer_id,
            make_topic=lambda: self.internal_topics.make(REQUESTS), disk=self.disk, clock=clock,
        )  # fmt: skip
        self.sending_once = SendingOnce(self.requests, self.once, self.schedule, self.sending, self.calls, clock)
        self.read = PartitionReading(
            self.partitions, self.calls, self._newest, self.fetch, Messages(READERS_BYTES_MAX), rng
        ).read
        self.log_sizes = LogSizes(self.partitions, self.calls, self._newest, rng).sizes

    def _serve_http(self, config: BrokerConfig, clock: Clock, rng: Rng) -> None:
        """Make what the doors need whose clients keep no state of their own."""
        self.client = OwnClient(self._life, self._newest, clock, rng)
        self.members = Members(self.id, self.calls, self.client.cluster, rng)
        self.inbox = Inbox(
            self.partitions, self.calls, self._newest,
            append=self.forward_produce, new_producer=self.new_producer_id, make_topic=self.topics.create_missing,
            new_topic=lambda: inbox_topic(
                PARTITIONS if config.store.hosts else PARTITIONS_ALONE, topic_defaults(self.image, None, config.topic)
            ),
            disk=self.disk, clock=clock,
        )  # fmt: skip
        self._webhooks = Webhooks(self.id, self.calls, clock, allow_private=config.webhook_private)

    def _keep_house(self, config: BrokerConfig, clock: Clock) -> None:
        """Make what runs beside."""
        self._housekeeping = Housekeeping(
            self.partitions, self._try_again,
            every_ms=config.housekeeping_ms, retention_every_ms=config.retention_check_ms,
            producer_expiry_ms=config.producer_expiry_ms, on_fatal=self._on_fatal,
        )  # fmt: skip
        self._leader_balance = LeaderBalance(
            self.metadata.rebalance_leaders, every_ms=config.leader_rebalance_ms, on_fatal=self._on_fatal
        )
        self._watchdog = Watchdog(clock, self._on_fatal)
        self.departed = Departed(clock)
        self._removal = Removal(
            self.id, self.partitions, lambda: self.image, self.metadata.data_removed, self._on_fatal
        )

    def _coordinate(self, config: BrokerConfig, clock: Clock, rng: Rng) -> None:
        """Make the coordinators: those of groups and transactions need each other."""
        markers = MarkerSender(self.id, self._peers, lambda some: self.write_markers(some), self._newest, rng)
        self.transactions = Transactions(
            self.partitions,
            TransactionConfig(config.transaction_max_timeout_ms, config.transactional_id_expiration_ms),
            markers, clock,
            make_topic=lambda key: self.internal_topics.make_for_coordinators(
                TRANSACTIONS, config.transaction_partitions, key, TRANSACTION
            ),
            new_producer_id=self.new_producer_id,
            place_of_group=self._place_of_group,
        )  # fmt: skip
        self.sinks = Sinks(
            self.partitions, self.calls, Coordinators(self.transactions, self.calls), SinkConfig(), clock, rng,
            lambda: self.internal_topics.make(SINKS),
        )  # fmt: skip
        self.gate = Gate(self.id, self.transactions, self._peers, rng)
        group_config = GroupConfig(
            initial_rebalance_delay_ms=config.group_initial_delay_ms,
            members_max=config.group_members_max, consumer_members_max=config.group_members_max,
            member_bytes_max=config.group_member_bytes_max, said_bytes_max=config.group_bytes_max,
        )  # fmt: skip
        confirming = Confirming(lambda: self.metadata.newest_topic(GROUPS), self._on_fatal)
        self.groups = Groups(self.partitions, group_config, clock, rng, self.gate, confirm=confirming.confirm)
        self.write_markers = Endings(self.partitions, self.groups).write

    def _serve_queues(self, clock: Clock, rng: Rng) -> None:
        """Make what delivers the messages of queues and share groups."""
        self.keepers = Keepers(self.partitions, self.calls, clock, rng, lambda: self.internal_topics.make(QUEUES))
        self.queue_definitions = QueueDefinitions(
            self.id, self.topics, self.keepers, self.forwarding, self.calls, self._newest, self._seen,
            lambda group_id: self.groups.shards.leader_of(group_id).id,
        )  # fmt: skip
        self._queueing = Queueing(
            Surroundings(
                self.partitions, self.calls, self.keepers, self.once, self.schedule, self.sending, self.sending_once,
                self._newest, self._life, self.internal_topics.make_for_queues,
                lambda group_id, topic_id: self.share_groups.began(group_id, topic_id), clock, rng,
            )
        )  # fmt: skip
        self.queues, self.deliveries = self._queueing.queues, self._queueing.deliveries
        self.redrives, self.graves, sources = self._queueing.redrives, self._queueing.graves, self._queueing.sources
        self.sharing = Sharing(self.deliveries, sources.config, self.config.fetch_bytes_max)
        self.share_groups = ShareGroups(self.groups, sources.config, self.calls, self._newest)
        self.share_places = SharePlaces(self.deliveries, self.calls)
        self.share_offsets = ShareOffsets(
            self.share_groups, self.groups, self.keepers, self.calls, self._newest, sources.defined
        )

    def _life(self) -> Life:
        return Life(self.id, self.metadata.epoch)

    async def start(self) -> None:
        """Open everything that is placed here, and begin to follow the image."""
        self._seen.image = image = self.metadata.image
        self.views.start(image)
        self._watchdog.start()
        self.metadata.subscribe(self.departed.follow)
        self.metadata.subscribe(self._changed)
        await self.partitions.start(image)
        for part in self._parts:
            part.start(image)
        self._housekeeping.start()
        self._leader_balance.start()
        self._in_sync.start()
        self._damages.start()
        self._peers.follow(image)
        self._work_off()
        self._removal.start()

    def wake_waiters(self) -> None:
        """The broker is about to stop: answer at once who waits for messages or for a group."""
        self._fetching.close()
        self.followers.close()
        self.groups.close()
        self.transactions.close()
        self.sinks.close()
        self.sharing.close()
        self._queueing.close()
        self.queue_definitions.deletion.close()
        self.keepers.close()
        self.schedule.shards.close()
        self.gate.close()
        self.inbox.close()

    async def stop(self) -> bool:
        """Close every log; returns whether all of them could be closed cleanly."""
        await self._webhooks.stop()
        await self.inbox.stop()
        await self.requests.stop()
        self.sending.close()
        await self.members.stop()
        await self.client.close()
        await self.schedule.shards.stop()
        await self._replication.close()
        await self._in_sync.stop()
        await self._damages.stop()
        self._peers.close()
        await self._housekeeping.stop()
        await self._leader_balance.stop()
        if self._follower is not None:
            await asyncio.wait([self._follower])
        await self._removal.stop()
        clean = await self.partitions.close()
        await self._watchdog.stop()
        return clean

    @property
    def image(self) -> Image:
        """The cluster as far as this broker has followed it."""
        return self._seen.image

    def _newest(self) -> Image:
        """The cluster as the metadata has it: this broker may not have done all that it says yet."""
        return self.metadata.image

    def unserved(self) -> list[Unserved]:
        """The shards of coordinators that this broker leads and does not serve."""
        parts = (
            self.groups.shards, self.transactions.shards, self.sinks.shards, self.keepers.shards, self.schedule.shards,
            self.requests, self.inbox,
        )  # fmt: skip
        return [shard for part in parts for shard in part.unserved()]

    def _near(self, partition: Partition, rack: str, offset: Offset) -> BrokerId | None:
        """The follower that a reader in this rack should read from, unless the leader is there too (KIP-392)."""
        brokers = self._newest().brokers
        if not partition.is_leader or self.config.rack == rack:
            return None
        near = (
            member
            for member in partition.progress.isr
            if (broker := brokers.get(member)) is not None and broker.serving and broker.rack == rack
        )
        return next((member for member in near if partition.progress.held_by(member) >= offset), None)

    @property
    def loop_lag_s(self) -> float:
        return self._watchdog.late_ms_max / 1000

    @property
    def loop_stalls(self) -> int:
        return self._watchdog.stalls

    # --- following the image

    def _changed(self, change: Change) -> None:
        self._changes.append(change)
        self._work_off()

    def _work_off(self) -> None:
        if self._changes and self._follower is None:
            self._follower = asyncio.get_running_loop().create_task(self._follow())
            self._follower.add_done_callback(self._followed)

    async def _follow(self) -> None:
        while self._changes:
            change = self._changes.popleft()
            changed = await self.partitions.follow(change)
            self.views.follow(change)
            self._seen.image = change.after
            self._peers.follow(self._newest())
            self._place(changed)
            for part in self._parts:
                part.follow(change)
            self._seen.reach(change.after)
            if change.delta.deleted or self.partitions.has_leftovers:
                self._removal.look()

    def _place(self, changed: Sequence[Partition]) -> None:
        """These have another role than before, or are open only now."""
        self._replication.follow(changed)
        for partition in changed:
            if partition.log.is_damaged:
                self._damages.found(partition)

    async def _try_again(self) -> None:
        self._place(await self.partitions.try_again())
        self.groups.shards.open()
        self.transactions.shards.open()
        self.sinks.shards.open()
        self.keepers.shards.open()
        self.schedule.shards.open()
        self._queueing.sweep()

    def _followed(self, task: "asyncio.Task[None]") -> None:
        self._follower = None
        if not task.cancelled() and (error := task.exception()):
            self._on_fatal(error)  # a broker that can't follow the metadata must not go on
        else:
            self._work_off()

    async def until(self, holds: Callable[[Image], bool]) -> None:
        """Wait until this holds of the cluster as this broker has followed it; raises if that takes too long."""
        await self._seen.until(holds)

    # --- coordinators and producers

    async def find_coordinator(self, group_id: str) -> BrokerImage:
        """The broker that keeps a group; the first to ask makes the topic that groups live in."""
        await self.internal_topics.make_for_coordinators(GROUPS, self.config.group_partitions, group_id, GROUP)
        return self.groups.shards.leader_of(group_id)

    async def _place_of_group(self, group_id: str) -> tuple[str, int]:
        """The partition that keeps a group's offsets."""
        await self.internal_topics.make_for_coordinators(GROUPS, self.config.group_partitions, group_id, GROUP)
        return GROUPS, self.groups.shards.number_of(group_id)

    async def new_producer_id(self) -> ProducerId:
        """A number that no other producer has had or will have."""
        while not self._producer_ids:
            self._producer_ids.extend(await self.metadata.next_producer_ids())
        return ProducerId(self._producer_ids.popleft())


def _replication_of(config: BrokerConfig) -> ReplicationSettings:
    return ReplicationSettings(
        config.replica_fetch_wait_ms,
        config.replica_fetch_bytes_max,
        config.replica_answer_bytes_max,
        config.replica_fetchers,
    )
