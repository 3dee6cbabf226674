# OffsetCommit (key 8), v2-v10.  v6 leader epochs, v7 static members, v8 flexible, v9 KIP-848, v10 topic ids
"""OffsetCommit: keep how far a group has come."""

from uuid import UUID

from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of
from runnel.groups.values import CommitOffsets, OffsetToCommit
from runnel.model.errors import RunnelError
from runnel.model.ids import Epoch, Offset, TopicId
from runnel.wire.kafka import messages as m

TOPIC_IDS_SINCE = 10
NO_RETENTION = -1
Response = m.OffsetCommitResponse


async def offset_commit(request: m.OffsetCommitRequest, call: Call) -> m.OffsetCommitResponse:
    known: list[OffsetToCommit] = []
    codes: dict[tuple[str, UUID, int], int] = {}
    places: list[tuple[str, UUID, int]] = []
    for topic in request.topics:
        for partition in topic.partitions:
            place = (topic.name, topic.topic_id, partition.partition_index)
            try:
                known.append(_offset_of(topic, partition, call))
                places.append(place)
            except RunnelError as error:
                codes[place] = code_of(error)
    codes |= await _commit(request, known, places, call)
    return Response(
        topics=[
            Response.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    Response.OffsetCommitResponsePartition(
                        partition_index=p.partition_index,
                        error_code=codes[topic.name, topic.topic_id, p.partition_index],
                    )
                    for p in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _commit(
    request: m.OffsetCommitRequest, known: list[OffsetToCommit], places: list[tuple[str, UUID, int]], call: Call
) -> dict[tuple[str, UUID, int], int]:
    asked = CommitOffsets(
        group_id=request.group_id,
        member_id=request.member_id,
        generation=request.generation_id_or_member_epoch,
        offsets=tuple(known),
        instance_id=request.group_instance_id,
        retention_ms=None if request.retention_time_ms == NO_RETENTION else request.retention_time_ms,
    )
    try:
        committed = await call.broker.groups.commit_offsets(asked)
    except RunnelError as error:
        return dict.fromkeys(places, code_of(error))
    return {place: code_of(error) for place, error in zip(places, committed.errors, strict=True)}


def _offset_of(
    topic: m.OffsetCommitRequest.OffsetCommitRequestTopic,
    partition: m.OffsetCommitRequest.OffsetCommitRequestPartition,
    call: Call,
) -> OffsetToCommit:
    key = call.broker.topics.partition_key(
        TopicId(topic.topic_id) if call.version >= TOPIC_IDS_SINCE else topic.name, partition.partition_index
    )
    return OffsetToCommit(
        key,
        Offset(partition.committed_offset),
        Epoch(partition.committed_leader_epoch),
        partition.committed_metadata or "",
    )
