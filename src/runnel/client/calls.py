"""Calls to brokers, beyond what Kafka has requests for: a verb of model/calls.py as a request, its answer as a value.

Any broker answers the verbs of users.
"""

from typing import TypeVar

import msgspec

from runnel.client.cluster import Cluster
from runnel.client.errors import error_of
from runnel.model.calls import Verb
from runnel.model.errors import RunnelError, error_named
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api

Q = TypeVar("Q")
A = TypeVar("A")


def question(verb: Verb[Q, A], request: Q) -> m.RunnelCallRequest:
    """A call as it is sent."""
    return m.RunnelCallRequest(name=verb.name, body=msgspec.msgpack.encode(request))


def result(verb: Verb[Q, A], answer: m.RunnelCallResponse, broker: str) -> A:
    """What the answer to a call says, or the error that it tells of."""
    if answer.error_code:
        raise _error(answer, verb.name, broker)
    return msgspec.msgpack.decode(answer.body, type=verb.answer)


async def call(
    cluster: Cluster, verb: Verb[Q, A], request: Q, *, timeout_ms: int | None = None, lane: str = "main"
) -> A:
    """Ask any broker that can be reached. What may have been done when the connection broke is not asked again."""
    node = await cluster.any_node(lane)
    answer = await node.ask(Api.RUNNEL_CALL, question(verb, request), m.RunnelCallResponse, timeout_ms=timeout_ms)
    return result(verb, answer, str(node))


async def call_until_done(cluster: Cluster, verb: Verb[Q, A], request: Q, *, timeout_ms: int | None = None) -> A:
    """The same for what can be asked twice without harm: again, until it succeeds, fails for good, or time is up."""
    return await cluster.persist(lambda: call(cluster, verb, request), timeout_ms=timeout_ms)


def _error(answer: m.RunnelCallResponse, name: str, broker: str) -> RunnelError:
    """Of the same class as it was raised there, or of the one that its code stands for."""
    same = error_named(answer.error_name, answer.error_message)
    return same or error_of(answer.error_code, action=f"call {name}", broker=broker, message=answer.error_message)
