# EndTxn (key 26), v0-v5.  v2 fencing apart from epochs, v3 flexible, v4 TRANSACTION_ABORTABLE, v5 next epoch (KIP-890)
"""EndTxn: commit or abort a transaction."""

from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import transaction_code
from runnel.model.errors import RunnelError
from runnel.model.ids import ProducerId
from runnel.transactions.values import EndTransaction, Identity
from runnel.wire.kafka import messages as m

FENCING_SINCE = 2
ABORTABLE_SINCE = 4
BUMPS_SINCE = 5


async def end_txn(request: m.EndTxnRequest, call: Call) -> m.EndTxnResponse:
    asked = EndTransaction(
        request.transactional_id,
        Identity(ProducerId(request.producer_id), request.producer_epoch),
        request.committed,
        bumps=call.version >= BUMPS_SINCE,
    )
    try:
        producer = await call.broker.transactions.end(asked)
    except RunnelError as error:
        code = transaction_code(
            error, knows_fencing=call.version >= FENCING_SINCE, knows_abortable=call.version >= ABORTABLE_SINCE
        )
        return m.EndTxnResponse(error_code=code, producer_id=-1, producer_epoch=-1)
    return m.EndTxnResponse(producer_id=producer.producer_id, producer_epoch=producer.epoch)
