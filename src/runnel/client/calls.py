"""Calls to brokers, beyond what Kafka has requests for: a verb of model/calls.py as a request, its answer as a value.

Any broker answers the verbs of users.
"""

from typing import TypeVar

import msgspec

from runnel.client.cluster import Cluster, Node
from runnel.client.errors import error_of
from runnel.model.calls import Verb
from runnel.model.errors import RetriableError, RunnelError, error_named
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api

Q = TypeVar("Q")
A = TypeVar("A")


def question(verb: Verb[Q, A], request: Q) -> m.RunnelCallRequest:
    """A call as it is sent."""
    return m.RunnelCallRequest(name=verb.name, body=msgspec.msgpack.encode(request))


def result(verb: Verb[Q, A], answer: m.RunnelCallResponse, broker: object) -> A:
    """What the answer to a call says, or the error that it tells of."""
    if answer.error_code:
        raise _error(answer, verb.name, str(broker))
    return msgspec.msgpack.decode(answer.body, type=verb.answer)


async def call(
    cluster: Cluster, verb: Verb[Q, A], request: Q, *, timeout_ms: int | None = None, lane: str = "main"
) -> A:
    """Ask any broker, as soon as one can be reached. What may have been done when the connection broke is not asked
    again."""
    node = await cluster.persist(lambda: cluster.any_node(lane))
    return await _ask(cluster, node, verb, request, timeout_ms)


async def call_until_done(cluster: Cluster, verb: Verb[Q, A], request: Q, *, timeout_ms: int | None = None) -> A:
    """The same for what can be asked twice without harm: again, until it succeeds, fails for good, or time is up.

    A broker that hangs has half of the time at most, so that another one can be asked.
    """
    timeout_ms = timeout_ms or cluster.settings.retry_timeout_ms
    once_ms = max(1, min(cluster.settings.request_timeout_ms, timeout_ms // 2))
    return await cluster.persist(lambda: attempt(cluster, verb, request, timeout_ms=once_ms), timeout_ms=timeout_ms)


async def attempt(
    cluster: Cluster, verb: Verb[Q, A], request: Q, *, timeout_ms: int | None = None, lane: str = "main"
) -> A:
    """Ask the first broker that can be reached now, once; for those who say themselves when to ask again."""
    return await _ask(cluster, await cluster.any_node(lane), verb, request, timeout_ms)


async def _ask(cluster: Cluster, node: Node, verb: Verb[Q, A], request: Q, timeout_ms: int | None) -> A:
    try:
        asked = question(verb, request)
        return result(verb, await node.ask(Api.RUNNEL_CALL, asked, m.RunnelCallResponse, timeout_ms=timeout_ms), node)
    except RetriableError:
        cluster.avoid(node)  # another broker may be able to do it
        raise


def _error(answer: m.RunnelCallResponse, name: str, broker: str) -> RunnelError:
    """Of the same class as it was raised there, or of the one that its code stands for."""
    same = error_named(answer.error_name, answer.error_message)
    return same or error_of(answer.error_code, action=f"call {name}", broker=broker, message=answer.error_message)
