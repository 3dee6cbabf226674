"""What ShareFetch and ShareAcknowledge have in common: what members say is settled, and where partitions are led."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from runnel.cluster.image import Broker
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of
from runnel.doors.kafka.share_sessions import ShareSession
from runnel.doors.kafka.share_verdicts import Batch, verdicts_of
from runnel.model.errors import RetriableError, RunnelError, as_value
from runnel.model.ids import PartitionKey, TopicId
from runnel.wire.kafka.error_codes import ErrorCode

# What clients can be told of a partition; anything else confuses them.
PARTITION_CODES = frozenset({
    ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.CORRUPT_MESSAGE, ErrorCode.INVALID_RECORD_STATE,
    ErrorCode.INVALID_REQUEST,
})  # fmt: skip


class _Partition(Protocol):
    partition_index: int

    @property
    def acknowledgement_batches(self) -> Sequence[Batch]: ...


class _Topic(Protocol):
    topic_id: UUID

    @property
    def partitions(self) -> Sequence[_Partition]: ...


def said_of(topics: Iterable[_Topic]) -> dict[PartitionKey, Sequence[Batch]]:
    """What is said of each partition that is named; of some it is nothing."""
    return {
        PartitionKey(TopicId(topic.topic_id), partition.partition_index): partition.acknowledgement_batches
        for topic in topics
        for partition in topic.partitions
    }


async def settle_all(
    said: Mapping[PartitionKey, Sequence[Batch]], session: ShareSession, call: Call, *, may_renew: bool
) -> dict[PartitionKey, RunnelError | None]:
    """Settle what was said, in all partitions at once; for each, what became of it. `may_renew`: says the request."""
    may_renew = may_renew and call.broker.sharing.may_renew(session.key.group_id)

    async def settle(key: PartitionKey, batches: Sequence[Batch]) -> RunnelError | None:
        try:
            verdicts = verdicts_of(batches, may_renew=may_renew)
        except RunnelError as error:
            return as_value(error)
        return await call.broker.sharing.settle(session.key.group_id, key, session.owner, *verdicts)

    spoken = {key: batches for key, batches in said.items() if batches}
    if len(spoken) == 1:
        return {key: await settle(key, batches) for key, batches in spoken.items()}
    results = await asyncio.gather(*(settle(key, batches) for key, batches in spoken.items()))
    return dict(zip(spoken, results, strict=True))


def partition_code(error: RunnelError | None) -> int:
    """The code of an error in one partition: one that clients of share groups know what to do about."""
    code = code_of(error)
    if code == 0 or code in PARTITION_CODES:
        return code
    known = ErrorCode.NOT_LEADER_OR_FOLLOWER if isinstance(error, RetriableError) else ErrorCode.UNKNOWN_SERVER_ERROR
    return int(known)


def leader_of(key: PartitionKey, code: int, call: Call) -> tuple[int, int, Broker | None]:
    """Who leads a partition (its id and epoch) if that is what the client was wrong about; else nobody."""
    topic = call.broker.image.topics.get(key.topic_id)
    if code != ErrorCode.NOT_LEADER_OR_FOLLOWER or topic is None or key.number >= len(topic.partitions):
        return -1, -1, None
    partition = topic.partitions[key.number]
    return partition.leader, partition.leader_epoch, call.broker.image.brokers.get(partition.leader)
