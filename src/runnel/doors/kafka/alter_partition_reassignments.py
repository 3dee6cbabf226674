# AlterPartitionReassignments (key 45), v0-v1.  v1 can forbid that the number of replicas changes (KIP-860)
"""AlterPartitionReassignments: move replicas to other brokers, or take that back (KIP-455)."""

from runnel.broker import admin
from runnel.cluster.reassignment import Move
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of, text_of
from runnel.model.errors import RunnelError
from runnel.model.ids import BrokerId
from runnel.wire.kafka import messages as m

Response = m.AlterPartitionReassignmentsResponse


async def alter_partition_reassignments(
    request: m.AlterPartitionReassignmentsRequest, call: Call
) -> m.AlterPartitionReassignmentsResponse:
    moves = [
        Move(topic.name, asked.partition_index, _target_of(asked))
        for topic in request.topics
        for asked in topic.partitions
    ]
    factor_may_change = request.allow_replication_factor_change
    answer = Response(allow_replication_factor_change=factor_may_change)
    try:
        errors = iter(await admin.reassign(call.broker, moves, factor_may_change=factor_may_change))
    except RunnelError as error:
        answer.error_code, answer.error_message = code_of(error), text_of(error)
        return answer
    answer.responses = [
        Response.ReassignableTopicResponse(
            name=topic.name, partitions=[_answer_of(asked.partition_index, next(errors)) for asked in topic.partitions]
        )
        for topic in request.topics
    ]
    return answer


def _target_of(asked: m.AlterPartitionReassignmentsRequest.ReassignablePartition) -> tuple[BrokerId, ...] | None:
    return None if asked.replicas is None else tuple(map(BrokerId, asked.replicas))


def _answer_of(
    number: int, error: RunnelError | None
) -> m.AlterPartitionReassignmentsResponse.ReassignablePartitionResponse:
    return Response.ReassignablePartitionResponse(
        partition_index=number, error_code=code_of(error), error_message=text_of(error)
    )
