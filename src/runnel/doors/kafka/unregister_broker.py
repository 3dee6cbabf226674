# UnregisterBroker (key 64), v0
"""UnregisterBroker: a broker that is gone for good counts no longer among the brokers of the cluster (KIP-631)."""

from runnel.broker import admin
from runnel.doors.kafka.call import Call
from runnel.doors.kafka.errors import code_of, text_of
from runnel.model.errors import RunnelError
from runnel.model.ids import BrokerId
from runnel.wire.kafka import messages as m


async def unregister_broker(request: m.UnregisterBrokerRequest, call: Call) -> m.UnregisterBrokerResponse:
    try:
        await admin.unregister(call.broker, BrokerId(request.broker_id))
    except RunnelError as error:
        return m.UnregisterBrokerResponse(error_code=code_of(error), error_message=text_of(error))
    return m.UnregisterBrokerResponse()
