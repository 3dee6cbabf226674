# OffsetFetch (key 9), v1-v10.  v2 null asks for all, v6 flexible, v7 stable ones, v8 many groups, v9 KIP-848, v10 ids
"""OffsetFetch: how far groups have come."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of
from runnel.groups.values import FetchedOffset, FetchOffsets
from runnel.model.errors import RunnelError
from runnel.model.ids import NO_TOPIC_ID, PartitionKey, TopicId
from runnel.wire.kafka import messages as m

ALL_SINCE = 2  # and errors of the whole group at the top
MANY_SINCE = 8
TOPIC_IDS_SINCE = 10
NONE = -1
Response = m.OffsetFetchResponse


class _Asked(NamedTuple):
    """One topic of a request: by name, or by id since v10."""

    name: str
    topic_id: TopicId
    numbers: Sequence[int]


class _Answer(NamedTuple):
    name: str
    topic_id: TopicId
    number: int
    offset: int
    epoch: int
    metadata: str
    error_code: int


async def offset_fetch(request: m.OffsetFetchRequest, call: Call) -> m.OffsetFetchResponse:
    if call.version >= MANY_SINCE:
        groups = await asyncio.gather(*(_group(group, request.require_stable, call) for group in request.groups))
        return Response(groups=list(groups))
    asked = (
        None if request.topics is None else [_Asked(t.name, NO_TOPIC_ID, t.partition_indexes) for t in request.topics]
    )
    code, answers = await _offsets(FetchOffsets(request.group_id, require_stable=request.require_stable), asked, call)
    if code and call.version < ALL_SINCE:
        answers = [_nothing(topic, n, code) for topic in asked or () for n in topic.numbers]
    return Response(
        error_code=code,
        topics=[
            Response.OffsetFetchResponseTopic(
                name=name,
                partitions=[
                    Response.OffsetFetchResponsePartition(
                        partition_index=a.number,
                        committed_offset=a.offset,
                        committed_leader_epoch=a.epoch,
                        metadata=a.metadata,
                        error_code=a.error_code,
                    )
                    for a in of_topic
                ],
            )
            for (name, _), of_topic in _by_topic(answers)
        ],
    )


async def _group(
    group: m.OffsetFetchRequest.OffsetFetchRequestGroup, require_stable: bool, call: Call
) -> m.OffsetFetchResponse.OffsetFetchResponseGroup:
    asked = (
        None
        if group.topics is None
        else [_Asked(t.name, TopicId(t.topic_id), t.partition_indexes) for t in group.topics]
    )
    question = FetchOffsets(
        group.group_id, member_id=group.member_id, member_epoch=group.member_epoch, require_stable=require_stable
    )
    code, answers = await _offsets(question, asked, call)
    return Response.OffsetFetchResponseGroup(
        group_id=group.group_id,
        error_code=code,
        topics=[
            Response.OffsetFetchResponseTopics(
                name=name,
                topic_id=topic_id,
                partitions=[
                    Response.OffsetFetchResponsePartitions(
                        partition_index=a.number,
                        committed_offset=a.offset,
                        committed_leader_epoch=a.epoch,
                        metadata=a.metadata,
                        error_code=a.error_code,
                    )
                    for a in of_topic
                ],
            )
            for (name, topic_id), of_topic in _by_topic(answers)
        ],
    )


async def _offsets(question: FetchOffsets, asked: list[_Asked] | None, call: Call) -> tuple[int, list[_Answer]]:
    """The error of the whole group, and an answer for each partition asked for (or for all there are)."""
    keys, answers = _resolve(asked, call)
    by_key = {key: (topic, number) for topic, number, key in keys}
    question = msgspec.structs.replace(question, partitions=None if asked is None else tuple(by_key))
    try:
        fetched = await call.broker.groups.fetch_offsets(question)
    except RunnelError as error:
        return code_of(error), []
    for offset in fetched.offsets:
        topic = call.broker.image.topics.get(offset.partition.topic_id)
        if topic is not None:
            name = by_key[offset.partition][0].name if asked is not None else topic.name
            answers.append(_answer_of(name, offset, call))
    return 0, answers


def _resolve(asked: list[_Asked] | None, call: Call) -> tuple[list[tuple[_Asked, int, PartitionKey]], list[_Answer]]:
    """The partitions that exist, and answers for those that do not."""
    found: list[tuple[_Asked, int, PartitionKey]] = []
    missing: list[_Answer] = []
    by_id = call.version >= TOPIC_IDS_SINCE
    for topic in asked or ():
        for number in topic.numbers:
            try:
                found.append(
                    (topic, number, call.broker.topics.partition_key(topic.topic_id if by_id else topic.name, number))
                )
            except RunnelError as error:
                # A topic that is gone by name has no offsets; one asked for by an unknown id is an error.
                missing.append(_nothing(topic, number, code_of(error) if by_id else 0))
    return found, missing


def _answer_of(name: str, offset: FetchedOffset, call: Call) -> _Answer:
    key = offset.partition
    topic_id = key.topic_id if call.version >= TOPIC_IDS_SINCE else NO_TOPIC_ID
    code = code_of(offset.error)
    return _Answer(name, topic_id, key.number, offset.offset, offset.leader_epoch, offset.metadata, code)


def _nothing(topic: _Asked, number: int, code: int) -> _Answer:
    return _Answer(topic.name, topic.topic_id, number, NONE, NONE, "", code)


def _by_topic(answers: Iterable[_Answer]) -> Iterable[tuple[tuple[str, TopicId], list[_Answer]]]:
    grouped: dict[tuple[str, TopicId], list[_Answer]] = {}
    for answer in answers:
        grouped.setdefault((answer.name, answer.topic_id), []).append(answer)
    return grouped.items()
