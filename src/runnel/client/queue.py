"""Consuming by message: each goes to one consumer, which settles it; what is not settled comes again.

    queue = runnel.queue("orders")
    await queue.create(attempts_max=3)
    async for message in queue.messages():
        try:
            async with message: ...       # accepted at the end, released on an exception
        except Exception: ...             # which goes on: catch it, or the loop ends
    for message in await queue.receive(10, wait=20):
        await message.accept()            # or release(delay=5), reject("no such customer"), extend(60)

Settlements of one turn of the loop go in one call.
"""

import asyncio
import base64
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal

import msgspec
from msgspec.structs import replace

from runnel.client.calls import attempt, call, call_until_done
from runnel.client.cluster import Cluster
from runnel.client.outcome import error_of_failure
from runnel.client.producer import Producer
from runnel.client.sending import QueueSender
from runnel.client.values import Body, HeaderMap, Message, Sent, bytes_of, due_ms, headers_of, milliseconds
from runnel.model import calls
from runnel.model.errors import QueueAlreadyExists, RunnelError
from runnel.model.headers import TTL_MS
from runnel.model.queue_config import SECRETS, canonical, parse_setting

WAIT_S = 20.0  # of an empty queue, until it is asked again
SPARE_MS = 10_000  # for the answer itself
BATCH = 16
LOOK_S = 0.1  # at how far a re-drive is
CONSUMER_BYTES = 8  # of chance in a consumer's name
REASON_CHARS_MAX = 1_000  # as many as are kept
DEAD_PAGE = 500  # dead letters that are asked for at once


async def queues(cluster: Cluster, prefix: str = "", *, page_max: int = 1_000) -> list[calls.ListedQueue]:
    """All queues whose names begin so, by name; asked for page by page."""
    found: list[calls.ListedQueue] = []
    more = True
    while more:
        asked = calls.ListQueues(prefix, found[-1].queue if found else "", page_max)
        page = await call_until_done(cluster, calls.QUEUE_LIST, asked)
        found += page.queues
        more = page.more
    return found


def new_consumer(cluster: Cluster, kind: str) -> str:
    """A name for who receives and was given none, which nobody else has."""
    return f"{kind}-{cluster.rng.token(CONSUMER_BYTES).hex()}" if cluster.rng is not None else ""


class Queue:
    """One queue of the cluster. Whoever receives through it is one consumer, unless another name is given."""

    def __init__(self, cluster: Cluster, name: str, producer: Producer | None = None) -> None:
        self.name = name
        self.consumer = new_consumer(cluster, "python")
        self._cluster = cluster
        self._sender = QueueSender(cluster, name, producer)
        self._settlements = _Settlements(cluster, name)
        self._lanes: list[str] = []  # connections that nobody waits on now

    # --- the queue itself
    async def create(self, *, partitions: int = -1, exist_ok: bool = True, **settings: object) -> None:
        """Make the queue, and its topic if that is not there. Settings as in the guide, with `_` for `.`:
        `attempts_max=3`. A queue that exists is left as it is, and must have the settings that are given."""
        wanted = {name.replace("_", "."): _text(value) for name, value in settings.items()}
        try:
            await call(self._cluster, calls.QUEUE_CREATE, calls.CreateQueue(self.name, wanted, partitions))
        except QueueAlreadyExists:
            if not exist_ok:
                raise
            if wanted:
                _check_same(await self.describe(), wanted)

    async def alter(self, **settings: object) -> None:
        """Change settings; None brings one back to its default."""
        wanted = {name.replace("_", "."): None if value is None else _text(value) for name, value in settings.items()}
        self._sender.forget()
        await call_until_done(self._cluster, calls.QUEUE_ALTER, calls.AlterQueue(self.name, wanted))

    async def delete(self, *, topics: bool = False) -> None:
        """Delete the queue; with `topics`, the messages too."""
        self._sender.forget()
        await call(self._cluster, calls.QUEUE_DELETE, calls.DeleteQueue(self.name, topics))

    async def describe(self) -> calls.QueueDescription:
        return await call_until_done(self._cluster, calls.QUEUE_DESCRIBE, calls.NamedQueue(self.name))

    # --- messages
    async def send(
        self, value: Body, *, key: str | bytes | None = None, headers: HeaderMap | None = None,
        priority: int | None = None, delay: float | timedelta | None = None, at: datetime | None = None,
        ttl: float | timedelta | None = None, message_id: str | None = None,
    ) -> Sent:  # fmt: skip
        """Send a message to the queue's topic, into the lane of its priority, and wait until it is safe.

        It is not delivered before `delay` or `at`, nor later than `ttl` after it was in the queue.
        """
        listed = headers_of(headers)
        if ttl is not None:
            listed.append((TTL_MS, str(milliseconds(ttl)).encode()))
        outgoing = calls.Outgoing(
            bytes_of(value), bytes_of(key), listed, priority=priority,
            deliver_at_ms=due_ms(self._cluster.clock, delay, at), message_id=message_id,
        )  # fmt: skip
        return await self._sender.send(outgoing)

    async def receive(
        self, count: int = 1, *, wait: float = 0.0, lease: float | timedelta | None = None, consumer: str = "",
        filter: str = "",
    ) -> list["QueueMessage"]:  # fmt: skip
        """Lease up to so many messages, and wait so many seconds for the first. They are ours until the lease ends.

        Where no broker answers, others are asked, beyond the wait for as long as `connect` says. Messages that were
        leased for an answer which got lost come again when their lease ends.
        `consumer` names who receives, where a queue has one consumer at a time; without it, it is this `Queue`.
        """
        asked = self._question(count, lease, consumer, filter)
        loop = asyncio.get_running_loop()
        end = loop.time() + wait

        async def once() -> list["QueueMessage"]:
            return await self._lease(replace(asked, wait_ms=milliseconds(max(0.0, end - loop.time()))))

        return await self._cluster.persist(
            once, timeout_ms=milliseconds(wait) + self._cluster.settings.retry_timeout_ms
        )

    def _question(
        self, count: int, lease: float | timedelta | None, consumer: str, filter: str, wait: float = 0.0
    ) -> calls.Receive:
        return calls.Receive(
            self.name, count, wait_ms=milliseconds(wait), lease_ms=None if lease is None else milliseconds(lease),
            consumer=consumer or self.consumer, filter=filter,
        )  # fmt: skip

    async def _lease(self, asked: calls.Receive) -> list["QueueMessage"]:
        """Ask one broker, over a connection that nobody else waits on."""
        lane = self._lanes.pop() if self._lanes else self._cluster.new_lane("receive")
        timeout_ms = asked.wait_ms + SPARE_MS
        try:
            answer = await attempt(self._cluster, calls.QUEUE_RECEIVE, asked, timeout_ms=timeout_ms, lane=lane)
        except BaseException:
            self._cluster.close_lane(lane)  # so that the broker leases nothing to one who has gone
            raise
        self._lanes.append(lane)
        return [_leased(message, self._settlements) for message in answer.messages]

    async def messages(
        self, *, batch: int = BATCH, lease: float | timedelta | None = None, consumer: str = "", filter: str = ""
    ) -> AsyncGenerator["QueueMessage", None]:
        """Messages as they come, for ever, whatever becomes of the brokers; `batch` is how many are leased at once.
        Settle each.

        What was leased and not handed out when the loop is left goes back to the queue.
        """
        asked = self._question(batch, lease, consumer, filter, WAIT_S)
        while True:
            leased = deque(await self._cluster.outlast(lambda: self._lease(asked)))
            try:
                while leased:
                    yield leased.popleft()
            finally:
                await asyncio.gather(*map(_give_back, leased))

    async def peek(self, count: int = 10, *, filter: str = "") -> list[Message]:
        """Look at the next messages; nothing changes for anybody."""
        answer = await call_until_done(self._cluster, calls.QUEUE_PEEK, calls.Peek(self.name, count, filter=filter))
        return [Message.of(message) for message in answer.messages]

    async def purge(self) -> int:
        """Take out everything that is there now; returns how many messages."""
        answer = await call(self._cluster, calls.QUEUE_PURGE, calls.Purge(self.name))
        return sum(moved.after - moved.before for moved in answer.partitions)

    async def rewind(self, *, to: Literal["start", "end"] = "start", to_ms: int | None = None) -> None:
        """Deliver again what is still in the topic: from its start or a time on; to its end skips what is there."""
        request = calls.Rewind(self.name, to) if to_ms is None else calls.Rewind(self.name, "time", time_ms=to_ms)
        answer = await call(self._cluster, calls.QUEUE_REWIND, request)
        for moved in answer.partitions:
            if error := error_of_failure(moved.failure):
                raise error

    # --- dead letters
    async def dead_letters(self, count: int = 100, *, filter: str = "") -> list["DeadLetter"]:
        """Messages that the queue gave up, and why."""
        found: list[calls.DeadLetter] = []
        since: calls.Place | None = None
        while len(found) < count:
            asked = calls.ListDead(self.name, min(count - len(found), DEAD_PAGE), filter=filter, since=since)
            page = await call_until_done(self._cluster, calls.DEAD_LIST, asked)
            found += page.letters
            if (since := page.next) is None:
                break
        return [_dead(letter) for letter in found]

    async def redrive(
        self, *, filter: str = "", to: str = "", rate_max: int = 0, limit: int = 0, dry_run: bool = False,
        only: Mapping[int, int] | None = None, value: Body = None, headers: Mapping[str, str] | None = None,
        merge: Mapping[str, object] | None = None,
    ) -> calls.RedriveState:  # fmt: skip
        """Send dead letters back to where they came from, and wait until that is done.

        All of them, those that pass a filter, or one (`only={partition: offset}`), which may get a new value. `merge`
        is merged into the JSON of each (RFC 7396).
        """
        edit = "" if value is None else base64.b64encode(bytes_of(value) or b"").decode()
        places = [calls.Place(partition, offset) for partition, offset in (only or {}).items()]
        state = await call(
            self._cluster, calls.REDRIVE_START,
            calls.Redrive(
                self.name, filter, to, rate_max, limit, dry_run, places, edit, dict(headers or {}),
                merge="" if merge is None else msgspec.json.encode(merge).decode(),
            ),
        )  # fmt: skip
        while state.state == "running":
            await asyncio.sleep(LOOK_S)
            state = await call_until_done(self._cluster, calls.REDRIVE_STATUS, calls.RedriveTask(self.name, state.task))
        return state


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _check_same(found: calls.QueueDescription, wanted: Mapping[str, str]) -> None:
    """Refuse a queue that has other settings than wanted; nobody can tell that of secrets."""
    has = {setting.name: setting.value for setting in found.settings if setting.name not in SECRETS}
    for name, value in wanted.items():
        own = has.get(canonical(name))
        if own is not None and parse_setting(name, own) != parse_setting(name, value):
            raise QueueAlreadyExists(
                f"queue {found.queue!r} exists already, with {name}={own} instead of {value}: alter it, or leave the"
                " setting out"
            )


@dataclass(frozen=True)
class DeadLetter(Message):
    """A message that a queue gave up: where it came from, and why."""

    origin_topic: str = ""
    origin_partition: int = -1
    origin_offset: int = -1
    reason: str = ""
    attempts: int = 0


def _dead(letter: calls.DeadLetter) -> DeadLetter:
    message = letter.message
    return DeadLetter(
        message.topic, message.partition, message.offset, message.timestamp_ms, message.key, message.value,
        dict(message.headers), letter.origin_topic, letter.origin_partition, letter.origin_offset, letter.reason,
        letter.attempts,
    )  # fmt: skip


@dataclass(frozen=True)
class QueueMessage(Message):
    """A message that is leased to us: settle it before the lease ends, or it goes to another.

    As `async with message` it is accepted at the end of the block. If an exception ends the block, it is released, with
    the exception as the reason, and the exception goes on. What was settled within the block stays as it was settled.
    """

    attempt: int = 1  # how often it was delivered, with this time
    leased_until_ms: int = -1
    receipt: str = field(default="", repr=False)
    settlements: "_Settlements" = field(repr=False, compare=False, kw_only=True)
    said: list[calls.Outcome] = field(default_factory=list, repr=False, compare=False)  # what it was settled as

    async def accept(self) -> None:
        """Done: it is never delivered again. Returns when that is safe."""
        await self._settle(calls.Settlement(self.receipt, "accept"))

    async def release(self, *, delay: float | timedelta | None = None, reason: str = "") -> None:
        """Not done: deliver it again after the delay, or as the queue's retries say.

        The reason is that of the dead letter, if this was the last attempt.
        """
        delay_ms = None if delay is None else milliseconds(delay)
        await self._settle(calls.Settlement(self.receipt, "release", delay_ms, written(reason)))

    async def reject(self, reason: str = "") -> None:
        """Never to be done: it goes to the dead letters."""
        await self._settle(calls.Settlement(self.receipt, "reject", reason=written(reason)))

    async def extend(self, lease: float | timedelta) -> None:
        """Keep it for so long from now on."""
        await self.settlements.extend(self.receipt, milliseconds(lease))

    async def _settle(self, settlement: calls.Settlement) -> None:
        await self.settlements.settle(settlement)
        self.said.append(settlement.outcome)

    async def __aenter__(self) -> "QueueMessage":
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self.said:
            return
        await (self.accept() if error is None else self.release(reason=reason_of(error)))


def reason_of(error: BaseException) -> str:
    """The reason that a dead letter gives: the error that ended its last attempt; none for an interruption."""
    if not isinstance(error, Exception):
        return ""
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def written(reason: str) -> str:
    """A reason as it can be sent and kept: not too long, and of characters that UTF-8 has."""
    return reason[:REASON_CHARS_MAX].encode(errors="backslashreplace").decode()[:REASON_CHARS_MAX]


async def _give_back(message: "QueueMessage") -> None:
    with suppress(RunnelError):  # it comes again anyway, when its lease ends
        await message.release(delay=0)


def _leased(message: calls.Delivered, settlements: "_Settlements") -> QueueMessage:
    return QueueMessage(
        message.topic, message.partition, message.offset, message.timestamp_ms, message.key, message.value,
        dict(message.headers), message.attempt, message.leased_until_ms, message.receipt, settlements=settlements,
    )  # fmt: skip


class _Settlements:
    """Collects what is settled in one turn of the loop, and asks once for all of it."""

    def __init__(self, cluster: Cluster, queue: str) -> None:
        self._cluster = cluster
        self._queue = queue
        self._waiting: list[tuple[calls.Settlement, asyncio.Future[None]]] = []
        self._sending: set[asyncio.Task[None]] = set()

    async def settle(self, settlement: calls.Settlement) -> None:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if not self._waiting:
            task = asyncio.get_running_loop().create_task(self._send())
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        self._waiting.append((settlement, done))
        await done

    async def _send(self) -> None:
        """A receipt can be settled the same way twice without harm: asked again when the connection broke."""
        batch, self._waiting = self._waiting, []
        request = calls.Settle(self._queue, [settlement for settlement, _ in batch])
        try:
            answer = await call_until_done(self._cluster, calls.QUEUE_SETTLE, request)
            results = [error_of_failure(failure) for failure in answer.failures]
        except RunnelError as error:
            results = [error] * len(batch)
        for (_, done), refused in zip(batch, results, strict=True):
            if done.done():
                continue  # nobody waits for it any more
            if refused is not None:
                done.set_exception(refused)
            else:
                done.set_result(None)

    async def extend(self, receipt: str, lease_ms: int) -> None:
        request = calls.Extend(self._queue, [receipt], lease_ms)
        answer = await call_until_done(self._cluster, calls.QUEUE_EXTEND, request)
        if error := error_of_failure(answer.failures[0]):
            raise error
