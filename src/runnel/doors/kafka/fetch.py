# Fetch (key 1), v4-v18.  v7 sessions (KIP-227), v9 leader epochs, v12 flexible + diverging epochs, v13 topic ids
"""Fetch: read batches, with or without a session; followers have sessions of their own kind."""

from collections.abc import Iterable

from runnel.broker.fetch import Lens, Read, ReadResult
from runnel.broker.followers import Asked, Follower, FollowerSession, Limits, resumed
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of
from runnel.doors.kafka.fetch_sessions import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION,
    FetchSession,
    SessionPartition,
    Wanted,
)
from runnel.model.errors import FetchSessionNotFound, InvalidRequest, RunnelError, UnsupportedCompression, as_value
from runnel.model.ids import NO_TOPIC_ID, BrokerId, Epoch, Offset, PartitionKey, TopicId
from runnel.replica.partition import Partition
from runnel.wire.kafka import messages as m

ZSTD_SINCE = 10
FOLLOWERS_SINCE = 11  # who speaks it knows that followers can be read (KIP-392)
TOPIC_IDS_SINCE = 13
REPLICA_STATE_SINCE = 15  # a follower says in which life it is (KIP-903)
CONSUMER = -1  # the replica id of a client that is no follower
READ_COMMITTED = 1


async def fetch(request: m.FetchRequest, call: Call) -> m.FetchResponse:
    try:
        if (follower := _follower_of(request, call)) is not None:
            return await _followed(request, call, follower)
        session, wanted = _session_of(request, call)
    except RunnelError as error:
        return m.FetchResponse(error_code=code_of(error), session_id=request.session_id)
    incremental = session is not None and request.session_epoch > INITIAL_EPOCH
    results = await call.broker.fetch(
        [_read_of(partition, want, request, call) for partition, want in wanted.items()],
        call.waits,
        bytes_min=request.min_bytes,
        bytes_max=request.max_bytes,
        wait_ms=request.max_wait_ms,
    )
    answered: dict[tuple[str, TopicId], list[m.FetchResponse.PartitionData]] = {}
    for partition, result in zip(wanted, results, strict=True):
        if session is None or _has_news(session, partition, result) or not incremental:
            answered.setdefault((partition.topic, partition.topic_id), []).append(_answer_of(partition.number, result))
    return m.FetchResponse(
        session_id=session.id if session else NO_SESSION,
        responses=[
            m.FetchResponse.FetchableTopicResponse(topic=name, topic_id=topic_id, partitions=partitions)
            for (name, topic_id), partitions in answered.items()
        ],
    )


# --- followers


def _follower_of(request: m.FetchRequest, call: Call) -> Follower | None:
    state = request.replica_state
    replica = request.replica_id if state is None or call.version < REPLICA_STATE_SINCE else state.replica_id
    if replica == CONSUMER:
        return None
    if replica < CONSUMER or state is None or call.version < REPLICA_STATE_SINCE:
        raise InvalidRequest(f"replica {replica} can't follow with Fetch v{call.version}: use v{REPLICA_STATE_SINCE}")
    return Follower(BrokerId(replica), Epoch(state.replica_epoch))


async def _followed(request: m.FetchRequest, call: Call, follower: Follower) -> m.FetchResponse:
    session = _follower_session(request, call, follower)
    answers = await call.broker.followers.fetch(
        session,
        [
            Asked(
                PartitionKey(TopicId(topic.topic_id), p.partition), Offset(p.fetch_offset), p.partition_max_bytes,
                Epoch(p.current_leader_epoch), Epoch(p.last_fetched_epoch),
            )
            for topic in request.topics
            for p in topic.partitions
        ],
        [
            PartitionKey(TopicId(topic.topic_id), number)
            for topic in request.forgotten_topics_data
            for number in topic.partitions
        ],
        Limits(request.max_bytes, request.max_wait_ms),
        call.waits,
    )  # fmt: skip
    topics: dict[TopicId, list[m.FetchResponse.PartitionData]] = {}
    for key, result in answers:
        topics.setdefault(key.topic_id, []).append(_answer_of(key.number, result))
    return m.FetchResponse(
        session_id=session.id,
        responses=[
            m.FetchResponse.FetchableTopicResponse(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics.items()
        ],
    )


def _follower_session(request: m.FetchRequest, call: Call, follower: Follower) -> FollowerSession:
    """The follower's session on this connection."""
    connection = call.connection
    if request.session_epoch == INITIAL_EPOCH:
        connection.end_session()
        connection.session = call.broker.followers.open(follower)
        return connection.session
    session = resumed(connection.session, request.session_id, request.session_epoch)
    if session.follower != follower:
        raise InvalidRequest(f"the session belongs to {session.follower}, not to {follower}")
    return session


# --- readers


def _session_of(request: m.FetchRequest, call: Call) -> tuple[FetchSession | None, dict[SessionPartition, Wanted]]:
    """What is to be read: all of it said here, or a session with what changed."""
    sessions = call.fetch_sessions
    named = _named(request)
    _check_count(len(named), call)
    if request.session_epoch == FINAL_EPOCH:
        sessions.end(request.session_id)
        return None, named
    if request.session_epoch == INITIAL_EPOCH:
        sessions.end(request.session_id)
        session = sessions.create(named) if named and _all_known(named, call) else None
        return session, named
    session = sessions.resume(request.session_id, request.session_epoch)
    _check_count(session.count_with(named), call)
    if not _all_known(named, call):
        sessions.end(session.id)
        raise FetchSessionNotFound("the fetch names partitions that are not known here: say all of them again")
    for topic in request.forgotten_topics_data:
        for number in topic.partitions:
            gone = SessionPartition(topic.topic, TopicId(topic.topic_id), number)
            session.wanted.pop(gone, None)
            session.told.pop(gone, None)
    session.wanted.update(named)
    return session, dict(session.wanted)


def _check_count(count: int, call: Call) -> None:
    most = call.broker.config.fetch_partitions_max
    if count > most:
        call.broker.bounds.met["fetch-partitions-max"] += 1
        raise InvalidRequest(f"a fetch of {count} partitions; allowed are {most} (fetch-partitions-max)")


def _all_known(named: Iterable[SessionPartition], call: Call) -> bool:
    """Whether each partition's topic is there. A session remembers no others: a client can make up any number."""
    names, ids = call.broker.image.names, call.broker.image.topics
    return all(one.topic in names if one.topic_id == NO_TOPIC_ID else one.topic_id in ids for one in named)


def _named(request: m.FetchRequest) -> dict[SessionPartition, Wanted]:
    return {
        SessionPartition(topic.topic, TopicId(topic.topic_id), p.partition): Wanted(
            p.fetch_offset, p.partition_max_bytes, p.current_leader_epoch, p.last_fetched_epoch
        )
        for topic in request.topics
        for p in topic.partitions
    }


def _read_of(partition: SessionPartition, want: Wanted, request: m.FetchRequest, call: Call) -> Read:
    by_id = call.version >= TOPIC_IDS_SINCE or partition.topic_id != NO_TOPIC_ID
    found: Partition | RunnelError
    lens: Lens | None = None
    try:
        found, lens = call.broker.views.find_readable(
            partition.topic_id if by_id else partition.topic, partition.number
        )  # fmt: skip
        if call.version < ZSTD_SINCE and found.config.compression_type == "zstd":
            raise UnsupportedCompression(f"{found.name} is compressed by zstd: it needs Fetch v{ZSTD_SINCE}")
    except RunnelError as error:
        found = as_value(error)
    return Read(
        found, Offset(want.offset), want.bytes_max, Epoch(want.leader_epoch), Epoch(want.last_epoch),
        call.version < FOLLOWERS_SINCE, request.rack_id, request.isolation_level == READ_COMMITTED, lens,
    )  # fmt: skip


def _has_news(session: FetchSession, partition: SessionPartition, result: ReadResult) -> bool:
    if result.records:
        session.serve_last(partition)
    notable = bool(result.records) or any(
        each is not None for each in (result.error, result.divergence, result.read_from)
    )
    told = (*_ends(result), result.start_offset)
    return session.has_news(partition, told, notable)


def _ends(result: ReadResult) -> tuple[int, int]:
    """The high watermark and the last stable offset, as the reader is told them."""
    if result.shown_end is not None:
        return result.shown_end, result.shown_end
    return result.high_watermark, result.last_stable_offset


def _answer_of(number: int, result: ReadResult) -> m.FetchResponse.PartitionData:
    high_watermark, last_stable_offset = _ends(result)
    answer = m.FetchResponse.PartitionData(
        partition_index=number,
        high_watermark=high_watermark,
        last_stable_offset=last_stable_offset,
        log_start_offset=result.start_offset,
        records=result.records,
    )
    if result.aborted is not None:
        answer.aborted_transactions = [
            m.FetchResponse.AbortedTransaction(producer_id=each.producer_id, first_offset=each.first_offset)
            for each in result.aborted
        ]
    if result.error is not None:
        answer.error_code = code_of(result.error)
    if result.read_from is not None:
        answer.preferred_read_replica = result.read_from
    if result.divergence is not None:
        answer.diverging_epoch = m.FetchResponse.EpochEndOffset(
            epoch=result.divergence.epoch, end_offset=result.divergence.end_offset
        )
    return answer
