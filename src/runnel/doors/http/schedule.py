"""The schedule: messages that wait for their time."""

from typing import Annotated

from msgspec import Meta

from runnel.client.outcome import error_of_failure, raise_for
from runnel.doors.http.call import Call
from runnel.doors.http.idempotency import IdempotencyKey, do_once
from runnel.doors.http.messages import Limit, Value
from runnel.doors.http.operation import Struct, View, operation
from runnel.doors.http.payload import DUE_MS_MAX, Form, Instant, MessageView, Whole, body_of, time_ms
from runnel.doors.http.problems import InvalidInput
from runnel.model.calls import (
    SCHEDULE_CANCEL,
    SCHEDULE_COUNT,
    SCHEDULE_GET,
    SCHEDULE_LIST,
    SCHEDULE_MOVE,
    Cancel,
    CountPending,
    GetPending,
    ListPending,
    Move,
    Pending,
    Rescheduled,
)
from runnel.model.errors import NotPending, RetriableError

Topic = Annotated[str, Meta(description="of one topic alone")]


class PendingView(MessageView, kw_only=True):
    """A message that waits; it has no offset yet."""

    id: str
    due_ms: int
    offset: int = -1
    timestamp_ms: int = -1


class PendingsView(View, omit_defaults=False):
    messages: list[PendingView]
    more: bool  # ask again with since=due_ms and after=id of the last one


@operation("GET /v1/schedule")
async def list_schedule(
    call: Call,
    topic: Topic = "",
    since: Annotated[str | None, Meta(description="due at this time or later, in ms or as ISO 8601")] = None,
    after: Annotated[str, Meta(description="of those due at since: behind this id")] = "",
    limit: Limit = 100,
    value: Value = "auto",
) -> PendingsView:
    """List the messages that wait for their time, in the order in which they are due.

    GET /v1/schedule?topic=emails&limit=10
    """
    start = 0 if since is None else time_ms(since)
    asked = ListPending(topic, start, limit, after, with_values=True)
    found = await call.look(SCHEDULE_LIST, asked)
    return PendingsView(messages=[_view(each, value) for each in found.messages], more=found.more)


def _view(pending: Pending, form: Form) -> PendingView:
    return PendingView(
        id=pending.id, due_ms=pending.due_ms, topic=pending.topic, partition=pending.partition,
        **body_of(pending.key, pending.value, pending.headers, form),
    )  # fmt: skip


class CountView(View, omit_defaults=False):
    messages: int
    next_due_ms: int | None


@operation("GET /v1/schedule/count")
async def count_schedule(call: Call, topic: Topic = "") -> CountView:
    """Count the messages that wait, and tell when the first is due.

    GET /v1/schedule/count
    """
    count = await call.look(SCHEDULE_COUNT, CountPending(topic))
    return CountView(messages=count.messages, next_due_ms=None if count.next_due_ms < 0 else count.next_due_ms)


@operation("GET /v1/schedule/{id}")
async def get_scheduled(call: Call, id: str, value: Value = "auto") -> PendingView:
    """Get a message that waits for its time.

    GET /v1/schedule/2dedb886e3d0db03
    """
    found = (await call.look(SCHEDULE_GET, GetPending(id))).messages
    if not found:
        raise NotPending(f"no message waits under the id {id!r}: it was delivered or cancelled, or there never was one")
    return _view(found[0], value)


@operation("DELETE /v1/schedule/{id}")
async def cancel_scheduled(call: Call, id: str, idempotency_key: IdempotencyKey = None) -> None:
    """Cancel a message that waits: it is never delivered. If it is too late, the answer is 404 not-pending.

    The same question has the same answer for a day, unless another message waits under the id by then.

        DELETE /v1/schedule/2dedb886e3d0db03
    """

    async def cancel() -> Rescheduled:
        answer = await call.ask(SCHEDULE_CANCEL, Cancel([id]))
        for error in map(error_of_failure, answer.failures):
            if isinstance(error, RetriableError):
                raise error  # that is no answer yet
        return answer

    answer = await (cancel() if idempotency_key is None else do_once(call, idempotency_key, Rescheduled, cancel))
    raise_for(answer.failures)


class NewTime(Struct):
    deliver_at: Annotated[Instant | None, Meta(description="deliver it then")] = None
    delay_ms: Annotated[Whole | None, Meta(description="deliver it so much after now")] = None


@operation("PATCH /v1/schedule/{id}")
async def move_scheduled(call: Call, id: str, body: NewTime) -> None:
    """Give a message that waits another time. If it is too late, the answer is 404 not-pending.

    PATCH /v1/schedule/2dedb886e3d0db03 {"delay_ms": 60000}
    """
    if (body.deliver_at is None) == (body.delay_ms is None):
        raise InvalidInput("name either deliver_at or delay_ms")
    if body.deliver_at is not None:
        due_ms = time_ms(body.deliver_at)
    else:
        due_ms = min(call.door.clock.wall_ms() + (body.delay_ms or 0), DUE_MS_MAX)
    answer = await call.ask(SCHEDULE_MOVE, Move(id, due_ms))
    raise_for(answer.failures)
