"""Messages between users: send, and receive in order."""

import asyncio
import re
from datetime import UTC, datetime
from functools import lru_cache
from http import HTTPStatus
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta, structs

from runnel.broker.broker import Broker
from runnel.broker.inbox import WAIT_MS_MAX, Inbox
from runnel.broker.mail import INBOX, USER_BYTES_MAX, Mail, MessageId, Sending
from runnel.doors.http.call import Call, PeerWaits
from runnel.doors.http.idempotency import IdempotencyKey, send_once
from runnel.doors.http.operation import Struct, View, decoded, operation
from runnel.doors.http.payload import Instant, Whole, due_ms
from runnel.doors.http.problems import PROBLEM_JSON, headers_of, problem_of
from runnel.doors.http.replies import json
from runnel.model.calls import Outgoing
from runnel.model.errors import RunnelError
from runnel.model.seams import Clock
from runnel.net.hot import Exchange, Failed, Hot, answer_later

MESSAGES_MAX: Final = 1_000
SENT: Final = "sent"
SCHEDULED: Final = "scheduled"
_CONTENT: Final = b'{"status":"sent","message_id":"%08x%04x%016x"}'  # of a message's place
IDEMPOTENCY_KEY: Final = b"idempotency-key"
LIMIT: Final = 100
LAST_MS: Final = 253_402_300_799_999  # the end of the year 9999
FIELDS: Final = dict.fromkeys(("user_id", "last_message_id", "wait_ms", "limit"))
PLAIN: Final = re.compile(rb"(?:[a-z_]+=[A-Za-z0-9_.~-]{1,300}(?:&|$)){1,4}")  # nothing that would have to be decoded

Query: TypeAlias = tuple[str, str | None, int, int]  # user, last id, wait and limit
User = Annotated[str, Meta(min_length=1, max_length=USER_BYTES_MAX)]


_encode = msgspec.json.Encoder().encode


class Message(Struct):
    """A message from one user to another."""

    from_user: User
    to_user: User
    message: str
    delay_ms: Annotated[Whole | None, Meta(description="it can be received so much later")] = None
    deliver_at: Annotated[Instant | None, Meta(description="it can be received from then on")] = None


class Sent(View, omit_defaults=False):
    """The message is on the disks of all replicas in sync."""

    status: str
    message_id: str


class Scheduled(View, omit_defaults=False):
    """The message waits for its time; until then it can be cancelled and moved by this id, at /v1/schedule."""

    status: str
    scheduled_id: str


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
async def send(call: Call, body: Message, idempotency_key: IdempotencyKey = None) -> Sent:
    """Send a message to a user.

    It is answered once the message is kept durably. Messages to one user are received in the order in which they were
    kept. One with `delay_ms` or `deliver_at` is kept in the inbox when it is due: then it gets its place and its id.
    Until it is, it waits under the `scheduled_id` of the answer, whose status is `scheduled`; see /v1/schedule.

        POST /send {"from_user": "alice", "to_user": "bob", "message": "hello"}
    """
    inbox, due = call.broker.inbox, due_ms(call.door.clock, body.delay_ms, body.deliver_at)
    if idempotency_key is not None:
        message = await _addressed(inbox, body, due)
        [placed] = await send_once(call, idempotency_key, body, INBOX, [message])
        if due is not None:
            return _as_answer(Scheduled(status=SCHEDULED, scheduled_id=placed.scheduled_id))
        place = inbox.id_of(placed.partition, placed.offset)
    elif due is not None:
        return _as_answer(await _send_later(call.broker, body, due))
    else:
        place = await inbox.send(body.from_user, body.to_user, body.message)
    return Sent(status=SENT, message_id=str(place))


@operation("GET /receive")
async def receive(
    call: Call,
    user_id: User,
    last_message_id: str | None = None,
    wait_ms: Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)] = 0,
    limit: Annotated[int, Meta(ge=1, le=MESSAGES_MAX)] = LIMIT,
) -> Messages:
    """Receive the messages to a user, in order.

    Without `last_message_id` from the first that is kept on, else what follows the message of that id: whoever asks
    with the last id it got misses none and sees none twice, whatever became of the broker meanwhile. Nothing is taken
    out: asking again gives the same again. If there is none, the answer waits for one up to `wait_ms`.

        GET /receive?user_id=bob&wait_ms=1000
    """
    with call.waits() as waits:
        found = await call.broker.inbox.receive(
            user_id, last_message_id, wait_ms=wait_ms, messages_max=limit, waits=waits
        )
    return Messages(messages=[received(mail) for mail in found])


async def _addressed(inbox: Inbox, body: Message, due: int | None) -> Outgoing:
    message = await inbox.addressed(body.from_user, body.to_user, body.message)
    return structs.replace(message, deliver_at_ms=due)


async def _send_later(broker: Broker, body: Message, due: int) -> Scheduled:
    [placed] = await broker.sending.send(INBOX, [await _addressed(broker.inbox, body, due)])
    if isinstance(placed, RunnelError):
        raise placed
    return Scheduled(status=SCHEDULED, scheduled_id=placed.scheduled_id)


def _as_answer(scheduled: Scheduled) -> Sent:
    """The other answer that this operation has."""
    answer: Sent = json(scheduled, HTTPStatus.OK)
    return answer


# --- the same without task and application: see net/hot.py
def hot_send(broker: Broker, clock: Clock) -> Hot:
    """POST /send."""
    decode, inbox = msgspec.json.Decoder(Message).decode, broker.inbox

    def begin(body: bytes, query: Any, exchange: Exchange) -> None:
        message = decoded(decode, body)
        if message.delay_ms is not None or message.deliver_at is not None:
            due = due_ms(clock, message.delay_ms, message.deliver_at)
            assert due is not None
            answer_later(exchange, asyncio.get_running_loop().create_task(_send_later(broker, message, due)), _encode)
            return
        parts = message.from_user, message.to_user, message.message
        if not inbox.post(*parts, _Sending(exchange)):
            answer_later(exchange, asyncio.get_running_loop().create_task(inbox.send(*parts)), _content)

    return Hot(b"POST", begin, _failed, leaves=(IDEMPOTENCY_KEY,))


class _Sending(Sending):
    """A request whose answer is the place of its message."""

    __slots__ = ("_exchange",)

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange

    def kept(self, offset: int) -> None:
        self._exchange.answer(_CONTENT % (self.topic, self.partition, offset))

    def failed(self, error: RunnelError) -> None:
        self._exchange.fail(error)


def hot_receive(inbox: Inbox) -> Hot:
    """GET /receive."""

    def begin(body: bytes, query: Query, exchange: Exchange) -> None:
        user, last_id, wait_ms, limit = query
        receiving = _Receiving(inbox, query, exchange)
        try:
            inbox.poll(user, last_id, wait_ms=wait_ms, messages_max=limit, waits=receiving.waits, receiver=receiving)
        except RunnelError as error:
            receiving.failed(error)

    return Hot(b"GET", begin, _failed, _understood)


class _Receiving:
    """A request whose answer is messages."""

    __slots__ = ("_exchange", "_inbox", "_query", "waits")

    def __init__(self, inbox: Inbox, query: Query, exchange: Exchange) -> None:
        self._inbox = inbox
        self._query = query
        self._exchange = exchange
        self.waits = PeerWaits(exchange.peer)

    def received(self, mails: list[Mail]) -> None:
        self.waits.close()
        self._exchange.answer(_messages(mails))

    def failed(self, error: RunnelError) -> None:
        self.waits.close()
        self._exchange.fail(error)

    def ask_otherwise(self, left_s: float) -> None:
        task = asyncio.get_running_loop().create_task(self._receive(max(0, int(left_s * 1000))))
        answer_later(self._exchange, task, _messages)

    async def _receive(self, wait_ms: int) -> list[Mail]:
        user, last_id, _, limit = self._query
        try:
            return await self._inbox.receive(user, last_id, wait_ms=wait_ms, messages_max=limit, waits=self.waits)
        finally:
            self.waits.close()


def _messages(mails: list[Mail]) -> bytes:
    return _encode(Messages(messages=[received(mail) for mail in mails]))


def _understood(query: bytes) -> Query | None:
    """User, last id, wait and limit, if they are all as most clients write them; the rest is the application's."""
    if not PLAIN.fullmatch(query):
        return None
    pairs = [part.split("=", 1) for part in query.decode().split("&")]
    texts = dict(pairs)
    if len(texts) != len(pairs) or not texts.keys() <= FIELDS.keys() or "user_id" not in texts:
        return None
    wait, limit = texts.get("wait_ms", "0"), texts.get("limit", str(LIMIT))
    if not (wait.isdigit() and limit.isdigit() and len(wait) <= 6 and len(limit) <= 4):
        return None
    if int(wait) > WAIT_MS_MAX or not 1 <= int(limit) <= MESSAGES_MAX:
        return None
    return texts["user_id"], texts.get("last_message_id"), int(wait), int(limit)


def _content(place: MessageId) -> bytes:
    return _CONTENT % place


def _failed(error: RunnelError) -> Failed:
    problem = problem_of(error)
    headers = [(b"content-type", PROBLEM_JSON), *headers_of(error, problem.status)]
    return Failed(problem.status, headers, msgspec.json.encode(problem))


def received(mail: Mail) -> Received:
    return Received(
        message_id=mail.message_id, from_user=mail.from_user, to_user=mail.to_user, message=mail.message,
        timestamp=iso(mail.timestamp_ms),
    )  # fmt: skip


@lru_cache(maxsize=4096)  # messages of one batch have mostly one time
def iso(timestamp_ms: int) -> str:
    """2026-11-16T08:00:00.000Z; what a Kafka client may have set beyond is shown as the first or the last moment."""
    moment = datetime.fromtimestamp(min(max(timestamp_ms, 0), LAST_MS) / 1000, UTC)
    return moment.isoformat(timespec="milliseconds")[:-6] + "Z"
