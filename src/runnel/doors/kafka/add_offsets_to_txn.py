# AddOffsetsToTxn (key 25), v0-v4.  v2 fencing apart from epochs, v3 flexible
"""AddOffsetsToTxn: let the offsets of a group take part in a transaction."""

from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import transaction_code
from runnel.model.errors import RunnelError
from runnel.model.ids import ProducerId
from runnel.transactions.values import Identity
from runnel.wire.kafka import messages as m

FENCING_SINCE = 2


async def add_offsets_to_txn(request: m.AddOffsetsToTxnRequest, call: Call) -> m.AddOffsetsToTxnResponse:
    producer = Identity(ProducerId(request.producer_id), request.producer_epoch)
    try:
        await call.broker.transactions.add_offsets(request.transactional_id, producer, request.group_id)
    except RunnelError as error:
        code = transaction_code(error, knows_fencing=call.version >= FENCING_SINCE)
        return m.AddOffsetsToTxnResponse(error_code=code)
    return m.AddOffsetsToTxnResponse()
