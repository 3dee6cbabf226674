# InitProducerId (key 22), v0-v5.  v3 a producer may ask for its next epoch (KIP-360), v4 fencing apart from epochs
"""InitProducerId: a number for an idempotent producer."""

from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of
from runnel.model.errors import InvalidRequest, RunnelError, UnsupportedByRunnel
from runnel.wire.kafka import messages as m


async def init_producer_id(request: m.InitProducerIdRequest, call: Call) -> m.InitProducerIdResponse:
    try:
        if request.transactional_id is not None:
            raise UnsupportedByRunnel("transactions are not supported yet: leave transactional.id empty")
        if (request.producer_id < 0) != (request.producer_epoch < 0):
            raise InvalidRequest("a producer id and its epoch come together, or not at all")
        producer_id = await call.broker.new_producer_id()
    except RunnelError as error:
        return m.InitProducerIdResponse(error_code=code_of(error), producer_id=-1, producer_epoch=-1)
    return m.InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
