# ListPartitionReassignments (key 46), v0
"""ListPartitionReassignments: the partitions whose replicas are moving (KIP-455)."""

from runnel.broker import admin
from runnel.broker.admin import Place
from runnel.doors.kafka.call import Call
from runnel.wire.kafka import messages as m

Response = m.ListPartitionReassignmentsResponse


async def list_partition_reassignments(
    request: m.ListPartitionReassignmentsRequest, call: Call
) -> m.ListPartitionReassignmentsResponse:
    places = None
    if request.topics is not None:
        places = [Place(topic.name, number) for topic in request.topics for number in topic.partition_indexes]
    topics: dict[str, list[m.ListPartitionReassignmentsResponse.OngoingPartitionReassignment]] = {}
    for place, partition in admin.reassignments(call.broker, places):
        topics.setdefault(place.topic, []).append(
            Response.OngoingPartitionReassignment(
                partition_index=place.number,
                replicas=list(partition.replicas),
                adding_replicas=list(partition.adding),
                removing_replicas=list(partition.removing),
            )
        )
    return Response(
        topics=[Response.OngoingTopicReassignment(name=name, partitions=parts) for name, parts in topics.items()]
    )
