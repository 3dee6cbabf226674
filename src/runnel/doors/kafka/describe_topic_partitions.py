# DescribeTopicPartitions (key 75), v0
"""DescribeTopicPartitions (KIP-966): topics page by page, with eligible leaders and what one may do with them."""

from collections.abc import Iterator

from runnel.cluster.image import NO_LEADER, Partition, Topic
from runnel.doors.kafka.authorized_operations import ON_TOPIC
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of
from runnel.doors.kafka.metadata import alive_brokers
from runnel.model.errors import InvalidRequest, LeaderNotAvailable, RunnelError
from runnel.model.ids import BrokerId
from runnel.wire.kafka import messages as m

PARTITIONS_MAX = 2_000  # Kafka's max.request.partition.size.limit
Response = m.DescribeTopicPartitionsResponse


async def describe_topic_partitions(
    request: m.DescribeTopicPartitionsRequest, call: Call
) -> m.DescribeTopicPartitionsResponse:
    names = sorted({topic.name for topic in request.topics} or call.broker.image.names)
    first = 0
    if request.cursor is not None:
        names = [name for name in names if name >= request.cursor.topic_name]
        first = request.cursor.partition_index if names and names[0] == request.cursor.topic_name else 0
    room = min(max(request.response_partition_limit, 1), PARTITIONS_MAX)
    answer = Response()
    for name in names:
        if room <= 0:
            answer.next_cursor = Response.Cursor(topic_name=name, partition_index=first)
            break
        described, more = _described(name, first, room, call)
        answer.topics.append(described)
        room -= max(len(described.partitions), 1)
        if more is not None:
            answer.next_cursor = Response.Cursor(topic_name=name, partition_index=more)
            break
        first = 0
    return answer


def _described(
    name: str, first: int, room: int, call: Call
) -> tuple[m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponseTopic, int | None]:
    """As many partitions of a topic as there is room for, and the first that did not fit."""
    try:
        call.broker.topics.check_name(name)
        topic = call.broker.image.shown(call.broker.image.topic_named(name))
        if not 0 <= first < len(topic.partitions):
            raise InvalidRequest(f"topic {name!r} has {len(topic.partitions)} partitions, the cursor says {first}")
    except RunnelError as error:
        return Response.DescribeTopicPartitionsResponseTopic(
            error_code=code_of(error), name=name, topic_authorized_operations=ON_TOPIC
        ), None
    end = min(len(topic.partitions), first + room)
    described = Response.DescribeTopicPartitionsResponseTopic(
        name=name,
        topic_id=topic.id,
        is_internal=call.broker.topics.is_internal(name),
        partitions=list(_partitions(topic, first, end, alive_brokers(call.broker.image))),
        topic_authorized_operations=ON_TOPIC,
    )
    return described, end if end < len(topic.partitions) else None


def _partitions(
    topic: Topic, first: int, end: int, alive: frozenset[BrokerId]
) -> Iterator[m.DescribeTopicPartitionsResponse.DescribeTopicPartitionsResponsePartition]:
    for number in range(first, end):
        partition: Partition = topic.partitions[number]
        led = partition.leader in alive
        yield Response.DescribeTopicPartitionsResponsePartition(
            error_code=0 if led else code_of(LeaderNotAvailable()),
            partition_index=number,
            leader_id=partition.leader if led else NO_LEADER,
            leader_epoch=partition.leader_epoch,
            replica_nodes=list(partition.replicas),
            isr_nodes=list(partition.isr),
            eligible_leader_replicas=list(partition.elr),  # never null: Java's admin client fails on it
            last_known_elr=[],
            offline_replicas=[replica for replica in partition.replicas if replica not in alive],
        )
