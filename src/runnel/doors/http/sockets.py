"""WebSockets: messages as they come, with credit, and what the client says to them on the same line.

Rule 1: no more messages are sent than the client has granted: of topics and groups each one sent takes one away, and
        `{"credit": n}` grants more; of a queue the credit is how many may be out unsettled.
Rule 2: what the client says is done in order, and answered.
Rule 3: a client that does not take what it is sent makes the line wait, not the broker's memory grow.
"""

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from runnel.doors.http.call import Call, PeerWaits
from runnel.doors.http.events import PART_MAX, Credit
from runnel.doors.http.feeds import Feed, GroupFeed, QueueFeed, TopicFeed
from runnel.doors.http.following import From, Numbers, parse_place, tail_of
from runnel.doors.http.messages import Filter, Value
from runnel.doors.http.operation import Struct, decoded, socket
from runnel.doors.http.payload import Partition, Whole
from runnel.doors.http.problems import InvalidInput, problem_of
from runnel.doors.http.socket import Socket
from runnel.model.calls import Outcome, Settlement
from runnel.model.errors import RunnelError

LOOK_S: Final = 15.0
CREDIT_MAX: Final = 1_000_000

Grant = Annotated[int, Meta(ge=0, le=CREDIT_MAX, description="messages that may be sent before more is granted")]
Receipts = Annotated[list[str], Meta(max_length=1_000)]

_encode = msgspec.json.Encoder().encode


class Said(Struct):
    """What a client says: one or several of these."""

    credit: Annotated[int, Meta(ge=0, le=CREDIT_MAX)] = 0
    ack: Receipts = msgspec.field(default_factory=list)
    nack: Receipts = msgspec.field(default_factory=list)
    reject: Receipts = msgspec.field(default_factory=list)
    delay_ms: Whole | None = None  # of what is nacked
    reason: Annotated[str, Meta(max_length=1_000)] = ""  # of what is rejected, or nacked for the last time
    commit: bool | str | list[str | tuple[str, Partition, Whole]] = False  # see `committed`

    def committed(self) -> Sequence[tuple[str, int, int]] | None:
        """Topic, partition and next offset of what is done, told as such or by ids; None: all that was read."""
        if isinstance(self.commit, bool):
            return None
        told = [self.commit] if isinstance(self.commit, str) else self.commit
        return [parse_place(one) if isinstance(one, str) else one for one in told]

    def settlements(self) -> list[Settlement]:
        said: list[tuple[Outcome, list[str]]] = [
            ("accept", self.ack), ("release", self.nack), ("reject", self.reject),
        ]  # fmt: skip
        return [
            Settlement(receipt, outcome, self.delay_ms if outcome == "release" else None, self.reason)
            for outcome, receipts in said
            for receipt in receipts
        ]


_decode = msgspec.json.Decoder(Said).decode


class _Line:
    """One conversation: a feed one way, what the client says the other."""

    def __init__(self, socket: Socket, waits: PeerWaits, feed: Feed, credit: int | None) -> None:
        self._socket = socket
        self._waits = waits
        self._feed = feed
        self._credit = credit  # None: the feed sees to it
        self._granted = asyncio.Event()

    async def run(self) -> None:
        async with self._feed:
            await self._send(type="open", **self._feed.hello().view)
            both = [asyncio.ensure_future(self._push()), asyncio.ensure_future(self._hear())]
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for one in both:
                    one.cancel()
                results = await asyncio.gather(*both, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result

    async def _push(self) -> None:
        while not self._waits.over:
            if self._credit is not None and self._credit <= 0:
                self._granted.clear()
                await self._granted.wait()
                continue
            limit = PART_MAX if self._credit is None else min(self._credit, PART_MAX)
            pushed = await self._feed.next(limit, LOOK_S)
            if not pushed:
                await asyncio.sleep(0)  # whatever ends a wait at once must not keep others from the loop
            for one in pushed:
                if self._credit is not None:
                    self._credit -= 1
                await self._send(type="message", **({"id": one.id} if one.id else {}), message=one.view)

    async def _hear(self) -> None:
        while True:
            text = await self._socket.receive()
            said = decoded(_decode, text.encode() if isinstance(text, str) else text)
            if said.credit:
                self._grant(said.credit)
            if settlements := said.settlements():
                await self._settle(settlements)
            if said.commit is not False:
                await self._commit(said.committed())

    def _grant(self, credit: int) -> None:
        if isinstance(self._feed, QueueFeed):
            self._feed.grants.grant(min(credit, CREDIT_MAX))
        elif self._credit is not None:
            self._credit = min(self._credit + credit, CREDIT_MAX)
            self._granted.set()

    async def _settle(self, settlements: list[Settlement]) -> None:
        if not isinstance(self._feed, QueueFeed):
            raise InvalidInput("only the messages of a queue are settled")
        errors = await self._feed.grants.settle(settlements)
        refused = [
            {"receipt": one.receipt, "error": problem_of(error)}
            for one, error in zip(settlements, errors, strict=True)
            if error is not None
        ]
        await self._send(type="settled", settled=len(settlements) - len(refused), refused=refused)

    async def _commit(self, offsets: Sequence[tuple[str, int, int]] | None) -> None:
        if not isinstance(self._feed, GroupFeed):
            raise InvalidInput("only members of a group commit")
        try:
            await self._feed.commit(offsets)
            await self._send(type="committed")
        except RunnelError as error:
            await self._send(type="refused", error=problem_of(error))

    async def _send(self, **content: Any) -> None:
        await self._socket.send(_encode(content).decode())


async def _converse(socket: Socket, waits: PeerWaits, feed: Feed, credit: int | None) -> None:
    with waits:
        await socket.accept()
        await _Line(socket, waits, feed, credit).run()


@socket("/v1/topics/{topic}/socket")
async def topic_socket(
    call: Call,
    socket: Socket,
    topic: str,
    begin: From = "end",
    partition: Numbers = None,
    filter: Filter = "",
    value: Value = "auto",
    credit: Grant = 100,
) -> None:
    """Follow a topic over a WebSocket.

    Each message comes with an id that says where to go on. Grant more with {"credit": n}.

        GET /v1/topics/orders/socket?begin=start&credit=10
    """
    waits = call.waits()
    await _converse(socket, waits, TopicFeed(tail_of(call, topic, begin, partition, filter, waits), value), credit)


@socket("/v1/groups/{group}/socket")
async def group_socket(
    call: Call,
    socket: Socket,
    group: str,
    topic: Annotated[list[str], Meta(min_length=1, max_length=100, description="may be there several times")],
    value: Value = "auto",
    credit: Grant = 100,
) -> None:
    """Consume as a member of a group over a WebSocket.

    Commit up to a message with {"commit": ID} or {"commit": [ID, ...]}, up to offsets with
    {"commit": [["orders", 0, 17]]}, and all that was read for this line, also what is still on its way to you, with
    {"commit": true}. Grant more with {"credit": n}.

        GET /v1/groups/billing/socket?topic=orders&credit=10
    """
    waits = call.waits()
    await _converse(socket, waits, GroupFeed(call.broker, group, topic, value, waits), credit)


@socket("/v1/queues/{queue}/socket")
async def queue_socket(
    call: Call, socket: Socket, queue: str, credit: Credit = 10, filter: Filter = "", value: Value = "auto"
) -> None:
    """Receive messages of a queue over a WebSocket, and settle them on it.

    No more than `credit` are out unsettled. Say {"ack": [receipt]}, {"nack": [receipt], "delay_ms": 1000} or
    {"reject": [receipt], "reason": "..."}. Leases last as long as the line; what is unsettled then is delivered again.

        GET /v1/queues/emails/socket?credit=10
    """
    waits = call.waits()
    await _converse(socket, waits, QueueFeed(call.broker, queue, credit, filter, value, waits), None)
