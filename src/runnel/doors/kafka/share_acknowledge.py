# ShareAcknowledge (key 79), v1-v2.  v2 renewals (KIP-1222), which tell for how long
"""ShareAcknowledge: settle what a member of a share group had, without asking for more."""

from runnel.cluster.image import Broker
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of, text_of
from runnel.doors.kafka.share_sessions import FINAL_EPOCH, INITIAL_EPOCH, SessionKey
from runnel.doors.kafka.share_settling import leader_of, partition_code, said_of, settle_all
from runnel.model.errors import InvalidRequest, InvalidShareSessionEpoch, RunnelError
from runnel.model.ids import PartitionKey, TopicId
from runnel.wire.kafka import messages as m

Response = m.ShareAcknowledgeResponse


async def share_acknowledge(request: m.ShareAcknowledgeRequest, call: Call) -> m.ShareAcknowledgeResponse:
    try:
        if not request.group_id or not request.member_id:
            raise InvalidRequest("an acknowledgement needs a group and a member: set both")
        if request.share_session_epoch == INITIAL_EPOCH:
            raise InvalidShareSessionEpoch("an acknowledgement can't begin a share session: fetch first")
        session = call.sharing.resume(SessionKey(request.group_id, request.member_id), request.share_session_epoch)
    except RunnelError as error:
        return Response(error_code=code_of(error), error_message=text_of(error))
    settled = await settle_all(said_of(request.topics), session, call, may_renew=request.is_renew_ack)
    if request.share_session_epoch == FINAL_EPOCH:
        call.sharing.end(session)
    leaders: dict[int, Broker] = {}
    topics: dict[TopicId, list[m.ShareAcknowledgeResponse.PartitionData]] = {}
    for key, refusal in settled.items():
        topics.setdefault(key.topic_id, []).append(_answer_of(key, refusal, leaders, call))
    return Response(
        acquisition_lock_timeout_ms=call.broker.sharing.lock_ms(session.key.group_id),
        responses=[
            Response.ShareAcknowledgeTopicResponse(topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in topics.items()
        ],
        node_endpoints=[
            Response.NodeEndpoint(node_id=broker.id, host=there.host, port=there.port, rack=broker.rack)
            for broker in leaders.values()
            if (there := broker.listeners.get("kafka")) is not None
        ],
    )


def _answer_of(
    key: PartitionKey, refusal: RunnelError | None, leaders: dict[int, Broker], call: Call
) -> m.ShareAcknowledgeResponse.PartitionData:
    code = partition_code(refusal)
    leader_id, leader_epoch, leader = leader_of(key, code, call)
    if leader is not None:
        leaders[leader.id] = leader
    return Response.PartitionData(
        partition_index=key.number,
        error_code=code,
        error_message=text_of(refusal),
        current_leader=Response.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=leader_epoch),
    )
