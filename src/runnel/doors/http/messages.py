"""Messages of topics: sending them, and reading them by offset or by time."""

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, UnsetType

from runnel.doors.http.call import Call
from runnel.doors.http.idempotency import IdempotencyKey, send_once
from runnel.doors.http.operation import View, operation
from runnel.doors.http.payload import Form, MessageView, NewMessage, Partition, body_of, offset_of, time_ms
from runnel.doors.http.problems import InvalidInput, Problem, problem_of
from runnel.doors.http.replies import json
from runnel.model.calls import Placed, Read
from runnel.model.errors import RunnelError
from runnel.model.limits import MIB
from runnel.model.reading import END, START, ReadPartition

ACKS = {"all": -1, "1": 1, "0": 0}
MESSAGES_MAX = 10_000
MULTI_STATUS = 207

Limit = Annotated[int, Meta(ge=1, le=MESSAGES_MAX, description="messages at most")]
WaitMs = Annotated[int, Meta(ge=0, le=60_000, description="how long to wait for the first message")]
BytesMax = Annotated[int, Meta(ge=1, le=16 * MIB, description="bytes at most; the first message comes all the same")]
ReadBytesMax = Annotated[
    int, Meta(ge=1, le=16 * MIB, description="bytes at most; a larger value is told by its size: left_out_bytes")
]
Filter = Annotated[str, Meta(max_length=4096, description="messages that pass alone, e.g. body.amount > 100")]
Value = Annotated[Form, Meta(description="how values are shown; auto: as JSON, else as text, else as base64")]


class PlacedView(View):
    """Where a message lies, or why it does not."""

    partition: int | UnsetType = UNSET
    offset: int | UnsetType = UNSET
    scheduled_id: str | UnsetType = UNSET  # it waits for its time under this id
    duplicate: bool = False  # it was there already
    error: Problem | UnsetType = UNSET


class SentView(View):
    topic: str
    results: list[PlacedView]  # in the order of the messages


@operation("POST /v1/topics/{topic}/messages", partly=True)
async def send_messages(
    call: Call,
    topic: str,
    body: NewMessage | Annotated[list[NewMessage], Meta(min_length=1, max_length=MESSAGES_MAX)],
    acks: Annotated[Literal["all", "1", "0"], Meta(description="who has to have it before the answer")] = "all",
    timeout_ms: Annotated[int, Meta(ge=1, le=300_000)] = 30_000,
    idempotency_key: IdempotencyKey = None,
) -> SentView:
    """Send one message or a list of them.

    The answer comes when the messages are kept: with acks=all on the disk of every replica in sync. A list is much
    cheaper than as many requests. If some messages of a list could not be kept and others were, or not all for the same
    reason, the status is 207 and each result says which.

        POST /v1/topics/orders/messages {"key": "alice", "value": {"item": "tea", "amount": 3}}
    """
    messages = body if isinstance(body, list) else [body]
    if any(message.priority is not None for message in messages):
        raise InvalidInput("a topic knows no priority: send to a queue with lanes, at /v1/queues/QUEUE/messages")
    outgoing = [message.outgoing(call.door.clock) for message in messages]
    if idempotency_key is not None:
        return sent(topic, await send_once(call, idempotency_key, body, topic, outgoing))
    results = await call.broker.sending.send(topic, outgoing, acks=ACKS[acks], timeout_ms=timeout_ms)
    return sent(topic, results)


def sent(topic: str, results: "Sequence[Placed | RunnelError]") -> SentView:
    """The answer to sending; what fails for one reason fails as a whole."""
    errors = [each for each in results if isinstance(each, RunnelError)]
    raise_one_reason(errors, len(results))
    view = SentView(topic=topic, results=[placed_view(each) for each in results])
    return view if not errors else json(view, MULTI_STATUS)


def raise_one_reason(errors: "Sequence[RunnelError]", asked: int) -> None:
    """Raise why nothing of what was asked could be done, if that is one reason for all of it."""
    if errors and len(errors) == asked and len({type(error) for error in errors}) == 1:
        raise errors[0]


def placed_view(result: Placed | RunnelError) -> PlacedView:
    if isinstance(result, RunnelError):
        return PlacedView(error=problem_of(result))
    if result.scheduled_id:
        return PlacedView(partition=result.partition, scheduled_id=result.scheduled_id)
    return PlacedView(partition=result.partition, offset=result.offset, duplicate=result.duplicate)


class ReadView(View, omit_defaults=False):
    messages: list[MessageView]
    next_offset: int  # read on from here
    start_offset: int  # the first that is kept
    end_offset: int  # what is sent next gets this one, or a later one


@operation("GET /v1/topics/{topic}/partitions/{partition}/messages")
async def read_messages(
    call: Call,
    topic: str,
    partition: Partition,
    offset: Annotated[str | None, Meta(description="a number, start or end; start if it is left out")] = None,
    since: Annotated[str | None, Meta(description="instead of offset: a time, in ms or as ISO 8601")] = None,
    limit: Limit = 100,
    bytes_max: ReadBytesMax = MIB,
    wait_ms: WaitMs = 0,
    filter: Filter = "",
    value: Value = "auto",
) -> ReadView:
    """Read messages of a partition, by offset or by time.

    Messages of transactions are there once they are committed. Read on with offset=next_offset; with wait_ms the
    answer comes as soon as there is a message.

        GET /v1/topics/orders/partitions/0/messages?offset=start&limit=10
    """
    key = call.broker.topics.partition_key(topic, partition)
    at, time = _place(offset, since)
    asked = ReadPartition(key.topic_id, partition, at, time, limit, bytes_max, wait_ms, filter, whole=False)
    with call.waits() as waits:
        found = await call.broker.read(asked, waits)
    return ReadView(
        messages=[message_view(message, value) for message in found.messages],
        next_offset=found.next_offset,
        start_offset=found.start_offset,
        end_offset=found.end_offset,
    )


def message_view(message: Read, form: Form) -> MessageView:
    if message.left_out_bytes:
        fields = body_of(message.key, None, message.headers, form)
        del fields["value"]
        return MessageView(
            partition=message.partition, offset=message.offset, timestamp_ms=message.timestamp_ms,
            left_out_bytes=message.left_out_bytes, **fields,
        )  # fmt: skip
    return MessageView(
        partition=message.partition, offset=message.offset, timestamp_ms=message.timestamp_ms,
        **body_of(message.key, message.value, message.headers, form),
    )  # fmt: skip


def _place(offset: str | None, since: str | None) -> tuple[int, int]:
    """(offset, time) as the call wants them."""
    if offset is not None and since is not None:
        raise InvalidInput("read from either an offset or a time, not both")
    if since is not None:
        return START, time_ms(since)
    if offset in (None, "start"):
        return START, -1
    if offset == "end":
        return END, -1
    assert offset is not None
    number = offset_of(offset)
    if number is None:
        raise InvalidInput(f"offset can't be {offset[:40]!r}: use a number, start or end")
    return number, -1
