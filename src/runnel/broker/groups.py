"""Groups: which broker keeps a group, and the verbs of those kept here.

The state of groups lives in an internal compacted topic. A group belongs to one of its partitions by its name, and is
kept by the leader of that partition.

Rule 1: offsets in a transaction are taken when its coordinator says that it is open and this partition part of it. That
        counts only if no end of that transaction came here since before it was asked.
Rule 2: a coordinator that is not the last one that was heard of here is not even asked.
Rule 3: whatever may be better in a moment is told in words that make a client of any age ask again.
"""

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any, Final

import msgspec

from runnel.broker.admission import Closed, Gate
from runnel.broker.asking import Questions
from runnel.broker.heard import Heard
from runnel.broker.internal import GROUPS, TRANSACTIONS, ImageTopics
from runnel.broker.journal import PartitionJournal
from runnel.broker.partitions import Partitions
from runnel.broker.shard import Shard
from runnel.broker.shards import Shards, shard_number
from runnel.cluster.image import Change, Image
from runnel.groups.shard import GroupShard, check_name
from runnel.groups.values import (
    CommitInTransaction,
    CommitOffsets,
    ConsumerAlive,
    ConsumerHeartbeat,
    DeleteOffsets,
    DescribedConsumerGroup,
    DescribedGroup,
    EndTransaction,
    FetchOffsets,
    GroupConfig,
    Heartbeat,
    Join,
    Joined,
    Leave,
    Left,
    ListedGroup,
    ListGroups,
    OffsetsCommitted,
    OffsetsDeleted,
    OffsetsFetched,
    Sync,
    Synced,
    TopicView,
)
from runnel.model.errors import (
    ConcurrentTransactions,
    CoordinatorLoading,
    InvalidProducerEpoch,
    NotCoordinator,
    NotLeader,
    ProducerFenced,
    RetriableError,
)
from runnel.model.ids import Epoch, PartitionKey
from runnel.model.queue_config import config_of
from runnel.model.seams import Clock, Rng
from runnel.replica.partition import Partition

ADMIT_TIMEOUT_MS: Final = 10_000  # how long a transaction's coordinator may take; clients wait 30 s and more
BUMPED_SINCE: Final = 2  # the version of transactions in which an end carries the epoch of the next one


class Groups:
    """The coordinator: the shards of the groups' topic that this broker leads."""

    def __init__(
        self, partitions: Partitions, config: GroupConfig, clock: Clock, rng: Rng, gate: Gate | None = None,
        *, confirm: Callable[[PartitionKey, Epoch], Awaitable[None]],
    ) -> None:  # fmt: skip
        self.shards = Shards(GROUPS, partitions, self._shard)
        self._config = config
        self._clock = clock
        self._rng = rng
        self._gate = gate or Closed()
        self._confirm = confirm  # that nobody leads a partition in a later epoch
        self._asking: defaultdict[int, Questions] = defaultdict(Questions)  # by the number of the shard
        self._heard = Heard()
        self._image: Image
        self._topics: ImageTopics

    def start(self, image: Image) -> None:
        self._see(image)

    def follow(self, change: Change) -> None:
        """The image changed: lead new shards, forget the offsets of deleted topics, and the members of dead brokers."""
        self._see(change.after)
        for topic_id, topic in change.delta.topics.items():
            if topic is None:
                for shard in self.shards:
                    shard.tell("topic_deleted", topic_id)
        for shard in self.shards if change.delta.brokers else ():
            shard.tell("brokers_changed", None)

    def close(self) -> None:
        self.shards.close()

    def _see(self, image: Image) -> None:
        self._image = image
        self._topics = ImageTopics(image)
        self.shards.follow(image)

    def _shard(self, partition: Partition, number: int) -> Shard[TopicView]:
        journal = PartitionJournal(partition, self._clock)
        return Shard(journal, lambda: GroupShard(self._config, self._rng), lambda: self._topics, self._clock)

    async def _ask(self, group_id: str, verb: str, request: Any) -> Any:
        return await self.shards.ask(group_id, verb, request)

    # --- verbs

    async def join(self, request: Join) -> Joined:
        result: Joined = await self._ask(request.group_id, "join", request)
        return result

    async def sync(self, request: Sync) -> Synced:
        result: Synced = await self._ask(request.group_id, "sync", request)
        return result

    async def heartbeat(self, request: Heartbeat) -> None:
        """Say that a member is alive. While its group is being read, that is taken for granted, as in Kafka.

        Sessions begin anew when it has been read, and some clients (aiokafka) end at any other answer.
        """
        with suppress(CoordinatorLoading):
            await self._ask(request.group_id, "heartbeat", request)

    async def leave(self, request: Leave) -> Left:
        result: Left = await self._ask(request.group_id, "leave", request)
        return result

    async def consumer_heartbeat(self, request: ConsumerHeartbeat) -> ConsumerAlive:
        """Join, stay or leave; the group's own settings say how long a member may be silent."""
        config = config_of(frozenset(self._image.group_settings(request.group_id).items()))
        asked = msgspec.structs.replace(
            request,
            session_timeout_ms=config.consumer_session_timeout_ms,
            heartbeat_interval_ms=config.consumer_heartbeat_interval_ms,
        )
        result: ConsumerAlive = await self._ask(request.group_id, "consumer_heartbeat", asked)
        return result

    async def commit_offsets(self, request: CommitOffsets) -> OffsetsCommitted:
        result: OffsetsCommitted = await self._ask(request.group_id, "commit_offsets", request)
        return result

    async def txn_commit(self, request: CommitInTransaction, transactional_id: str, *, adds: bool) -> OffsetsCommitted:
        """Hold offsets until a transaction ends; `adds`: this group is added to it now, not by the client before."""
        check_name(request.group_id)
        shard = self.shards.of(request.group_id)
        number = self.shards.number_of(request.group_id)
        known_epoch = self._coordinator_epoch(transactional_id)
        if known_epoch < self._heard.newest(request.producer_id):
            raise CoordinatorLoading(f"who coordinates {transactional_id!r} is not known here yet: try again")
        with self._asking[number].about(request.producer_id, request.producer_epoch) as question:
            await self._admit(request, transactional_id, number, adds)
        if question.void:
            raise ConcurrentTransactions(f"a transaction of {transactional_id!r} has just been ended: try again")
        admitted = msgspec.structs.replace(request, coordinator_epoch=known_epoch)
        result: OffsetsCommitted = await shard.ask("commit_in_transaction", admitted)
        return result

    async def _admit(self, request: CommitInTransaction, transactional_id: str, number: int, adds: bool) -> None:
        place = (GROUPS, number)
        try:
            verdicts = await self._gate.admit(
                transactional_id, request.producer_id, request.producer_epoch, [place],
                add=adds, timeout_ms=ADMIT_TIMEOUT_MS,
            )  # fmt: skip
            if refusal := verdicts[place]:
                raise refusal
        except ProducerFenced as error:
            raise InvalidProducerEpoch(str(error)) from None
        except ConcurrentTransactions:
            raise
        except RetriableError as error:  # this coordinator is the right one, so that nobody has to look for it
            raise CoordinatorLoading(f"can't tell whether {transactional_id!r} is in a transaction: {error}") from None

    def _coordinator_epoch(self, transactional_id: str) -> int:
        """The epoch of a transaction's coordinator as far as it is known here: none that is older has a say."""
        topic = self._image.topic(TRANSACTIONS)
        if topic is None:
            return -1
        return topic.partitions[shard_number(transactional_id, len(topic.partitions))].leader_epoch

    async def end_transaction(
        self, number: int, producer_id: int, epoch: int, commit: bool, *, coordinator_epoch: int, version: int = 1
    ) -> None:
        """Let the offsets that a transaction holds in a shard count, or drop them; returns when that is kept."""
        shard = self.shards.numbered(number)
        self._heard.note(producer_id, coordinator_epoch)
        request = EndTransaction(
            producer_id=producer_id, producer_epoch=epoch, commit=commit, coordinator_epoch=coordinator_epoch,
            bumped=version >= BUMPED_SINCE,
        )  # fmt: skip
        self._asking[number].end(request)
        try:
            await shard.ask("end_transaction", request)
        except (NotCoordinator, CoordinatorLoading) as error:  # as a leader would say it
            raise NotLeader(str(error)) from None

    async def fetch_offsets(self, request: FetchOffsets) -> OffsetsFetched:
        """How far a group has come; nothing is older than what was committed before this call, on whichever broker."""
        shard = self.shards.of(request.group_id)
        await self._confirm(self.shards.key_of(request.group_id), shard.epoch)
        return await self.known_offsets(request)

    async def known_offsets(self, request: FetchOffsets) -> OffsetsFetched:
        """The same, as far as this broker knows."""
        result: OffsetsFetched = await self._ask(request.group_id, "fetch_offsets", request)
        return result

    async def delete_offsets(self, request: DeleteOffsets) -> OffsetsDeleted:
        result: OffsetsDeleted = await self._ask(request.group_id, "delete_offsets", request)
        return result

    async def delete(self, group_id: str) -> None:
        await self._ask(group_id, "delete_group", group_id)

    async def describe(self, group_id: str) -> DescribedGroup:
        result: DescribedGroup = await self._ask(group_id, "describe", group_id)
        return result

    async def describe_consumer(self, group_id: str) -> DescribedConsumerGroup:
        result: DescribedConsumerGroup = await self._ask(group_id, "describe_consumer", group_id)
        return result

    async def list(self, request: ListGroups) -> Iterable[ListedGroup]:
        parts = [await shard.ask("list", request) for shard in self.shards]
        return [group for part in parts for group in part]
