"""Requests that the controller alone can do: any broker takes them, and hands them on.

Rule 1: a request goes to the controller as it came, in the same version, and its answer goes back as it came.
Rule 2: what a broker hands on is not handed on again: two brokers that take each other for the controller would never
        end. Who asked is told NOT_CONTROLLER then, and asks again.
"""

from typing import Any, Final

from runnel.broker.forwarding import TIMEOUT_MS
from runnel.broker.peers import NAME as PEER
from runnel.broker.seen import WAIT_MS_MAX
from runnel.doors.kafka.call import Answer, Call
from runnel.model.errors import RetriableError
from runnel.wire.kafka import messages
from runnel.wire.kafka.apis import API, Api

CONTROLLERS: Final = frozenset(
    {
        Api.CREATE_TOPICS,
        Api.DELETE_TOPICS,
        Api.CREATE_PARTITIONS,
        Api.ALTER_CONFIGS,
        Api.INCREMENTAL_ALTER_CONFIGS,
        Api.ELECT_LEADERS,
        Api.ALTER_PARTITION_REASSIGNMENTS,
        Api.UNREGISTER_BROKER,
        Api.LIST_PARTITION_REASSIGNMENTS,  # who began a move elsewhere must not be told that there is none
    }
)


def relayed(api: Api, answer: Answer) -> Answer:
    """Answer here on the controller, and through it elsewhere."""
    reply: type[Any] = getattr(messages, f"{API[api].name}Response")

    async def handed_on(request: Any, call: Call) -> Any:
        forwarding = call.broker.forwarding
        if forwarding.is_ours or call.client_id.startswith(PEER):
            return await answer(request, call)
        try:
            return await forwarding.ask_controller(
                api, request, reply, timeout_ms=_patience_ms(request), version_max=call.version
            )
        except RetriableError:
            return await answer(request, call)  # which says, in the words of this API, that we are not the controller

    return handed_on


def _patience_ms(request: Any) -> int:
    """The controller may take as long as the request allows, beyond what it takes to ask it."""
    return TIMEOUT_MS + min(max(getattr(request, "timeout_ms", 0), 0), WAIT_MS_MAX)
