"""Whether the broker lives, and whether it serves: for whoever starts and watches it."""

from typing import Final

from msgspec import UNSET, UnsetType

from runnel.doors.http.call import Call
from runnel.doors.http.operation import View, operation
from runnel.doors.http.problems import NotServing, Stopping

TOLD_MAX: Final = 100  # shards that are named in one answer


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


class WaitingShard(View):
    """A part of the broker's own state that can't be asked now, though nothing is wrong with the broker."""

    shard: str
    why: str


class Readiness(View):
    status: str
    broker: int
    waiting: list[WaitingShard] | UnsetType = UNSET  # left out if there are none


@operation("GET /ready")
async def ready(call: Call) -> Readiness:
    """Say whether the broker serves.

    Send it no requests while it answers 503: it is about to stop, the cluster has not let it in, or it can't read a
    part of the state that it keeps for groups, transactions, queues, schedules, idempotency keys or users. The answer
    names each such part and says why. Parts that are being read, or need other brokers, are named in `waiting`.

        GET /ready
    """
    if call.door.stopping or not call.broker.metadata.admitted:
        raise Stopping("this broker does not serve now")
    unserved = call.broker.unserved()
    if failing := [f"{shard.name}: {shard.why}" for shard in unserved if shard.fails]:
        raise NotServing("this broker does not serve " + "; ".join(failing[:TOLD_MAX]))
    waiting = [WaitingShard(shard=shard.name, why=shard.why) for shard in unserved[:TOLD_MAX]]
    return Readiness(status="ready", broker=call.broker.id, waiting=waiting or UNSET)
