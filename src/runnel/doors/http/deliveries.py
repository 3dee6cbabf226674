"""What queues deliver: sending to them, leasing, and settling message by message."""

from typing import Annotated

from msgspec import Meta

from runnel.client.outcome import error_of_failure
from runnel.doors.http.call import Call
from runnel.doors.http.idempotency import IdempotencyKey, send_once
from runnel.doors.http.messages import (
    MESSAGES_MAX,
    MULTI_STATUS,
    BytesMax,
    Filter,
    Limit,
    SentView,
    Value,
    raise_one_reason,
    sent,
)
from runnel.doors.http.operation import Struct, View, operation
from runnel.doors.http.payload import Form, MessageView, NewMessage, Partition, Whole, body_of
from runnel.doors.http.problems import Problem, problem_of
from runnel.doors.http.replies import json
from runnel.model.calls import (
    QUEUE_EXTEND,
    QUEUE_PEEK,
    QUEUE_RECEIVE,
    QUEUE_SEND,
    QUEUE_SETTLE,
    Delivered,
    Extend,
    Failure,
    Outcome,
    Peek,
    Placed,
    Receive,
    Send,
    Settle,
    Settlement,
)
from runnel.model.errors import RunnelError
from runnel.model.limits import MIB

RECEIVE_WAIT_MS_MAX = 300_000
LEASE_MS_MAX = 12 * 3_600_000

LeaseMs = Annotated[int, Meta(ge=1_000, le=LEASE_MS_MAX)]


@operation("POST /v1/queues/{queue}/messages", partly=True)
async def send_to_queue(
    call: Call,
    queue: str,
    body: NewMessage | Annotated[list[NewMessage], Meta(min_length=1, max_length=MESSAGES_MAX)],
    idempotency_key: IdempotencyKey = None,
) -> SentView:
    """Send one message or a list of them to a queue.

    With delay_ms or deliver_at it is delivered later; with priority, before others.

        POST /v1/queues/emails/messages {"value": {"to": "alice@example.com"}, "delay_ms": 5000}
    """
    messages = body if isinstance(body, list) else [body]
    outgoing = [message.outgoing(call.door.clock) for message in messages]
    if idempotency_key is not None:
        topic, addressed = call.broker.queues.addressed(queue, outgoing)
        return sent(topic, await send_once(call, idempotency_key, body, topic, addressed))
    answer = await call.ask(QUEUE_SEND, Send(queue, outgoing))
    results: list[Placed | RunnelError] = [
        placed if placed is not None else error_of_failure(failure) or RunnelError("it was not sent")
        for placed, failure in zip(answer.placed, answer.failures, strict=True)
    ]
    topic = next((each.topic for each in answer.placed if each is not None), queue)
    return sent(topic, results)


class DeliveredView(MessageView, kw_only=True):
    """A message that is leased."""

    receipt: str  # settle it with this
    attempt: int
    leased_until_ms: int


class ReceivedView(View, omit_defaults=False):
    messages: list[DeliveredView]


@operation("POST /v1/queues/{queue}/receive")
async def receive_from_queue(
    call: Call,
    queue: str,
    limit: Limit = 1,
    bytes_max: BytesMax = MIB,
    wait_ms: Annotated[int, Meta(ge=0, le=RECEIVE_WAIT_MS_MAX, description="for the first message")] = 0,
    lease_ms: Annotated[LeaseMs | None, Meta(description="the queue's own, if it is left out")] = None,
    consumer: Annotated[str, Meta(max_length=256, description="who receives; needed if consumers=single")] = "",
    filter: Filter = "",
    value: Value = "auto",
) -> ReceivedView:
    """Lease messages of a queue.

    Settle each before its lease ends: ack, nack or reject it with its receipt, or extend the lease. A message whose
    lease ends is delivered again, until attempts.max is reached.

        POST /v1/queues/emails/receive?limit=10&wait_ms=1000
    """
    asked = Receive(queue, limit, bytes_max, wait_ms, lease_ms, consumer, filter)
    with call.waits() as waits:
        found = await call.ask(QUEUE_RECEIVE, asked, waits=waits)
    return ReceivedView(messages=[delivered_view(each, value) for each in found.messages])


def delivered_view(message: Delivered, form: Form) -> DeliveredView:
    return DeliveredView(
        receipt=message.receipt, topic=message.topic, partition=message.partition, offset=message.offset,
        timestamp_ms=message.timestamp_ms, attempt=message.attempt, leased_until_ms=message.leased_until_ms,
        **body_of(message.key, message.value, message.headers, form),
    )  # fmt: skip


# --- settling

Receipts = Annotated[list[str], Meta(min_length=1, max_length=MESSAGES_MAX)]


class RefusedView(View, omit_defaults=False):
    receipt: str
    error: Problem


class SettledView(View, omit_defaults=False):
    settled: int
    refused: list[RefusedView]


class Ack(Struct):
    receipts: Receipts


@operation("POST /v1/queues/{queue}/ack", partly=True)
async def ack(call: Call, queue: str, body: Ack) -> SettledView:
    """Accept messages: they are done, and are not delivered again.

    If some could not be settled and others were, or not all for the same reason, the status is 207 and each that could
    not is told with the reason.

        POST /v1/queues/emails/ack {"receipts": ["AQAB"]}
    """
    return await _settle(call, queue, [Settlement(receipt, "accept") for receipt in body.receipts])


class Nack(Struct):
    receipts: Receipts
    delay_ms: Annotated[Whole | None, Meta(description="instead of the queue's backoff")] = None
    reason: Annotated[str, Meta(max_length=1_000, description="of the dead letter, if it was the last attempt")] = ""


@operation("POST /v1/queues/{queue}/nack", partly=True)
async def nack(call: Call, queue: str, body: Nack) -> SettledView:
    """Release messages: they are delivered again, after the queue's backoff.

    POST /v1/queues/emails/nack {"receipts": ["AQAB"], "delay_ms": 1000, "reason": "the mail server is full"}
    """
    told = [Settlement(each, "release", body.delay_ms, body.reason) for each in body.receipts]
    return await _settle(call, queue, told)


class Reject(Struct):
    receipts: Receipts
    reason: Annotated[str, Meta(max_length=1_000, description="is kept with the dead letter")] = ""


@operation("POST /v1/queues/{queue}/reject", partly=True)
async def reject(call: Call, queue: str, body: Reject) -> SettledView:
    """Give messages up: they become dead letters.

    POST /v1/queues/emails/reject {"receipts": ["AQAB"], "reason": "no such address"}
    """
    return await _settle(call, queue, [Settlement(each, "reject", None, body.reason) for each in body.receipts])


class OneSettlement(Struct):
    receipt: str
    outcome: Outcome
    delay_ms: Whole | None = None
    reason: Annotated[str, Meta(max_length=1_000)] = ""


class Settlements(Struct):
    settlements: Annotated[list[OneSettlement], Meta(min_length=1, max_length=MESSAGES_MAX)]


@operation("POST /v1/queues/{queue}/settle", partly=True)
async def settle(call: Call, queue: str, body: Settlements) -> SettledView:
    """Settle messages, each in its own way.

    POST /v1/queues/emails/settle {"settlements": [{"receipt": "AQAB", "outcome": "accept"}]}
    """
    told = [Settlement(each.receipt, each.outcome, each.delay_ms, each.reason) for each in body.settlements]
    return await _settle(call, queue, told)


async def _settle(call: Call, queue: str, settlements: list[Settlement]) -> SettledView:
    answer = await call.ask(QUEUE_SETTLE, Settle(queue, settlements))
    return _settled([each.receipt for each in settlements], answer.failures)


class Extension(Struct):
    receipts: Receipts
    lease_ms: Annotated[LeaseMs | None, Meta(description="from now on; the queue's own, if it is left out")] = None


@operation("POST /v1/queues/{queue}/extend", partly=True)
async def extend(call: Call, queue: str, body: Extension) -> SettledView:
    """Extend leases: they end so much later, from now on.

    POST /v1/queues/emails/extend {"receipts": ["AQAB"], "lease_ms": 60000}
    """
    answer = await call.ask(QUEUE_EXTEND, Extend(queue, body.receipts, body.lease_ms))
    return _settled(body.receipts, answer.failures)


def _settled(receipts: list[str], failures: list[Failure | None]) -> SettledView:
    """What fails for one reason fails as a whole."""
    errors = [(receipt, error_of_failure(failure)) for receipt, failure in zip(receipts, failures, strict=True)]
    refused = [(receipt, error) for receipt, error in errors if error is not None]
    raise_one_reason([error for _, error in refused], len(receipts))
    view = SettledView(
        settled=len(receipts) - len(refused),
        refused=[RefusedView(receipt=receipt, error=problem_of(error)) for receipt, error in refused],
    )
    return view if not refused else json(view, MULTI_STATUS)


# --- looking


class PeekedView(MessageView, kw_only=True):
    state: str  # ready, leased, waiting, blocked or done
    attempts: int


class PeekView(View, omit_defaults=False):
    messages: list[PeekedView]


@operation("GET /v1/queues/{queue}/messages")
async def peek_queue(
    call: Call,
    queue: str,
    limit: Limit = 10,
    partition: Partition | None = None,
    offset: Annotated[Whole | None, Meta(description="from the first that is not done, if it is left out")] = None,
    filter: Filter = "",
    value: Value = "auto",
) -> PeekView:
    """Look at messages of a queue without taking them.

    GET /v1/queues/emails/messages?limit=10
    """
    found = await call.look(QUEUE_PEEK, Peek(queue, limit, partition, offset, filter))
    views = [
        PeekedView(
            topic=one.topic, partition=one.partition, offset=one.offset, timestamp_ms=one.timestamp_ms,
            state=one.state, attempts=one.attempts, **body_of(one.key, one.value, one.headers, value),
        )
        for one in found.messages
    ]  # fmt: skip
    return PeekView(messages=views)
