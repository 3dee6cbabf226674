"""Messages between users: send, and receive in order."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Annotated, Final

from msgspec import Meta

from runnel.broker.inbox import USER_BYTES_MAX, WAIT_MS_MAX, Mail
from runnel.doors.http.call import Call
from runnel.doors.http.operation import Struct, View, operation

MESSAGES_MAX: Final = 1_000
SENT: Final = "sent"

User = Annotated[str, Meta(min_length=1, max_length=USER_BYTES_MAX)]


class Message(Struct):
    """A message from one user to another."""

    from_user: User
    to_user: User
    message: str


class Sent(View, omit_defaults=False):
    """The message is on the disks of all replicas in sync."""

    status: str
    message_id: str


class Received(View, omit_defaults=False):
    message_id: str
    from_user: str
    to_user: str
    message: str
    timestamp: str  # when it was kept, ISO 8601 in UTC


class Messages(View, omit_defaults=False):
    """In order; empty if there is none."""

    messages: list[Received]


@operation("POST /send")
async def send(call: Call, body: Message) -> Sent:
    """Send a message to a user.

    It is answered once the message is kept durably. Messages to one user are received in the order in which they were
    kept.

        POST /send {"from_user": "alice", "to_user": "bob", "message": "hello"}
    """
    place = await call.broker.inbox.send(body.from_user, body.to_user, body.message)
    return Sent(status=SENT, message_id=str(place))


@operation("GET /receive")
async def receive(
    call: Call,
    user_id: User,
    last_message_id: str | None = None,
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = 0,
    limit: Annotated[int, Meta(ge=1, le=MESSAGES_MAX)] = 100,
) -> Messages:
    """Receive the messages to a user, in order.

    Without `last_message_id` from the first that is kept on, else what follows the message of that id: whoever asks
    with the last id it got misses none and sees none twice, whatever became of the broker meanwhile. Nothing is taken
    out: asking again gives the same again. If there is none, the answer waits for one up to `wait_ms`.

        GET /receive?user_id=bob&wait_ms=1000
    """
    with _gone(call, wait_ms) as over:
        found = await call.broker.inbox.receive(
            user_id, last_message_id, wait_ms=wait_ms, messages_max=limit, over=over
        )
    return Messages(messages=[_received(mail) for mail in found])


@contextmanager
def _gone(call: Call, wait_ms: int) -> "Iterator[asyncio.Future[None] | None]":
    """A future that ends with the client, for who waits."""
    if not wait_ms:
        yield None
        return
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def end() -> None:
        if not over.done():
            over.set_result(None)

    call.peer.when_over(end)
    try:
        yield over
    finally:
        call.peer.forget(end)


def _received(mail: Mail) -> Received:
    return Received(
        message_id=mail.message_id, from_user=mail.from_user, to_user=mail.to_user, message=mail.message,
        timestamp=iso(mail.timestamp_ms),
    )  # fmt: skip


def iso(timestamp_ms: int) -> str:
    """2026-11-16T08:00:00.000Z"""
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC).isoformat(timespec="milliseconds")[:-6] + "Z"
