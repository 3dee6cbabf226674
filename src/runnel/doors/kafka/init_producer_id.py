# InitProducerId (key 22), v0-v5.  v3 a producer may ask for its next epoch (KIP-360), v4 fencing apart from epochs
"""InitProducerId: a number for an idempotent producer; with a transactional id, the right to write under it."""

from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import transaction_code
from runnel.model.errors import InvalidRequest, RunnelError
from runnel.model.ids import ProducerId
from runnel.transactions.values import Identity, InitProducer
from runnel.wire.kafka import messages as m

FENCING_SINCE = 4


async def init_producer_id(request: m.InitProducerIdRequest, call: Call) -> m.InitProducerIdResponse:
    try:
        if (request.producer_id < 0) != (request.producer_epoch < 0):
            raise InvalidRequest("a producer id and its epoch come together, or not at all")
        producer = await _identity(request, call)
    except RunnelError as error:
        code = transaction_code(error, knows_fencing=call.version >= FENCING_SINCE)
        return m.InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
    return m.InitProducerIdResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch)


async def _identity(request: m.InitProducerIdRequest, call: Call) -> Identity:
    if request.transactional_id is None:
        return Identity(await call.broker.new_producer_id(), 0)
    was = Identity(ProducerId(request.producer_id), request.producer_epoch)
    asked = InitProducer(request.transactional_id, request.transaction_timeout_ms, was)
    return await call.broker.transactions.init_producer(asked)
