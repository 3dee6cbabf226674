"""What a transactional producer asks of brokers, one attempt each; `transactions` decides what an answer means.

Who coordinates a transactional id is asked anew when an answer says so, as for groups. Two dialects are spoken:

    classic  the producer names each partition and group to the coordinator before it writes there
    modern   (KIP-890, feature transaction.version 2) brokers do that when the first batch comes, and each end of a
             transaction gives the producer a new epoch, so that what comes late belongs to no later transaction
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple, NoReturn

from runnel.client.cluster import TRANSACTION, Cluster, Node
from runnel.client.line import Identity
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import Committed, Generation, by_topic
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api
from runnel.wire.kafka.error_codes import ErrorCode

FEATURE, FEATURE_LEVEL = "transaction.version", 2
MODERN = {Api.PRODUCE: 12, Api.TXN_OFFSET_COMMIT: 5, Api.END_TXN: 5}  # the first versions of the modern dialect
ADD_PARTITIONS_VERSION_MAX = 3  # from 4 on, it is a question among brokers


class Seat(NamedTuple):
    """A member of a group, whose offsets a transaction commits (KIP-447). Without a generation, nothing fences it."""

    group: str
    generation: Generation = Generation()


class Caller:
    """Asks for one transactional id."""

    def __init__(self, cluster: Cluster, transactional_id: str) -> None:
        self.cluster = cluster
        self.id = transactional_id

    async def coordinator(self) -> Node:
        return await self.cluster.coordinator(self.id, TRANSACTION)

    def _refuse(self, code: int, action: str, node: Node, topics: Iterable[str] = ()) -> NoReturn:
        action = f"{action} (transactional id {self.id!r})"
        self.cluster.raise_for(code, action=action, broker=node, topics=topics, transactional_id=self.id)

    async def speaks_modern(self) -> bool:
        """Whether the cluster has the modern dialect switched on."""
        connection = await (await self.coordinator()).connection()
        offered = connection.versions
        return connection.features.get(FEATURE, 0) >= FEATURE_LEVEL and all(
            api in offered and offered[api].high >= first for api, first in MODERN.items()
        )

    async def init(self, timeout_ms: int, identity: Identity) -> Identity:
        """Fence whoever used the id before, and get an identity; one that is given is only raised by an epoch."""
        node = await self.coordinator()
        request = m.InitProducerIdRequest(
            transactional_id=self.id,
            transaction_timeout_ms=timeout_ms,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
        )
        answer = await node.ask(Api.INIT_PRODUCER_ID, request, m.InitProducerIdResponse)
        if answer.error_code:
            self._refuse(answer.error_code, "start a transactional producer", node)
        return Identity(answer.producer_id, answer.producer_epoch)

    async def add_partitions(self, identity: Identity, partitions: Iterable[TopicPartition]) -> None:
        node = await self.coordinator()
        R = m.AddPartitionsToTxnRequest
        topics = [R.AddPartitionsToTxnTopic(name=t, partitions=n) for t, n in by_topic(partitions).items()]
        request = R(
            v3_and_below_transactional_id=self.id,
            v3_and_below_producer_id=identity.producer_id,
            v3_and_below_producer_epoch=identity.epoch,
            v3_and_below_topics=topics,
        )
        answer = await node.ask(
            Api.ADD_PARTITIONS_TO_TXN, request, m.AddPartitionsToTxnResponse, version_max=ADD_PARTITIONS_VERSION_MAX
        )
        refused = [
            (topic.name, p.partition_index, p.partition_error_code)
            for topic in answer.results_by_topic_v3_and_below
            for p in topic.results_by_partition
            if p.partition_error_code
        ]
        # Where one partition is refused, the others were not tried: the reason is what counts.
        refused.sort(key=lambda each: each[2] == ErrorCode.OPERATION_NOT_ATTEMPTED)
        for name, number, code in refused:
            self._refuse(code, f"add {name}/{number} to the transaction", node, [name])

    async def add_group(self, identity: Identity, group: str) -> None:
        node = await self.coordinator()
        request = m.AddOffsetsToTxnRequest(
            transactional_id=self.id, producer_id=identity.producer_id, producer_epoch=identity.epoch, group_id=group
        )
        answer = await node.ask(Api.ADD_OFFSETS_TO_TXN, request, m.AddOffsetsToTxnResponse)
        if answer.error_code:
            self._refuse(answer.error_code, f"add the offsets of group {group!r} to the transaction", node)

    async def commit_offsets(
        self, identity: Identity, seat: Seat, offsets: Mapping[TopicPartition, Committed], *, modern: bool
    ) -> None:
        """Give offsets to the group's coordinator, which keeps them back until the transaction is committed."""
        node = await self.cluster.coordinator(seat.group)
        answer = await node.ask(
            Api.TXN_OFFSET_COMMIT,
            _offsets_request(self.id, identity, seat, offsets),
            m.TxnOffsetCommitResponse,
            version_max=None if modern else MODERN[Api.TXN_OFFSET_COMMIT] - 1,
        )
        for topic in answer.topics:
            for p in topic.partitions:
                if p.error_code:
                    where = f"{topic.name}/{p.partition_index}"
                    action = f"commit the offset of {where} for group {seat.group!r} (transactional id {self.id!r})"
                    self.cluster.raise_for(
                        p.error_code, action=action, broker=node, topics=[topic.name], group=seat.group
                    )

    async def end(self, identity: Identity, *, commit: bool, modern: bool) -> Identity:
        """End the transaction; the identity of the next one."""
        node = await self.coordinator()
        request = m.EndTxnRequest(
            transactional_id=self.id, producer_id=identity.producer_id, producer_epoch=identity.epoch, committed=commit
        )
        version_max = None if modern else MODERN[Api.END_TXN] - 1
        answer = await node.ask(Api.END_TXN, request, m.EndTxnResponse, version_max=version_max)
        if answer.error_code:
            self._refuse(answer.error_code, "commit a transaction" if commit else "abort a transaction", node)
        return Identity(answer.producer_id, answer.producer_epoch) if answer.producer_id >= 0 else identity


def _offsets_request(
    transactional_id: str, identity: Identity, seat: Seat, offsets: Mapping[TopicPartition, Committed]
) -> m.TxnOffsetCommitRequest:
    R = m.TxnOffsetCommitRequest
    topics: dict[str, list[m.TxnOffsetCommitRequest.TxnOffsetCommitRequestPartition]] = {}
    for where, committed in offsets.items():
        topics.setdefault(where.topic, []).append(
            R.TxnOffsetCommitRequestPartition(
                partition_index=where.partition,
                committed_offset=committed.offset,
                committed_leader_epoch=committed.leader_epoch,
                committed_metadata=committed.metadata,
            )
        )
    return R(
        transactional_id=transactional_id,
        group_id=seat.group,
        producer_id=identity.producer_id,
        producer_epoch=identity.epoch,
        generation_id=seat.generation.id,
        member_id=seat.generation.member_id,
        group_instance_id=seat.generation.instance_id,
        topics=[R.TxnOffsetCommitRequestTopic(name=name, partitions=rows) for name, rows in topics.items()],
    )
