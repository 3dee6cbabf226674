"""Administration of transactions: which there are, what each has written to, and ending one whose producer is gone.

Two ways lead to an abort, and they differ in what they risk:

    by id         the coordinator is asked for a new epoch of the transactional id: it aborts what is open under the old
                  one, in all partitions alike, and fences the producer. All or nothing holds. This is the way.
    by partition  an abort marker is written into one partition. Only for a transaction that hangs there because no
                  coordinator knows of it; one that is known would be torn: aborted here, perhaps committed elsewhere.
                  So it is refused where a coordinator knows the producer as one with an open transaction.

A transaction that a sink holds is part of a batch that may be decided: it is left to its sink, unless force is used.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from runnel.client.calls import call_until_done
from runnel.client.cluster import Cluster
from runnel.client.each import of_each
from runnel.client.errors import check
from runnel.client.line import Identity
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import by_topic
from runnel.client.transaction_calls import Caller
from runnel.model.errors import CoordinatorNotAvailable, InvalidTransactionState
from runnel.model.sinks import PREFIX, TXN_FORCE_ABORT, TXN_HOLDER, NamedTransaction
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api

ONGOING = "Ongoing"
UNFINISHED = (ONGOING, "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
FIRST_COORDINATOR_EPOCH = 0  # for a producer that never got a marker


class TransactionListing(NamedTuple):
    id: str
    producer_id: int
    state: str
    coordinator: int  # a broker


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    id: str
    state: str
    coordinator: str  # host:port
    identity: Identity
    timeout_ms: int
    began_ms: int | None  # None: none is open
    partitions: tuple[TopicPartition, ...]
    holder: str = ""  # the sink that holds it

    @property
    def open(self) -> bool:
        return self.state == ONGOING


class PartitionProducer(NamedTuple):
    """A producer as one partition knows it."""

    where: TopicPartition
    identity: Identity
    coordinator_epoch: int  # of the last marker; -1: there was none
    first_offset: int | None  # of its transaction that is open here
    last_ms: int  # when it last wrote here


class TransactionsAdmin:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.silent: list[int] = []  # brokers that did not answer when transactions were last listed

    # --- looking
    async def transactions(
        self,
        *,
        states: Sequence[str] = (),
        producer_ids: Sequence[int] = (),
        open_for_ms: int = -1,
        pattern: str | None = None,
    ) -> list[TransactionListing]:
        """All transactional ids, or those that match: every broker is asked for those it coordinates.

        `silent` has the brokers that did not answer.
        """
        await self.cluster.persist(lambda: self.cluster.refresh([]))
        request = m.ListTransactionsRequest(
            state_filters=list(states),
            producer_id_filters=list(producer_ids),
            duration_filter=open_for_ms,
            transactional_id_pattern=pattern,
        )
        answers = await of_each(self.cluster, lambda broker: self._list_on(broker, request))
        self.silent = [broker for broker, answer in answers.items() if answer is None]
        found = {listing.id: listing for answer in answers.values() for listing in answer or ()}
        return [found[name] for name in sorted(found)]

    async def _list_on(self, broker: int, request: m.ListTransactionsRequest) -> list[TransactionListing]:
        node = self.cluster.broker(broker)
        answer = await node.ask(Api.LIST_TRANSACTIONS, request, m.ListTransactionsResponse)
        check(answer.error_code, action="list the transactions", broker=str(node))
        return [
            TransactionListing(t.transactional_id, t.producer_id, t.transaction_state, broker)
            for t in answer.transaction_states
        ]

    async def describe(self, transactional_id: str) -> TransactionDescription:
        """What the coordinator knows of an id; TransactionalIdNotFound if it knows none."""
        caller = Caller(self.cluster, transactional_id)

        async def attempt() -> TransactionDescription:
            node = await caller.coordinator()
            request = m.DescribeTransactionsRequest(transactional_ids=[transactional_id])
            answer = await node.ask(Api.DESCRIBE_TRANSACTIONS, request, m.DescribeTransactionsResponse)
            told = answer.transaction_states[0]
            if told.error_code:
                action = f"find transactional id {transactional_id!r}"
                self.cluster.raise_for(told.error_code, action=action, broker=node, transactional_id=transactional_id)
            return _described(told, str(node))

        found = await self.cluster.persist(attempt)
        return replace(found, holder=await self._holder(found)) if found.open else found

    async def _holder(self, found: TransactionDescription) -> str:
        """Sinks hold transactions of ids of their own, and brokers that have no sinks have no such ids."""
        if not found.id.startswith(PREFIX):
            return ""
        return (await call_until_done(self.cluster, TXN_HOLDER, NamedTransaction(found.id))).sink

    async def producers(self, partitions: Iterable[TopicPartition]) -> list[PartitionProducer]:
        """The producers that partitions remember; each partition's leader is asked."""
        return [found for where in partitions for found in await self._producers_of(where)]

    async def _producers_of(self, where: TopicPartition) -> list[PartitionProducer]:
        R = m.DescribeProducersRequest
        request = R(topics=[R.TopicRequest(name=where.topic, partition_indexes=[where.partition])])

        async def attempt() -> list[PartitionProducer]:
            node = self.cluster.broker((await self.cluster.leader(where)).broker)
            answer = await node.ask(Api.DESCRIBE_PRODUCERS, request, m.DescribeProducersResponse)
            told = answer.topics[0].partitions[0]
            if told.error_code:
                action = f"look at the producers of {where}"
                self.cluster.raise_for(
                    told.error_code, action=action, broker=node, message=told.error_message, topics=[where.topic]
                )
            return [_producer(where, p) for p in told.active_producers]

        return await self.cluster.persist(attempt)

    # --- aborting
    async def abort(self, found: TransactionDescription, *, timeout_ms: int = 60_000, force: bool = False) -> None:
        """Abort what is open under an id, and fence its producer; done when the coordinator has ended it everywhere.

        `force`: also what a sink holds. If its batch was decided, the others of it are committed all the same.
        """
        if not found.open:
            raise InvalidTransactionState(
                f"transactional id {found.id!r} has no open transaction (its state is {found.state}): nothing to abort"
            )
        if found.holder and not force:
            raise InvalidTransactionState(
                f"the transaction of {found.id!r} is held by the sink {found.holder!r}, for a batch that is being"
                f" published: see 'runnel sink describe {found.holder}'. If the sink is of no use any more, 'runnel"
                f" sink forget {found.holder}' ends all that it has open; --force would tear its batch"
            )
        if found.holder:
            await call_until_done(self.cluster, TXN_FORCE_ABORT, NamedTransaction(found.id))
        caller = Caller(self.cluster, found.id)
        await self.cluster.persist(lambda: caller.init(found.timeout_ms, Identity()), timeout_ms=timeout_ms)

    async def abort_in_partition(self, hanging: PartitionProducer) -> None:
        """Write an abort marker for a transaction that hangs in one partition; refused if a coordinator knows it."""
        known = await self.transactions(states=UNFINISHED, producer_ids=[hanging.identity.producer_id])
        if self.silent:
            raise CoordinatorNotAvailable(
                f"brokers {', '.join(map(str, self.silent))} do not say whether they know the transaction in "
                f"{hanging.where}, which must not be torn: try again when they answer"
            )
        for listing in known:
            if hanging.where in (await self.describe(listing.id)).partitions:
                raise InvalidTransactionState(
                    f"the transaction in {hanging.where} does not hang: it is that of transactional id {listing.id!r}, "
                    f"state {listing.state}, and would be torn by an abort in one partition; abort it by its id"
                )
        await self.cluster.persist(lambda: self._write_marker(hanging))

    async def _write_marker(self, hanging: PartitionProducer) -> None:
        R = m.WriteTxnMarkersRequest
        where, who = hanging.where, hanging.identity
        marker = R.WritableTxnMarker(
            producer_id=who.producer_id,
            producer_epoch=who.epoch,
            transaction_result=False,
            topics=[R.WritableTxnMarkerTopic(name=t, partition_indexes=n) for t, n in by_topic([where]).items()],
            coordinator_epoch=max(FIRST_COORDINATOR_EPOCH, hanging.coordinator_epoch),
        )
        node = self.cluster.broker((await self.cluster.leader(where)).broker)
        answer = await node.ask(Api.WRITE_TXN_MARKERS, R(markers=[marker]), m.WriteTxnMarkersResponse)
        code = answer.markers[0].topics[0].partitions[0].error_code
        if code:
            action = f"abort the transaction of producer {who.producer_id} in {where}"
            self.cluster.raise_for(code, action=action, broker=node, topics=[where.topic])


def _described(told: m.DescribeTransactionsResponse.TransactionState, coordinator: str) -> TransactionDescription:
    return TransactionDescription(
        told.transactional_id,
        told.transaction_state,
        coordinator,
        Identity(told.producer_id, told.producer_epoch),
        told.transaction_timeout_ms,
        told.transaction_start_time_ms if told.transaction_start_time_ms >= 0 else None,
        tuple(sorted(TopicPartition(topic.topic, n) for topic in told.topics for n in topic.partitions)),
    )


def _producer(where: TopicPartition, told: m.DescribeProducersResponse.ProducerState) -> PartitionProducer:
    first = told.current_txn_start_offset
    return PartitionProducer(
        where,
        Identity(told.producer_id, told.producer_epoch),
        told.coordinator_epoch,
        first if first >= 0 else None,
        told.last_timestamp,
    )
