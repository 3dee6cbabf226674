"""What administrators ask about share groups (KIP-932): how far they are, and to go on from elsewhere."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from runnel.client.cluster import Cluster, Node
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import by_topic
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api
from runnel.wire.kafka.error_codes import ErrorCode


class Place(NamedTuple):
    """Where a share group is in a partition: all messages below `offset` are done, and `lag` at or above are not."""

    offset: int
    lag: int  # -1 if the broker does not say


async def describe_share(
    cluster: Cluster, node: Node, group: str
) -> m.ShareGroupDescribeResponse.DescribedGroup | None:
    """What its coordinator says of a share group; None if it is not one."""
    request = m.ShareGroupDescribeRequest(group_ids=[group])
    answer = await node.ask(Api.SHARE_GROUP_DESCRIBE, request, m.ShareGroupDescribeResponse)
    told = answer.groups[0]
    if told.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
        return None
    if told.error_code:
        action = f"describe share group {group!r}"
        cluster.raise_for(told.error_code, action=action, broker=node, message=told.error_message, group=group)
    return told


async def share_places(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, Place]:
    """Where a share group is, in these partitions or in all; those to which it never came are left out."""
    R = m.DescribeShareGroupOffsetsRequest
    topics = None
    if partitions is not None:
        topics = [
            R.DescribeShareGroupOffsetsRequestTopic(topic_name=name, partitions=numbers)
            for name, numbers in by_topic(partitions).items()
        ]
    request = R(groups=[R.DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=topics)])

    async def attempt() -> dict[TopicPartition, Place]:
        node = await cluster.coordinator(group)
        answer = await node.ask(Api.DESCRIBE_SHARE_GROUP_OFFSETS, request, m.DescribeShareGroupOffsetsResponse)
        told, places = answer.groups[0], dict[TopicPartition, Place]()
        _check(cluster, node, told.error_code, f"read the offsets of share group {group!r}", told.error_message, group)
        for topic in told.topics:
            for p in topic.partitions:
                where = TopicPartition(topic.topic_name, p.partition_index)
                action = f"read the offset of share group {group!r} for {where}"
                _check(cluster, node, p.error_code, action, p.error_message, group)
                if p.start_offset >= 0:
                    places[where] = Place(p.start_offset, p.lag)
        return places

    return await cluster.persist(attempt)


async def move_share(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Let a share group go on from these offsets; it must have no members."""
    R = m.AlterShareGroupOffsetsRequest
    request = R(
        group_id=group,
        topics=[
            R.AlterShareGroupOffsetsRequestTopic(
                topic_name=name,
                partitions=[
                    R.AlterShareGroupOffsetsRequestPartition(
                        partition_index=n, start_offset=offsets[TopicPartition(name, n)]
                    )
                    for n in numbers
                ],
            )
            for name, numbers in by_topic(offsets).items()
        ],
    )

    async def attempt() -> None:
        node = await cluster.coordinator(group)
        answer = await node.ask(Api.ALTER_SHARE_GROUP_OFFSETS, request, m.AlterShareGroupOffsetsResponse)
        action = f"move share group {group!r}"
        _check(cluster, node, answer.error_code, action, answer.error_message, group)
        for topic in answer.responses:
            for p in topic.partitions:
                where = f"{action} in {topic.topic_name}/{p.partition_index}"
                _check(cluster, node, p.error_code, where, p.error_message, group)

    await cluster.persist(attempt)


def _check(cluster: Cluster, node: Node, code: int, action: str, message: str | None, group: str) -> None:
    if code:
        cluster.raise_for(code, action=action, broker=node, message=message, group=group)
