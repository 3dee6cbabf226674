# DeleteShareGroupOffsets (key 92), v0
"""DeleteShareGroupOffsets: let a share group forget where it was in topics."""

from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of, text_of
from runnel.model.errors import RunnelError, UnknownTopic
from runnel.model.ids import NO_TOPIC_ID
from runnel.wire.kafka import messages as m

Response = m.DeleteShareGroupOffsetsResponse
Topic = m.DeleteShareGroupOffsetsResponse.DeleteShareGroupOffsetsResponseTopic


async def delete_share_group_offsets(
    request: m.DeleteShareGroupOffsetsRequest, call: Call
) -> m.DeleteShareGroupOffsetsResponse:
    names = call.broker.image.names
    asked = [topic.topic_name for topic in request.topics]
    try:
        await call.broker.share_offsets.delete(request.group_id, [names[name] for name in asked if name in names])
    except RunnelError as error:
        return Response(error_code=code_of(error), error_message=text_of(error))
    return Response(
        responses=[
            Topic(topic_name=name, topic_id=names.get(name, NO_TOPIC_ID), error_code=code, error_message=text)
            for name, code, text in ((name, *_verdict(name, name in names)) for name in asked)
        ]
    )


def _verdict(name: str, known: bool) -> tuple[int, str | None]:
    error = None if known else UnknownTopic(f"topic {name!r} does not exist")
    return code_of(error), text_of(error)
