# CreateTopics (key 19), v2-v7.  v4 defaults for partitions and replicas, v5 answers with configs, v7 topic ids
"""CreateTopics: make topics."""

from runnel.cluster.image import Topic
from runnel.cluster.topic_rules import NewTopic
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.describe_configs import topic_entries
from runnel.doors.kafka.errors import code_of, text_of
from runnel.model.errors import RunnelError, as_value
from runnel.model.ids import NO_TOPIC_ID, BrokerId
from runnel.wire.kafka import messages as m

Response = m.CreateTopicsResponse


async def create_topics(request: m.CreateTopicsRequest, call: Call) -> m.CreateTopicsResponse:
    specs = [_spec_of(topic) for topic in request.topics]
    try:
        results = await call.broker.topics.create(
            specs, validate_only=request.validate_only, timeout_ms=request.timeout_ms
        )
    except RunnelError as error:
        results = [as_value(error)] * len(specs)
    return Response(
        topics=[
            _answer_of(spec.name, result, request.validate_only, call)
            for spec, result in zip(specs, results, strict=True)
        ]
    )


def _spec_of(topic: m.CreateTopicsRequest.CreatableTopic) -> NewTopic:
    assignment = {a.partition_index: [BrokerId(broker) for broker in a.broker_ids] for a in topic.assignments}
    return NewTopic(
        topic.name,
        partitions=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignment=assignment or None,
        config={config.name: config.value or "" for config in topic.configs},
    )


def _answer_of(
    name: str, result: Topic | RunnelError, validate_only: bool, call: Call
) -> m.CreateTopicsResponse.CreatableTopicResult:
    if isinstance(result, RunnelError):
        return Response.CreatableTopicResult(
            name=name,
            error_code=code_of(result),
            error_message=text_of(result),
            num_partitions=-1,
            replication_factor=-1,
            configs=[],
        )
    partitions = call.broker.image.shown(result).partitions
    return Response.CreatableTopicResult(
        name=name,
        topic_id=NO_TOPIC_ID if validate_only else result.id,
        num_partitions=len(partitions),
        replication_factor=len(partitions[0].replicas),
        configs=[
            Response.CreatableTopicConfigs(
                name=entry.name, value=entry.value, read_only=entry.read_only, config_source=entry.source
            )
            for entry in topic_entries(result, call.broker)
        ],
    )
