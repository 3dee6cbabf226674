# CreatePartitions (key 37), v0-v3.  v2 flexible
"""CreatePartitions: let topics grow."""

from runnel.cluster.topic_rules import NewPartitions
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of, text_of
from runnel.model.errors import RunnelError, as_value
from runnel.model.ids import BrokerId
from runnel.wire.kafka import messages as m


async def create_partitions(request: m.CreatePartitionsRequest, call: Call) -> m.CreatePartitionsResponse:
    specs = [
        NewPartitions(
            topic.name,
            topic.count,
            None if topic.assignments is None else [[BrokerId(b) for b in a.broker_ids] for a in topic.assignments],
        )
        for topic in request.topics
    ]
    try:
        results = await call.broker.topics.create_partitions(
            specs, validate_only=request.validate_only, timeout_ms=request.timeout_ms
        )
    except RunnelError as error:
        results = [as_value(error)] * len(specs)
    errors = [result if isinstance(result, RunnelError) else None for result in results]
    return m.CreatePartitionsResponse(
        results=[
            m.CreatePartitionsResponse.CreatePartitionsTopicResult(
                name=spec.name, error_code=code_of(error), error_message=text_of(error)
            )
            for spec, error in zip(specs, errors, strict=True)
        ]
    )
