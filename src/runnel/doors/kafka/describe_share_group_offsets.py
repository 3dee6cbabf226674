# DescribeShareGroupOffsets (key 90), v0-v1.  v1 lag (KIP-1226)
"""DescribeShareGroupOffsets: how far share groups are."""

from collections.abc import Sequence

from runnel.broker.share_places import Place
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of, text_of
from runnel.model.errors import RunnelError, as_value
from runnel.model.ids import NO_TOPIC_ID, PartitionKey
from runnel.wire.kafka import messages as m

Response = m.DescribeShareGroupOffsetsResponse
Group = m.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup
Topic = m.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseTopic
Partition = m.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition


async def describe_share_group_offsets(
    request: m.DescribeShareGroupOffsetsRequest, call: Call
) -> m.DescribeShareGroupOffsetsResponse:
    return Response(groups=[await _described(group, call) for group in request.groups])


async def _described(
    asked: m.DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup, call: Call
) -> m.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponseGroup:
    answers: dict[str, dict[int, Place | RunnelError]] = {}
    try:
        if asked.topics is None:
            wanted = None
        else:
            wanted = _wanted(asked.topics, answers, call)
        for key, place in (await call.broker.share_offsets.describe(asked.group_id, wanted)).items():
            topic = call.broker.image.topic_with_id(key.topic_id)
            answers.setdefault(topic.name, {})[key.number] = place
    except RunnelError as error:
        return Group(group_id=asked.group_id, error_code=code_of(error), error_message=text_of(error))
    names = call.broker.image.names
    return Group(
        group_id=asked.group_id,
        topics=[
            Topic(
                topic_name=name,
                topic_id=names.get(name, NO_TOPIC_ID),
                partitions=[_answer_of(number, place) for number, place in sorted(places.items())],
            )
            for name, places in answers.items()
        ],
    )


def _wanted(
    topics: Sequence[m.DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestTopic],
    answers: dict[str, dict[int, Place | RunnelError]],
    call: Call,
) -> list[PartitionKey]:
    """The partitions that are asked for; those that are not there are answered at once."""
    wanted: list[PartitionKey] = []
    for topic in topics:
        for number in topic.partitions:
            try:
                wanted.append(call.broker.topics.partition_key(topic.topic_name, number))
            except RunnelError as error:
                answers.setdefault(topic.topic_name, {})[number] = as_value(error)
    return wanted


def _answer_of(
    number: int, place: Place | RunnelError
) -> m.DescribeShareGroupOffsetsResponse.DescribeShareGroupOffsetsResponsePartition:
    if isinstance(place, RunnelError):
        return Partition(
            partition_index=number, start_offset=-1, error_code=code_of(place), error_message=text_of(place)
        )
    return Partition(
        partition_index=number, start_offset=place.offset, leader_epoch=max(place.leader_epoch, 0), lag=place.lag
    )
