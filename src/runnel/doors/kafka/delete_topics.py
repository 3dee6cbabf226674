# DeleteTopics (key 20), v1-v6.  v5 error texts, v6 by id
"""DeleteTopics: remove topics and their data."""

from uuid import UUID

from runnel.cluster.image import Topic
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of, text_of
from runnel.model.errors import InvalidRequest, RunnelError, as_value
from runnel.model.ids import NO_TOPIC_ID, TopicId
from runnel.wire.kafka import messages as m

BY_ID_SINCE = 6


async def delete_topics(request: m.DeleteTopicsRequest, call: Call) -> m.DeleteTopicsResponse:
    if call.version >= BY_ID_SINCE:
        asked = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        asked = [(name, NO_TOPIC_ID) for name in request.topic_names]
    which = [TopicId(topic_id) if name is None else name for name, topic_id in asked]
    try:
        if any((name is None) == (topic_id == NO_TOPIC_ID) for name, topic_id in asked):
            raise InvalidRequest("a topic to delete is named either by its name or by its id")
        results = await call.broker.topics.delete(which, timeout_ms=request.timeout_ms)
    except RunnelError as error:
        results = [as_value(error)] * len(asked)
    return m.DeleteTopicsResponse(
        responses=[_answer_of(name, topic_id, result) for (name, topic_id), result in zip(asked, results, strict=True)]
    )


def _answer_of(
    name: str | None, topic_id: UUID, result: Topic | RunnelError
) -> m.DeleteTopicsResponse.DeletableTopicResult:
    if isinstance(result, RunnelError):
        return m.DeleteTopicsResponse.DeletableTopicResult(
            name=name, topic_id=topic_id, error_code=code_of(result), error_message=text_of(result)
        )
    return m.DeleteTopicsResponse.DeletableTopicResult(name=result.name, topic_id=result.id)
