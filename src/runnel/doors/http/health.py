"""Whether the broker lives, and whether it serves: for whoever starts and watches it."""

from runnel.doors.http.call import Call
from runnel.doors.http.operation import View, operation
from runnel.doors.http.problems import Stopping


class Health(View, omit_defaults=False):
    status: str
    broker: int


@operation("GET /health")
async def health(call: Call) -> Health:
    """Say that the broker lives.

    It answers as long as its loop turns: start it again if this does not answer.

        GET /health
    """
    return Health(status="alive", broker=call.broker.id)


@operation("GET /ready")
async def ready(call: Call) -> Health:
    """Say whether the broker serves.

    Send it no requests while it answers 503: it is about to stop, or the cluster has not let it in.

        GET /ready
    """
    if call.door.stopping or not call.broker.metadata.admitted:
        raise Stopping("this broker does not serve now")
    return Health(status="ready", broker=call.broker.id)
