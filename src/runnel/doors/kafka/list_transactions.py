# ListTransactions (key 66), v0-v2.  v1 filter by duration, v2 by a pattern of transactional ids
"""ListTransactions: all transactional ids that this broker keeps."""

from runnel.broker.transactions import unknown_states
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of
from runnel.model.errors import RunnelError
from runnel.transactions.values import ListTransactions
from runnel.wire.kafka import messages as m

Response = m.ListTransactionsResponse


async def list_transactions(request: m.ListTransactionsRequest, call: Call) -> m.ListTransactionsResponse:
    asked = ListTransactions(tuple(request.state_filters), tuple(request.producer_id_filters), request.duration_filter)
    try:
        found = await call.broker.transactions.list(asked, request.transactional_id_pattern or "")
    except RunnelError as error:
        return Response(error_code=code_of(error))
    return Response(
        unknown_state_filters=unknown_states(request.state_filters),
        transaction_states=[
            Response.TransactionState(
                transactional_id=each.transactional_id, producer_id=each.producer_id, transaction_state=each.state.label
            )
            for each in found
        ],
    )
