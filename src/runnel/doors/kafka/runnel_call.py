# RunnelCall (key 10100), v0.  Runnel's own: a verb by its name, its values as msgpack (docs/formats/calls.md)
"""RunnelCall: what brokers and Runnel's own clients ask beyond Kafka."""

from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of
from runnel.model.errors import RunnelError
from runnel.wire.kafka import messages as m


async def runnel_call(request: m.RunnelCallRequest, call: Call) -> m.RunnelCallResponse:
    call.let_pass()  # each is on its own: one that waits keeps none from starting
    try:
        body = await call.broker.calls.answer(request.name, request.body, call.waits)
    except RunnelError as error:
        name, message = type(error).__name__, str(error)
        return m.RunnelCallResponse(error_code=code_of(error), error_name=name, error_message=message)
    return m.RunnelCallResponse(body=body)
