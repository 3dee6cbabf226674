"""One WebSocket for all that a page shows: subscribe to what is on the screen, and hear of it when it changes.

Rule 1: a subscription is a view (of the cluster, topics, groups, queues: looked at again and again, told when it has
        changed) or the tail of a topic.
Rule 2: what waits for a client is bounded: of each view the newest alone, of a tail so many messages. What does not fit
        is dropped, and the next message of that tail says how many were skipped.
Rule 3: what goes wrong with one subscription ends that one, with a reason.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta, Raw

from runnel.doors.http.call import Call, PeerWaits
from runnel.doors.http.cluster import describe_cluster
from runnel.doors.http.feeds import PART_BYTES, TopicFeed
from runnel.doors.http.following import tail_of
from runnel.doors.http.groups import describe_group, list_groups
from runnel.doors.http.operation import Struct, decoded, socket
from runnel.doors.http.payload import Partition
from runnel.doors.http.problems import InvalidInput, problem_of
from runnel.doors.http.queues import describe_queue, list_queues
from runnel.doors.http.socket import Socket
from runnel.doors.http.topics import describe_topic, list_topics
from runnel.model.errors import RetriableError, RunnelError
from runnel.net.http import INTERNAL

SUBSCRIPTIONS_MAX: Final = 32
TAIL_MAX: Final = 500  # messages of a tail that wait for the client
LOOK_S: Final = 15.0
PART_MAX: Final = 100

Kind = Literal["overview", "topics", "topic", "groups", "group", "queues", "queue", "tail"]


class Subscription(Struct):
    """What a page wants to hear of."""

    id: Annotated[str, Meta(min_length=1, max_length=100)]
    kind: Kind
    name: str = ""  # of the topic, group or queue
    every_ms: Annotated[int, Meta(ge=250, le=60_000)] = 2_000  # of a view: between two looks
    begin: str = "end"  # of a tail
    partitions: list[Partition] | None = None
    filter: Annotated[str, Meta(max_length=4096)] = ""
    value: Literal["auto", "json", "text", "base64"] = "auto"


class Said(Struct):
    subscribe: Subscription | None = None
    unsubscribe: str | None = None


VIEWS: dict[str, Callable[[Call, str], Awaitable[Any]]] = {
    "overview": lambda call, _: describe_cluster(call),
    "topics": lambda call, _: list_topics(call),
    "topic": describe_topic,
    "groups": lambda call, _: list_groups(call),
    "group": describe_group,
    "queues": lambda call, _: list_queues(call),
    "queue": describe_queue,
}

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Said).decode


class _Outbox:
    """What waits for the client (rule 2)."""

    def __init__(self) -> None:
        self._views: OrderedDict[str, bytes] = OrderedDict()
        self._tails: dict[str, deque[bytes]] = {}
        self._bytes = 0
        self._skipped: dict[str, int] = {}
        self._some = asyncio.Event()

    def view(self, id: str, content: bytes) -> None:
        self._views[id] = content
        self._some.set()

    def message(self, id: str, content: bytes) -> None:
        waiting = self._tails.setdefault(id, deque())
        waiting.append(content)
        self._bytes += len(content)
        while len(waiting) > TAIL_MAX or (self._bytes > 4 * PART_BYTES and len(waiting) > 1):
            self._bytes -= len(waiting.popleft())
            self._skipped[id] = self._skipped.get(id, 0) + 1
        self._some.set()

    def forget(self, id: str) -> None:
        self._views.pop(id, None)
        self._bytes -= sum(map(len, self._tails.pop(id, ())))
        self._skipped.pop(id, None)

    async def take(self) -> dict[str, Any]:
        """The next to be sent: views first, they are few."""
        while True:
            if self._views:
                id, content = self._views.popitem(last=False)
                return {"id": id, "view": Raw(content)}
            for id, waiting in self._tails.items():
                if waiting:
                    content = waiting.popleft()
                    self._bytes -= len(content)
                    skipped = self._skipped.pop(id, 0)
                    return {"id": id, **({"skipped": skipped} if skipped else {}), "message": Raw(content)}
            self._some.clear()
            await self._some.wait()


class _Live:
    """One page."""

    def __init__(self, call: Call, socket: Socket, waits: PeerWaits) -> None:
        self._call = call
        self._socket = socket
        self._waits = waits
        self._outbox = _Outbox()
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        sender = asyncio.ensure_future(self._send_all())
        hearer = asyncio.ensure_future(self._hear())
        try:
            await asyncio.wait([sender, hearer], return_when=asyncio.FIRST_COMPLETED)
        finally:
            tasks = [sender, hearer, *self._tasks.values()]
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
        for result in results[:2]:
            if isinstance(result, Exception):
                raise result

    async def _send_all(self) -> None:
        while True:
            await self._socket.send(_encode(await self._outbox.take()).decode())

    async def _hear(self) -> None:
        while True:
            text = await self._socket.receive()
            said = decoded(_decode, text.encode() if isinstance(text, str) else text)
            if said.unsubscribe is not None:
                self._unsubscribe(said.unsubscribe)
            if said.subscribe is not None:
                self._subscribe(said.subscribe)

    def _subscribe(self, wanted: Subscription) -> None:
        self._unsubscribe(wanted.id)
        if len(self._tasks) >= SUBSCRIPTIONS_MAX:
            raise InvalidInput(f"a page has {SUBSCRIPTIONS_MAX} subscriptions at most: end some first")
        work = self._tail(wanted) if wanted.kind == "tail" else self._look(wanted)
        task = self._tasks[wanted.id] = asyncio.ensure_future(self._tell(wanted.id, work))
        task.add_done_callback(partial(self._ended, wanted.id))

    def _unsubscribe(self, id: str) -> None:
        task = self._tasks.pop(id, None)
        if task is not None:
            task.cancel()
            self._outbox.forget(id)

    async def _tell(self, id: str, work: Awaitable[None]) -> None:
        """Rule 3."""
        try:
            await work
        except RunnelError as error:
            self._outbox.view(id, _encode({"error": problem_of(error)}))

    def _ended(self, id: str, task: asyncio.Task[None]) -> None:
        """Rule 3, for what nobody foresaw: the page hears that, the log what it was."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self._outbox.view(id, _encode({"error": Raw(INTERNAL)}))
            raise error

    async def _look(self, wanted: Subscription) -> None:
        look, last = VIEWS[wanted.kind], b""
        while not self._waits.over:
            try:
                content = _encode(await look(self._call, wanted.name))
            except RetriableError as error:
                content = _encode({"error": problem_of(error)})
            if content != last:
                last = content
                self._outbox.view(wanted.id, content)
            await asyncio.sleep(wanted.every_ms / 1000)

    async def _tail(self, wanted: Subscription) -> None:
        tail = tail_of(self._call, wanted.name, wanted.begin, wanted.partitions, wanted.filter, self._waits)
        async with TopicFeed(tail, wanted.value) as feed:
            while not self._waits.over:
                for one in await feed.next(PART_MAX, LOOK_S):
                    self._outbox.message(wanted.id, _encode(one.view))
                await asyncio.sleep(0)


@socket("/v1/live")
async def live(call: Call, socket: Socket) -> None:
    """Hear of all that a page shows, over one WebSocket.

    Say {"subscribe": {"id": "a", "kind": "overview"}} and {"unsubscribe": "a"}. Kinds are overview, topics, groups and
    queues, and with a name topic, group and queue (told when they change), and tail (the messages of a topic; begin,
    partitions and filter as for a stream). What comes has the id of its subscription, and a view or a message; of a
    tail that is faster than the line, skipped says how many messages were dropped.

        GET /v1/live
    """
    waits = call.waits()
    with waits:
        await socket.accept()
        await _Live(call, socket, waits).run()
