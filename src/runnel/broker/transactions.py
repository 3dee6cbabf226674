"""Transactions: which broker keeps a transactional id, and the verbs of those kept here.

The state of transactional ids lives in an internal compacted topic, as that of groups does. What the state machine
orders is carried out when its decision is committed: partitions hear how a transaction ended.
"""

import logging
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import TypeVar

from msgspec.structs import replace

from runnel.broker.internal import GROUPS, TRANSACTIONS, ImageTopics, refuse_internal
from runnel.broker.journal import PartitionJournal
from runnel.broker.markers import MarkerSender, Telling
from runnel.broker.partitions import Partitions
from runnel.broker.shard import Shard
from runnel.broker.shards import Shards
from runnel.cluster.image import Broker, Change, Image
from runnel.groups.regex import Pattern
from runnel.model.errors import ReadOnlyTopic
from runnel.model.ids import ProducerId
from runnel.model.seams import Clock
from runnel.replica.partition import Partition
from runnel.transactions.shard import TransactionShard
from runnel.transactions.values import (
    STATES,
    AddPartitions,
    Cause,
    DescribedTransaction,
    EndTransaction,
    Identity,
    InitProducer,
    ListedTransaction,
    ListTransactions,
    NamedPartition,
    NeedsProducerId,
    PartitionsAdded,
    TopicView,
    TransactionConfig,
    Verdict,
)

logger = logging.getLogger("runnel.transactions")
R = TypeVar("R", InitProducer, EndTransaction)


class Transactions:
    """The coordinator: the shards of the transactions' topic that this broker leads."""

    def __init__(
        self, partitions: Partitions, config: TransactionConfig, markers: MarkerSender, clock: Clock, *,
        make_topic: Callable[[str], Awaitable[None]], new_producer_id: Callable[[], Awaitable[ProducerId]],
        place_of_group: Callable[[str], Awaitable[NamedPartition]],
    ) -> None:  # fmt: skip
        self.shards = Shards(TRANSACTIONS, partitions, self._shard)
        self._config = config
        self._markers = markers
        self._clock = clock
        self._make_topic = make_topic
        self._new_producer_id = new_producer_id
        self._place_of_group = place_of_group
        self._tellings: dict[tuple[int, str], Telling] = {}
        self._topics: ImageTopics

    @property
    def timeout_max_ms(self) -> int:
        """The longest that a transaction may take."""
        return self._config.timeout_max_ms

    def start(self, image: Image) -> None:
        self._see(image)

    def follow(self, change: Change) -> None:
        """The image changed: lead new shards, and look again who leads what has to hear how transactions ended."""
        self._see(change.after)
        self._tellings = {key: telling for key, telling in self._tellings.items() if telling.is_wanted()}
        self._markers.follow()

    def close(self) -> None:
        self.shards.close()
        self._markers.close()

    def _see(self, image: Image) -> None:
        self._topics = ImageTopics(image)
        self.shards.follow(image)

    def _shard(self, partition: Partition, number: int) -> Shard[TopicView]:
        def carry_out(verdict: Verdict) -> None:
            self._tell(shard, number, verdict)

        shard: Shard[TopicView] = Shard(
            PartitionJournal(partition, self._clock),
            lambda: TransactionShard(self._config), lambda: self._topics, self._clock, carry_out,
        )  # fmt: skip
        return shard

    def _tell(self, shard: Shard[TopicView], number: int, verdict: Verdict) -> None:
        """Have the partitions told, then the state machine. What it ordered before about the same id is void."""
        key = (number, verdict.transactional_id)

        def is_wanted() -> bool:
            return self._tellings.get(key) is telling and not shard.closed

        def done() -> None:
            del self._tellings[key]
            shard.tell("marked", verdict)

        _log(verdict)
        telling = self._tellings[key] = Telling(verdict, shard.epoch, is_wanted, done)
        self._markers.tell(telling)

    # --- verbs

    async def find_coordinator(self, transactional_id: str) -> Broker:
        """The broker that keeps a transactional id; the first to ask makes the topic that they live in."""
        await self._make_topic(transactional_id)
        return self.shards.leader_of(transactional_id)

    async def init_producer(self, request: InitProducer) -> Identity:
        """Who writes under a transactional id from now on."""
        return await self._with_new_id("init_producer", request)

    async def add_partitions(self, request: AddPartitions) -> PartitionsAdded:
        """Let partitions take part in the running transaction, which the first of them begins; or see if they do."""
        for name, _ in request.partitions:
            if name != GROUPS:  # where offsets of groups take part
                refuse_internal(name)
        if view := next((name for name, _ in request.partitions if self._topics.is_view(name)), None):
            raise ReadOnlyTopic(f"topic {view!r} is a view: no transaction writes to it")
        result: PartitionsAdded = await self.shards.ask(request.transactional_id, "add_partitions", request)
        return result

    async def add_offsets(self, transactional_id: str, producer: Identity, group_id: str) -> None:
        """Let the offsets of a group take part in the running transaction."""
        place = await self._place_of_group(group_id)
        added = await self.add_partitions(AddPartitions(transactional_id, producer, (place,)))
        if error := added.errors[place]:
            raise error

    async def end(self, request: EndTransaction) -> Identity:
        """End the running transaction; returns who writes the next one, when the decision is committed."""
        return await self._with_new_id("end", request)

    async def _with_new_id(self, verb: str, request: R) -> Identity:
        """Ask, and ask again with a new producer id if one is needed, which is seldom."""
        result: Identity | NeedsProducerId = await self.shards.ask(request.transactional_id, verb, request)
        while isinstance(result, NeedsProducerId):
            new_id = await self._new_producer_id()
            result = await self.shards.ask(request.transactional_id, verb, _with_id(request, new_id))
        return result

    async def describe(self, transactional_id: str) -> DescribedTransaction:
        result: DescribedTransaction = await self.shards.ask(transactional_id, "describe", transactional_id)
        return result

    async def list(self, request: ListTransactions, pattern: str = "") -> Sequence[ListedTransaction]:
        """Those kept here that pass all filters; an empty pattern passes every name."""
        matches: Callable[[str], bool] = Pattern(pattern).matches if pattern else lambda _: True
        parts: list[Collection[ListedTransaction]] = [await shard.ask("list", request) for shard in self.shards]
        return [each for part in parts for each in part if matches(each.transactional_id)]


def unknown_states(states: Sequence[str]) -> list[str]:
    """Those that are no states."""
    return [name for name in states if name not in STATES]


def _with_id(request: R, new_id: ProducerId) -> R:
    return replace(request, new_id=new_id)


def _log(verdict: Verdict) -> None:
    outcome = "commit" if verdict.commit else "abort"
    who = (verdict.transactional_id, *verdict.producer)
    match verdict.cause:
        case Cause.TIMED_OUT:
            logger.warning(
                "a transaction of %r took too long, %d ms, and is aborted; its producer %d goes on in epoch %d if it"
                " is still there", verdict.transactional_id, verdict.ran_ms, *verdict.producer,
            )  # fmt: skip
        case Cause.FENCED:
            logger.info("a new producer took over %r: what ran is aborted (producer %d, epoch %d)", *who)
        case Cause.CLIENT | Cause.SINK:
            logger.debug("%s: %r (producer %d, epoch %d), %d partitions", outcome, *who, len(verdict.partitions))
