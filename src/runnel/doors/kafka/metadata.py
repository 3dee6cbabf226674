# Metadata (key 3), v0-v13.  v1 null: all topics, v4 auto-creation, v5 offline replicas, v9 flexible, v10 ids, v12 by id
"""Metadata: brokers, topics and who leads their partitions.

Rule: a topic that is missing only because it can't be created now has no leader yet (LEADER_NOT_AVAILABLE): clients ask
      again. The rest of the answer does not wait for it for long.
"""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from runnel.cluster.image import NO_LEADER, Image, Topic
from runnel.doors.kafka.authorized_operations import ON_CLUSTER, ON_TOPIC, operations
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of
from runnel.model.errors import (
    InvalidRequest,
    InvalidTopicName,
    LeaderNotAvailable,
    RetriableError,
    RunnelError,
    UnknownTopic,
    ViewSourceGone,
    as_value,
)
from runnel.model.ids import NO_TOPIC_ID, BrokerId, TopicId
from runnel.wire.kafka import messages as m

ALWAYS_CREATES_BELOW = 4  # older clients can't say that they do not want a topic created
BY_ID_SINCE = 12
CREATE_MS = 5_000  # for topics that are missing: clients wait for what they ask about others meanwhile


async def metadata(request: m.MetadataRequest, call: Call) -> m.MetadataResponse:
    # v0 asks for all topics with an empty list, later versions with null.
    everything = request.topics is None or (call.version == 0 and not request.topics)
    if everything:
        about = _about(request, call, {})
        topics: Iterable[m.MetadataResponse.MetadataResponseTopic] = [
            _described(topic, about) for topic in call.broker.image.topics.values()
        ]
    else:
        late = await _create_missing(request, call)
        about = _about(request, call, late)
        topics = [_answer_of(asked, about) for asked in request.topics or ()]
    image = call.broker.image
    return m.MetadataResponse(
        brokers=_brokers(call),
        cluster_id=image.cluster_id,
        controller_id=image.controller.broker if image.controller else NO_LEADER,
        topics=list(topics),
        cluster_authorized_operations=operations(ON_CLUSTER, asked=request.include_cluster_authorized_operations),
    )


async def _create_missing(request: m.MetadataRequest, call: Call) -> dict[str, LeaderNotAvailable]:
    """Create topics that are not there, if this broker is set up to; those that may be there if it is tried again."""
    allowed = request.allow_auto_topic_creation or call.version < ALWAYS_CREATES_BELOW
    if not allowed or not call.broker.config.auto_create_topics:
        return {}
    names = [asked.name for asked in request.topics or () if asked.name and asked.topic_id == NO_TOPIC_ID]
    failed: dict[str, RunnelError]
    try:
        failed = await call.broker.topics.create_missing_topics(names, timeout_ms=CREATE_MS)
    except RetriableError as error:
        failed = dict.fromkeys(names, as_value(error))
    return {
        name: LeaderNotAvailable(f"topic {name!r} could not be created now, ask again: {error}")
        for name, error in failed.items()
        if isinstance(error, RetriableError)
    }


def _brokers(call: Call) -> list[m.MetadataResponse.MetadataResponseBroker]:
    alive = [broker for broker in call.broker.image.brokers.values() if broker.alive]
    return [
        m.MetadataResponse.MetadataResponseBroker(
            node_id=broker.id,
            host=broker.listeners["kafka"].host,
            port=broker.listeners["kafka"].port,
            rack=broker.rack,
        )
        for broker in (*alive, *call.broker.departed.beside(call.broker.image))
    ]


def alive_brokers(image: Image) -> frozenset[BrokerId]:
    """The brokers that clients can talk to; one that is still starting is not among them."""
    return frozenset(broker.id for broker in image.brokers.values() if broker.alive)


class _About(NamedTuple):
    """Facts that hold for all topics of one answer."""

    call: Call
    alive: frozenset[BrokerId]
    operations: int  # that are authorized
    late: Mapping[str, LeaderNotAvailable]  # topics that are not there yet


def _about(request: m.MetadataRequest, call: Call, late: Mapping[str, LeaderNotAvailable]) -> _About:
    told = operations(ON_TOPIC, asked=request.include_topic_authorized_operations)
    return _About(call, alive_brokers(call.broker.image), told, late)


def _answer_of(
    asked: m.MetadataRequest.MetadataRequestTopic, about: _About
) -> m.MetadataResponse.MetadataResponseTopic:
    call = about.call
    try:
        if asked.topic_id != NO_TOPIC_ID and call.version < BY_ID_SINCE:
            raise InvalidRequest(f"topics can be asked for by id since v{BY_ID_SINCE}, this is v{call.version}")
        if asked.topic_id != NO_TOPIC_ID:  # it decides; Java 4.3 sends "" beside it
            return _described(call.broker.image.topic_with_id(TopicId(asked.topic_id)), about)
        if asked.name is None:
            raise InvalidTopicName("a topic was asked for by neither name nor id")
        call.broker.topics.check_name(asked.name)
        return _described(call.broker.image.topic_named(asked.name), about)
    except RunnelError as problem:
        missing = isinstance(problem, UnknownTopic)
        error = about.late.get(asked.name or "", as_value(problem)) if missing else as_value(problem)
        by_id = asked.topic_id != NO_TOPIC_ID and call.version >= BY_ID_SINCE
        name = None if by_id else asked.name or ""  # older versions have no null
        return m.MetadataResponse.MetadataResponseTopic(
            error_code=code_of(error), name=name, topic_id=asked.topic_id, topic_authorized_operations=about.operations
        )


def _described(topic: Topic, about: _About) -> m.MetadataResponse.MetadataResponseTopic:
    call, alive = about.call, about.alive
    leaderless = code_of(LeaderNotAvailable())
    try:
        partitions, gone = call.broker.image.shown(topic).partitions, None
    except ViewSourceGone as error:
        partitions, gone = (), as_value(error)
    return m.MetadataResponse.MetadataResponseTopic(
        error_code=code_of(gone),
        name=topic.name,
        topic_id=topic.id,
        is_internal=call.broker.topics.is_internal(topic.name),
        partitions=[
            m.MetadataResponse.MetadataResponsePartition(
                error_code=0 if partition.leader in alive else leaderless,
                partition_index=number,
                leader_id=partition.leader if partition.leader in alive else NO_LEADER,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                offline_replicas=[replica for replica in partition.replicas if replica not in alive],
            )
            for number, partition in enumerate(partitions)
        ],
        topic_authorized_operations=about.operations,
    )
