# ShareFetch (key 78), v1-v2.  v2 exact limits of messages (KIP-1206), renewals (KIP-1222)
"""ShareFetch: settle what a member of a share group had, then lease it more."""

from runnel.broker.sharing import Limits, Share, ShareFetchAsked
from runnel.cluster.image import Broker
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of, text_of
from runnel.doors.kafka.share_sessions import FINAL_EPOCH, INITIAL_EPOCH, SessionKey, ShareSession
from runnel.doors.kafka.share_settling import leader_of, partition_code, said_of, settle_all
from runnel.model.errors import InvalidRequest, RunnelError
from runnel.model.ids import PartitionKey, TopicId
from runnel.wire.kafka import messages as m

BATCH_OPTIMIZED = 0  # the acquire mode in which whole batches are better than exact numbers of messages
DELIVERY_COUNT_MAX = 2**15 - 1
NOTHING = Share()
Response = m.ShareFetchResponse


async def share_fetch(request: m.ShareFetchRequest, call: Call) -> m.ShareFetchResponse:
    try:
        session = _session_of(request, call)
    except RunnelError as error:
        return Response(error_code=code_of(error), error_message=text_of(error))
    settled = await settle_all(said_of(request.topics), session, call, may_renew=request.is_renew_ack)
    shares: dict[PartitionKey, Share] = {}
    if request.share_session_epoch == FINAL_EPOCH:
        call.sharing.end(session)
    elif request.max_records > 0:
        shares = await _fetched(request, session, call)
    leaders: dict[int, Broker] = {}
    topics: dict[TopicId, list[m.ShareFetchResponse.PartitionData]] = {}
    for key in dict.fromkeys([*settled, *shares]):
        answer = _answer_of(key, shares.get(key, NOTHING), settled.get(key), leaders, call)
        topics.setdefault(key.topic_id, []).append(answer)
    return Response(
        acquisition_lock_timeout_ms=call.broker.sharing.lock_ms(session.key.group_id),
        responses=[
            Response.ShareFetchableTopicResponse(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics.items()
        ],
        node_endpoints=[
            Response.NodeEndpoint(node_id=broker.id, host=there.host, port=there.port, rack=broker.rack)
            for broker in leaders.values()
            if (there := broker.listeners.get("kafka")) is not None
        ],
    )


def _session_of(request: m.ShareFetchRequest, call: Call) -> ShareSession:
    """The session that a request is part of, with what it changes about it."""
    if not request.group_id or not request.member_id:
        raise InvalidRequest("a share fetch needs a group and a member: set both")
    key = SessionKey(request.group_id, request.member_id)
    if request.share_session_epoch == INITIAL_EPOCH:
        if any(said_of(request.topics).values()):
            raise InvalidRequest("nothing can be acknowledged in the first request of a share session: fetch first")
        session = call.sharing.begin(key)
    else:
        session = call.sharing.resume(key, request.share_session_epoch)
    session.wanted.update(dict.fromkeys(said_of(request.topics)))
    for topic in request.forgotten_topics_data:
        for number in topic.partitions:
            session.wanted.pop(PartitionKey(TopicId(topic.topic_id), number), None)
    return session


async def _fetched(request: m.ShareFetchRequest, session: ShareSession, call: Call) -> dict[PartitionKey, Share]:
    wanted = list(session.wanted)
    session.touched.update(wanted)
    limits = Limits(
        request.max_records, request.max_bytes, request.max_wait_ms,
        whole_batches=request.share_acquire_mode == BATCH_OPTIMIZED,
    )  # fmt: skip
    asked = ShareFetchAsked(session.key.group_id, session.owner, limits, (call.waits, session.waits))
    shares = await call.broker.sharing.fetch(asked, wanted)
    for key, share in shares.items():
        if share.grants:
            session.serve_last(key)
    return shares


def _answer_of(
    key: PartitionKey, share: Share, refusal: RunnelError | None, leaders: dict[int, Broker], call: Call
) -> m.ShareFetchResponse.PartitionData:
    code, acknowledge_code = partition_code(share.error), partition_code(refusal)
    leader_id, leader_epoch, leader = leader_of(key, code or acknowledge_code, call)
    if leader is not None:
        leaders[leader.id] = leader
    return Response.PartitionData(
        partition_index=key.number,
        error_code=code,
        error_message=text_of(share.error),
        acknowledge_error_code=acknowledge_code,
        acknowledge_error_message=text_of(refusal),
        current_leader=Response.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=leader_epoch),
        records=share.records,
        acquired_records=[
            Response.AcquiredRecords(
                first_offset=first, last_offset=last, delivery_count=min(attempt, DELIVERY_COUNT_MAX)
            )
            for first, last, attempt in share.grants
        ],
    )
