"""Runnel for programs that do without `async`: the same calls, which block.

    with connect("127.0.0.1:9092") as runnel:
        runnel.send("orders", {"id": 42})
        for message in runnel.queue("orders").messages():
            try:
                with message:
                    print(message.json())
            except Exception as error:
                print(f"it comes again: {error}")

A thread of its own runs the loop behind it, so that members of groups stay members while the program works. Any thread
may call.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from runnel.client import connecting, session
from runnel.client import queue as queues
from runnel.client.queue import DeadLetter
from runnel.client.values import Body, HeaderMap, Message, Pending, Sent
from runnel.model import calls
from runnel.shell.background import LoopThread


@contextmanager
def connect(
    *brokers: str | Iterable[str], name: str = "runnel", linger: float = 0.0, timeout: float | None = None
) -> Iterator["Runnel"]:
    """A connection to the cluster that these brokers belong to; as `runnel.client.connect`, in calls that block."""
    loop = LoopThread()
    opening = connecting.connect(*brokers, name=name, linger=linger, timeout=timeout)
    try:
        runnel = loop.run(opening.__aenter__())
        try:
            yield Runnel(runnel, loop)
        except BaseException as error:
            loop.run(opening.__aexit__(type(error), error, None))
            raise
        loop.run(opening.__aexit__(None, None, None))
    finally:
        loop.close()


class Runnel:
    """A cluster, for programs that send and receive."""

    def __init__(self, runnel: session.Runnel, loop: LoopThread) -> None:
        self._runnel = runnel
        self._loop = loop
        self.schedule = Schedule(runnel.schedule, loop)

    def send(
        self, topic: str, value: Body, *, key: str | bytes | None = None, headers: HeaderMap | None = None,
        partition: int | None = None, delay: float | timedelta | None = None, at: datetime | None = None,
        message_id: str | None = None,
    ) -> Sent:  # fmt: skip
        """Send a message, and wait until it is safe: on the disks of all replicas in sync."""
        return self._loop.run(
            self._runnel.send(
                topic, value, key=key, headers=headers, partition=partition, delay=delay, at=at, message_id=message_id
            )
        )

    def queue(self, name: str) -> "Queue":
        return Queue(self._runnel.queue(name), self._loop)

    @contextmanager
    def group(
        self, name: str, topics: str | Sequence[str], *, begin: str = "start", member: str | None = None
    ) -> Iterator["Group"]:
        """A member of a consumer group, for the time of the block. What was handed out is committed at its end,
        unless that is an exception."""

        async def joined() -> session.Group:
            return self._runnel.group(name, topics, begin=begin, member=member)

        group = self._loop.run(joined())
        try:
            yield Group(group, self._loop)
        except BaseException as error:
            self._loop.run(group.__aexit__(type(error), error, None))
            raise
        self._loop.run(group.__aexit__(None, None, None))

    def stream(self, topic: str, *, begin: str = "start", partition: int | None = None) -> Iterator[Message]:
        """Everything in a topic from its `start` or its `end` on, as it comes."""
        return self._loop.each(self._runnel.stream(topic, begin=begin, partition=partition))


class Group:
    """One member of a consumer group, as an iterator; `runnel.client.session.Group` says what is committed when."""

    def __init__(self, group: session.Group, loop: LoopThread) -> None:
        self._group = group
        self._loop = loop

    def poll(self, *, count_max: int = 500, wait: float = 1.0) -> list[Message]:
        """The next messages, after those before were committed; none if nothing came in time."""
        return self._loop.run(self._group.poll(count_max=count_max, wait=wait))

    def commit(self) -> None:
        """Commit now all that was handed out, the message in hand included."""
        self._loop.run(self._group.commit())

    def __iter__(self) -> "Group":
        return self

    def __next__(self) -> Message:
        return self._loop.run(self._group.__anext__())


class Queue:
    """One queue of the cluster."""

    def __init__(self, queue: queues.Queue, loop: LoopThread) -> None:
        self.name = queue.name
        self._queue = queue
        self._loop = loop

    def create(self, *, partitions: int = -1, exist_ok: bool = True, **settings: object) -> None:
        self._loop.run(self._queue.create(partitions=partitions, exist_ok=exist_ok, **settings))

    def alter(self, **settings: object) -> None:
        self._loop.run(self._queue.alter(**settings))

    def delete(self, *, topics: bool = False) -> None:
        self._loop.run(self._queue.delete(topics=topics))

    def describe(self) -> calls.QueueDescription:
        return self._loop.run(self._queue.describe())

    def send(
        self, value: Body, *, key: str | bytes | None = None, headers: HeaderMap | None = None,
        priority: int | None = None, delay: float | timedelta | None = None, at: datetime | None = None,
        ttl: float | timedelta | None = None, message_id: str | None = None,
    ) -> Sent:  # fmt: skip
        return self._loop.run(
            self._queue.send(
                value, key=key, headers=headers, priority=priority, delay=delay, at=at, ttl=ttl, message_id=message_id
            )
        )

    def receive(
        self, count: int = 1, *, wait: float = 0.0, lease: float | timedelta | None = None, consumer: str = "",
        filter: str = "",
    ) -> list["QueueMessage"]:  # fmt: skip
        found = self._loop.run(self._queue.receive(count, wait=wait, lease=lease, consumer=consumer, filter=filter))
        return [QueueMessage(message, self._loop) for message in found]

    def messages(
        self, *, batch: int = queues.BATCH, lease: float | timedelta | None = None, consumer: str = "", filter: str = ""
    ) -> Iterator["QueueMessage"]:
        """Messages as they come, for ever. Settle each."""
        found = self._queue.messages(batch=batch, lease=lease, consumer=consumer, filter=filter)
        for message in self._loop.each(found):
            yield QueueMessage(message, self._loop)

    def peek(self, count: int = 10, *, filter: str = "") -> list[Message]:
        return self._loop.run(self._queue.peek(count, filter=filter))

    def purge(self) -> int:
        return self._loop.run(self._queue.purge())

    def rewind(self, *, to: Literal["start", "end"] = "start", to_ms: int | None = None) -> None:
        self._loop.run(self._queue.rewind(to=to, to_ms=to_ms))

    def dead_letters(self, count: int = 100, *, filter: str = "") -> list[DeadLetter]:
        return self._loop.run(self._queue.dead_letters(count, filter=filter))

    def redrive(
        self, *, filter: str = "", to: str = "", rate_max: int = 0, limit: int = 0, dry_run: bool = False,
        only: Mapping[int, int] | None = None, value: Body = None, headers: Mapping[str, str] | None = None,
        merge: Mapping[str, object] | None = None,
    ) -> calls.RedriveState:  # fmt: skip
        return self._loop.run(
            self._queue.redrive(
                filter=filter, to=to, rate_max=rate_max, limit=limit, dry_run=dry_run, only=only, value=value,
                headers=headers, merge=merge,
            )
        )  # fmt: skip


@dataclass(frozen=True)
class QueueMessage:
    """A message that is leased to us; all that `runnel.client.queue.QueueMessage` has, in calls that block.

    As `with message` it is accepted at the end of the block. If an exception ends the block, it is released, with the
    exception as the reason, and the exception goes on. What was settled within the block stays as it was settled.
    """

    leased: queues.QueueMessage
    _loop: LoopThread

    def __getattr__(self, name: str) -> Any:
        return getattr(self.leased, name)

    def accept(self) -> None:
        self._loop.run(self.leased.accept())

    def release(self, *, delay: float | timedelta | None = None, reason: str = "") -> None:
        self._loop.run(self.leased.release(delay=delay, reason=reason))

    def reject(self, reason: str = "") -> None:
        self._loop.run(self.leased.reject(reason))

    def extend(self, lease: float | timedelta) -> None:
        self._loop.run(self.leased.extend(lease))

    def __enter__(self) -> "QueueMessage":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._loop.run(self.leased.__aexit__(kind, error, trace))


class Schedule:
    """Messages that wait for their time."""

    def __init__(self, schedule: session.Schedule, loop: LoopThread) -> None:
        self._schedule = schedule
        self._loop = loop

    def pending(self, topic: str = "") -> Iterator[Pending]:
        return self._loop.each(self._schedule.pending(topic))

    def count(self, topic: str = "") -> int:
        return self._loop.run(self._schedule.count(topic))

    def cancel(self, scheduled_id: str) -> None:
        self._loop.run(self._schedule.cancel(scheduled_id))

    def move(self, scheduled_id: str, *, delay: float | timedelta | None = None, at: datetime | None = None) -> None:
        self._loop.run(self._schedule.move(scheduled_id, delay=delay, at=at))
