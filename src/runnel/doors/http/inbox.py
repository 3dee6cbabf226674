"""Messages between users: send, and receive in order."""

import asyncio
import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import Annotated, Any, Final, TypeAlias

import msgspec
from msgspec import Meta, structs

from runnel.broker.broker import Broker
from runnel.broker.inbox import WAIT_MS_MAX, Inbox
from runnel.broker.mail import INBOX, USER_BYTES_MAX, Mails, MessageId, Sending
from runnel.doors.http.call import Call, PeerWaits
from runnel.doors.http.idempotency import IdempotencyKey, send_once
from runnel.doors.http.operation import Struct, View, decoded, operation
from runnel.doors.http.payload import Instant, Whole, due_ms
from runnel.doors.http.problems import PROBLEM_JSON, InvalidInput, headers_of, problem_of
from runnel.model.calls import Outgoing
from runnel.model.errors import RunnelError
from runnel.model.seams import Clock
from runnel.net.hot import Exchange, Failed, Hot, answer_later

MESSAGES_MAX: Final = 1_000
SUCCESS: Final = "success"
_CONTENT: Final = b'{"status":"success","message_id":"%08x%04x%016x"}'  # of a message's place
IDEMPOTENCY_KEY: Final = b"idempotency-key"
LIMIT: Final = 100
LAST_MS: Final = 253_402_300_799_999  # the end of the year 9999
LAST_ID: Final = b"last_message_id="
FIELDS: Final = dict.fromkeys(("user_id", "wait_ms", "limit"))
_PAIR: Final = rb"[a-z_]+=[A-Za-z0-9_.~-]{1,300}"  # nothing that would have to be decoded
PLAIN: Final = re.compile(_PAIR + rb"(?:&" + _PAIR + rb"){0,2}")

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
async def send(call: Call, body: Message, idempotency_key: IdempotencyKey = None) -> Sent | Scheduled:
    """Send a message to a user.

    It is answered once the message is kept durably. Messages to one user are received in the order in which they were
    kept. One with `delay_ms` or `deliver_at` is kept in the inbox when it is due: then it gets its place and its id.
    Until it is, it waits under the `scheduled_id` that the answer has instead of a `message_id`; see /v1/schedule.

        POST /send {"from_user": "alice", "to_user": "bob", "message": "hello"}
    """
    inbox, due = call.broker.inbox, due_ms(call.door.clock, body.delay_ms, body.deliver_at)
    if idempotency_key is not None:
        message = await _addressed(inbox, body, due)
        [placed] = await send_once(call, idempotency_key, body, INBOX, [message])
        if due is not None:
            return Scheduled(status=SUCCESS, scheduled_id=placed.scheduled_id)
        place = inbox.id_of(placed.partition, placed.offset)
    elif due is not None:
        return await _send_later(call.broker, body, due)
    else:
        place = await inbox.send(body.from_user, body.to_user, body.message)
    return Sent(status=SUCCESS, message_id=str(place))


Wait = Annotated[int, Meta(ge=0, le=WAIT_MS_MAX)]
Count = Annotated[int, Meta(ge=1, le=MESSAGES_MAX)]


class Asking(Struct):
    """The parameters, for clients that send JSON with every request."""

    user_id: User | None = None
    last_message_id: str | None = None
    wait_ms: Wait | None = None
    limit: Count | None = None


@operation("GET /receive")
async def receive(
    call: Call,
    user_id: Annotated[User | None, Meta(description="whose messages; needed, here or in the body")] = None,
    last_message_id: str | None = None,
    wait_ms: Annotated[Wait | None, Meta(description="0, if it is left out")] = None,
    limit: Annotated[Count | None, Meta(description=f"{LIMIT}, if it is left out")] = None,
    body: Asking | None = None,
) -> Messages:
    """Receive the messages to a user, in order.

    Without `last_message_id`, or with an empty one, from the first that is kept on, else what follows the message of
    that id: whoever asks with the last id it got misses none and sees none twice, whatever became of the broker
    meanwhile. Nothing is taken out: asking again gives the same again. If there is none, the answer waits for one up to
    `wait_ms`. Each parameter comes from the query or from a body of JSON, not from both.

        GET /receive?user_id=bob&wait_ms=1000
    """
    asked = Asking(user_id=user_id, last_message_id=last_message_id, wait_ms=wait_ms, limit=limit)
    if body is not None:
        asked = _joined(asked, body)
    if asked.user_id is None:
        raise InvalidInput("user_id is missing: name it in the query or in the body")
    with call.waits() as waits:
        found = await call.broker.inbox.receive(
            asked.user_id, asked.last_message_id or None, wait_ms=asked.wait_ms or 0,
            messages_max=asked.limit or LIMIT, waits=waits,
        )  # fmt: skip
    return Messages(messages=received(found))


def _joined(query: Asking, body: Asking) -> Asking:
    told = {name: value for name, value in structs.asdict(body).items() if value is not None}
    for name in told:
        if getattr(query, name) is not None:
            raise InvalidInput(f"{name} is in the query and in the body: name it once")
    return structs.replace(query, **told)


async def _addressed(inbox: Inbox, body: Message, due: int | None) -> Outgoing:
    message = await inbox.addressed(body.from_user, body.to_user, body.message)
    return structs.replace(message, deliver_at_ms=due)


async def _send_later(broker: Broker, body: Message, due: int) -> Scheduled:
    [placed] = await broker.sending.send(INBOX, [await _addressed(broker.inbox, body, due)])
    if isinstance(placed, RunnelError):
        raise placed
    return Scheduled(status=SUCCESS, scheduled_id=placed.scheduled_id)


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
        receiving = exchange.asker
        if not isinstance(receiving, _Receiving):
            receiving = exchange.asker = _Receiving(inbox, exchange)
        receiving.begin(query)

    return Hot(b"GET", begin, _failed, _understood)


class _Receiving:
    """The requests of one connection, one at a time, whose answers are messages."""

    __slots__ = ("_exchange", "_inbox", "_query", "_waits")

    _query: Query

    def __init__(self, inbox: Inbox, exchange: Exchange) -> None:
        self._inbox = inbox
        self._exchange = exchange
        self._waits = PeerWaits(exchange.peer)  # for as long as the connection is

    def begin(self, query: Query) -> None:
        self._query = query
        user, last_id, wait_ms, limit = query
        self._inbox.poll(user, last_id, wait_ms=wait_ms, messages_max=limit, waits=self._waits, receiver=self)

    def received(self, mails: Mails) -> None:
        self._exchange.answer(_messages(mails))

    def failed(self, error: RunnelError) -> None:
        self._exchange.fail(error)

    def ask_otherwise(self, left_s: float) -> None:
        user, last_id, _, limit = self._query
        wait_ms = max(0, int(left_s * 1000))
        asking = self._inbox.receive(user, last_id, wait_ms=wait_ms, messages_max=limit, waits=self._waits)
        answer_later(self._exchange, asyncio.get_running_loop().create_task(asking), _messages)


def _messages(mails: Mails) -> bytes:
    return _encode(Messages(messages=received(mails)))


def _understood(query: bytes) -> Query | None:
    """User, last id, wait and limit, if they are all as most clients write them; the rest is the application's."""
    before, named, behind = query.partition(LAST_ID)
    last_id, more, tail = behind.partition(b"&")
    if named and not (last_id.isalnum() and len(last_id) <= USER_BYTES_MAX and (not before or before.endswith(b"&"))):
        return None
    asked = _asked(before + tail if more or not named else before[:-1])
    return None if asked is None else (asked[0], last_id.decode() if named else None, asked[1], asked[2])


@lru_cache(maxsize=4096)  # a user asks for the same again, behind another message
def _asked(query: bytes) -> tuple[str, int, int] | None:
    """User, wait and limit."""
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
    return texts["user_id"], int(wait), int(limit)


def _content(place: MessageId) -> bytes:
    return _CONTENT % place


def _failed(error: RunnelError) -> Failed:
    problem = problem_of(error)
    headers = [(b"content-type", PROBLEM_JSON), *headers_of(error, problem.status)]
    return Failed(problem.status, headers, msgspec.json.encode(problem))


def received(mails: Mails) -> list[Received]:
    place, user, letters = mails
    return [
        Received(
            message_id=f"{place}{letter.offset:016x}", from_user=letter.from_user.decode(errors="replace"),
            to_user=user, message=letter.message.decode(errors="replace"), timestamp=iso(letter.timestamp_ms),
        )
        for letter in letters
    ]  # fmt: skip


@lru_cache(maxsize=4096)  # messages of one batch have mostly one time
def iso(timestamp_ms: int) -> str:
    """2026-11-16T08:00:00.000Z; what a Kafka client may have set beyond is shown as the first or the last moment."""
    moment = datetime.fromtimestamp(min(max(timestamp_ms, 0), LAST_MS) / 1000, UTC)
    return moment.isoformat(timespec="milliseconds")[:-6] + "Z"
