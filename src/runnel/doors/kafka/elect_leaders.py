# ElectLeaders (key 43), v0-v2.  v1 unclean elections (KIP-460), v2 flexible
"""ElectLeaders: give partitions their preferred leader, or any that is left."""

from runnel.broker import admin
from runnel.broker.admin import Place
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of, text_of
from runnel.model.errors import InvalidRequest, RunnelError
from runnel.wire.kafka import messages as m

PREFERRED, UNCLEAN = 0, 1

Response = m.ElectLeadersResponse


async def elect_leaders(request: m.ElectLeadersRequest, call: Call) -> m.ElectLeadersResponse:
    places = None
    if request.topic_partitions is not None:
        places = [Place(topic.topic, number) for topic in request.topic_partitions for number in topic.partitions]
    try:
        if request.election_type not in (PREFERRED, UNCLEAN):
            raise InvalidRequest(f"there is no election of type {request.election_type}: 0 is preferred, 1 is unclean")
        results = await admin.elect_leaders(call.broker, places, unclean=request.election_type == UNCLEAN)
    except RunnelError as error:
        if call.version == 0:  # it has no place for an error of the whole
            return Response(replica_election_results=_by_topic([(place, error) for place in places or ()]))
        return Response(error_code=code_of(error))
    return Response(replica_election_results=_by_topic(results))


def _by_topic(results: list[tuple[Place, RunnelError | None]]) -> list[m.ElectLeadersResponse.ReplicaElectionResult]:
    topics: dict[str, list[m.ElectLeadersResponse.PartitionResult]] = {}
    for place, error in results:
        topics.setdefault(place.topic, []).append(
            Response.PartitionResult(partition_id=place.number, error_code=code_of(error), error_message=text_of(error))
        )
    return [Response.ReplicaElectionResult(topic=topic, partition_result=parts) for topic, parts in topics.items()]
