"""Server-Sent Events: messages as they come, for browsers and `curl -N`.

Rule 1: an event's id says where to go on: who comes back with `Last-Event-ID` misses nothing and sees nothing twice.
Rule 2: the next part is read when the client has taken the one before: a slow client is behind, and costs no memory.
Rule 3: a line is sent from time to time, so that everybody on the way knows that the connection lives.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated, Final, TypeAlias

import msgspec
from msgspec import Meta

from runnel.doors.http.call import Call, PeerWaits
from runnel.doors.http.feeds import Feed, GroupFeed, QueueFeed, TopicFeed, UserFeed
from runnel.doors.http.following import From, Numbers, resumed, tail_of
from runnel.doors.http.inbox import User
from runnel.doors.http.messages import Filter, Value
from runnel.doors.http.operation import EVENTS, Header, Stream, operation
from runnel.doors.http.problems import problem_of
from runnel.model.errors import RetriableError, RunnelError

HEADERS: Final = ((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))
ALIVE: Final = b":\n\n"
ALIVE_S: Final = 15.0
PART_MAX: Final = 200
CREDIT_MAX: Final = 1_000

Events: TypeAlias = Annotated[Stream, EVENTS]
Credit = Annotated[int, Meta(ge=1, le=CREDIT_MAX, description="messages that may be out unsettled")]
LastEventId = Annotated[
    str | None, Meta(description="where to go on; browsers send it when they come back"), Header("Last-Event-ID")
]

_encode = msgspec.json.Encoder().encode


def event(content: object, *, id: str = "", name: str = "") -> bytes:
    """One event. JSON as it is written here has no line breaks."""
    head = (f"event: {name}\n" if name else "") + (f"id: {id}\n" if id else "")
    return b"%bdata: %b\n\n" % (head.encode(), _encode(content))


async def events(call: Call, waits: PeerWaits, feed: Feed) -> AsyncGenerator[bytes, None]:
    """What a feed gives, until the client goes away or it fails."""
    with waits:
        try:
            async with feed:
                hello = feed.hello()
                yield event(hello.view, id=hello.id, name="open")
                while not call.peer.over:
                    pushed = await feed.next(PART_MAX, ALIVE_S)
                    if not pushed:
                        await asyncio.sleep(0)  # whatever ends a wait at once must not keep others from the loop
                    yield b"".join([event(one.view, id=one.id) for one in pushed]) or ALIVE
        except RetriableError:
            return  # the client comes back, and goes on behind the last event
        except RunnelError as error:
            yield event(problem_of(error), name="error")


def stream(call: Call, waits: PeerWaits, feed: Feed) -> Stream:
    return Stream(events(call, waits, feed), EVENTS, HEADERS)


@operation("GET /v1/topics/{topic}/events")
async def topic_events(
    call: Call,
    topic: str,
    begin: From = "end",
    partition: Numbers = None,
    filter: Filter = "",
    value: Value = "auto",
    last_event_id: LastEventId = None,
) -> Events:
    """Follow a topic as Server-Sent Events.

    Each message is an event; its id says where to go on, in all partitions. With Last-Event-ID, or begin=ID, the stream
    goes on behind that message.

        GET /v1/topics/orders/events?begin=start
    """
    waits = call.waits()
    tail = tail_of(call, topic, resumed(last_event_id) if last_event_id else begin, partition, filter, waits)
    return stream(call, waits, TopicFeed(tail, value))


@operation("GET /v1/users/{user}/events")
async def user_events(
    call: Call, user: User, last_message_id: str | None = None, last_event_id: LastEventId = None
) -> Events:
    """Receive the messages to a user as Server-Sent Events.

    As /receive, without asking: an event's id is the id of its message.

        GET /v1/users/bob/events
    """
    waits = call.waits()
    return stream(call, waits, UserFeed(call.broker, user, last_event_id or last_message_id or None, waits))


@operation("GET /v1/groups/{group}/events", changing_get=True)
async def group_events(
    call: Call,
    group: str,
    topic: Annotated[list[str], Meta(min_length=1, max_length=100, description="may be there several times")],
    value: Value = "auto",
) -> Events:
    """Consume as a member of a group, as Server-Sent Events.

    The first event names the member, which lives as long as the stream: commit what is done with
    POST /v1/groups/{group}/members/{member}/commit. Clients other than web pages send the header `Runnel-Client`, with
    anything in it.

        GET /v1/groups/billing/events?topic=orders
    """
    waits = call.waits()
    return stream(call, waits, GroupFeed(call.broker, group, topic, value, waits))


@operation("GET /v1/queues/{queue}/events", changing_get=True)
async def queue_events(
    call: Call, queue: str, credit: Credit = 10, filter: Filter = "", value: Value = "auto"
) -> Events:
    """Receive messages of a queue as Server-Sent Events.

    No more than `credit` messages are out at a time. Settle each with its receipt (POST .../ack, nack, reject), over
    any connection: that makes room for the next. Leases are extended as long as the stream lives; what is not settled
    when it ends is delivered again at once. Clients other than web pages send the header `Runnel-Client`, with anything
    in it.

        GET /v1/queues/emails/events?credit=5
    """
    waits = call.waits()
    return stream(call, waits, QueueFeed(call.broker, queue, credit, filter, value, waits))
