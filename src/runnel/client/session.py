"""Runnel for programs: send, delay, receive, settle, stream. What the examples use.

    async with connect("127.0.0.1:9092") as runnel:
        await runnel.send("orders", {"id": 42}, key="42")          # stored on the disks of all replicas in sync
        await runnel.send("reminders", "tea", delay=90)            # seconds, or a timedelta; or at=datetime
        async for message in runnel.queue("orders").messages():    # each to one consumer, until it is settled
            try:
                async with message:                                # accepted at the end, released on an exception
                    print(message.json())
            except Exception as error:
                print(f"it comes again: {error}")

The same without `async`: `runnel.client.sync`.
"""

from collections.abc import AsyncGenerator, Sequence
from datetime import datetime, timedelta

from runnel.client.admin import Admin
from runnel.client.calls import call, call_until_done
from runnel.client.cluster import Cluster
from runnel.client.consumer import Consumer
from runnel.client.group_consumer import GroupConsumer, GroupConsumerSettings
from runnel.client.membership import GroupSettings
from runnel.client.metadata import TopicPartition
from runnel.client.outcome import only, raise_for
from runnel.client.positions import END, START, Position
from runnel.client.producer import Producer, ProducerSettings
from runnel.client.queue import Queue
from runnel.client.sending import send_to_topic
from runnel.client.values import (
    Body,
    HeaderMap,
    Message,
    Pending,
    Sent,
    bytes_of,
    due_ms,
    headers_of,
    milliseconds,
    pending_of,
)
from runnel.model import calls
from runnel.model.errors import InvalidConfig

__all__ = ["Group", "Message", "Pending", "Queue", "Runnel", "Schedule", "Sent"]

PAGE = 1_000
COMMIT_MS = 1_000  # how often a loop over a group commits: for each message, most of the time would go there
WAIT_MS = 1_000  # for the next message, until it is looked again whether a commit is due


class Runnel:
    """A cluster, for programs that send and receive. Safe to use from many tasks of one loop."""

    def __init__(self, cluster: Cluster, producer: ProducerSettings | None = None) -> None:
        self.cluster = cluster
        self.admin = Admin(cluster)
        self.schedule = Schedule(cluster)
        self._producer = Producer(cluster, producer)
        self._queues: dict[str, Queue] = {}

    async def __aenter__(self) -> "Runnel":
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close(flush=kind is None)

    async def close(self, *, flush: bool = True) -> None:
        """Send what is still to be sent (or give it up), and close the connections.

        What fails, the `send` raises that waits for it.
        """
        try:
            if flush:
                await self._producer.drain()
            await self._producer.close(flush=False)
        finally:
            await self.cluster.close()

    async def send(
        self, topic: str, value: Body, *, key: str | bytes | None = None, headers: HeaderMap | None = None,
        partition: int | None = None, delay: float | timedelta | None = None, at: datetime | None = None,
        message_id: str | None = None,
    ) -> Sent:  # fmt: skip
        """Send a message, and wait until it is safe: on the disks of all replicas in sync.

        Text is sent as UTF-8, everything but bytes and text as JSON. With `delay` or `at` it is kept apart until then,
        and `Sent.scheduled_id` cancels or moves it. A second message of one `message_id` is not stored: the answer
        is the place of the first.
        """
        payload, name = bytes_of(value), bytes_of(key)
        due = due_ms(self.cluster.clock, delay, at)
        if due is None and message_id is None:
            delivery = await self._producer.send(
                topic, payload, key=name, partition=partition, headers=tuple(headers_of(headers))
            )
            return Sent(*await delivery)
        outgoing = calls.Outgoing(
            payload, name, headers_of(headers), partition, deliver_at_ms=due, message_id=message_id
        )
        answer = await send_to_topic(self.cluster, topic, [outgoing])
        return Sent.of(only(answer.placed, answer.failures))

    def queue(self, name: str) -> Queue:
        """A queue by its name; `await queue.create()` makes it."""
        return self._queues.setdefault(name, Queue(self.cluster, name, self._producer))

    def group(
        self, name: str, topics: str | Sequence[str], *, begin: str = "start", member: str | None = None
    ) -> "Group":
        """A member of a consumer group: `async with runnel.group("billing", "orders") as group`.

        A group without committed offsets begins at the `start` of each partition, or at its `end`. A member with a
        name of its own gets its partitions back when it comes back soon.
        """
        wanted = [topics] if isinstance(topics, str) else list(topics)
        settings = GroupConsumerSettings(
            group=GroupSettings(instance_id=member), begin=_position(begin), commit_ms=COMMIT_MS
        )
        return Group(GroupConsumer(self.cluster, name, wanted, settings))

    async def stream(
        self, topic: str, *, begin: str = "start", partition: int | None = None
    ) -> AsyncGenerator[Message, None]:
        """Everything in a topic from its `start` or its `end` on, as it comes; for as long as you read on."""
        known = await self.cluster.topic(topic)
        numbers = known.partitions if partition is None else [partition]
        async with Consumer(self.cluster) as consumer:
            await consumer.assign({TopicPartition(topic, number): _position(begin) for number in numbers})
            async for message in consumer:
                yield Message.of(message)


def _position(text: str) -> Position:
    if text not in ("start", "end"):
        raise InvalidConfig(f"can't begin at {text!r}: use 'start' or 'end'")
    return START if text == "start" else END


class Group:
    """One member of a consumer group, as an asynchronous iterator. One task at a time reads it.

    Rule 1: what was handed out is handled when more is asked for, and at the end of the block. Then it is committed:
            by the next `poll`, within about a second by a loop, by the end of the block.
    Rule 2: an exception that leaves the block commits nothing: all that was handed out since the last commit is handed
            out again, to whoever has the partition then. At least once.
    Rule 3: nothing is committed, and nothing counts as read, that was not handed out: who leaves a loop and begins
            another goes on behind the last message.
    """

    def __init__(self, consumer: GroupConsumer) -> None:
        self.consumer = consumer

    async def __aenter__(self) -> "Group":
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.consumer.close(commit=kind is None)

    async def poll(self, *, count_max: int = 500, wait: float = 1.0) -> list[Message]:
        """The next messages, after those before were committed; none if nothing came in time."""
        await self.consumer.commit_if_seated()
        return await self._next(count_max, milliseconds(wait))

    async def commit(self) -> None:
        """Commit now all that was handed out, the message in hand included."""
        await self.consumer.commit()

    def __aiter__(self) -> "Group":
        return self

    async def __anext__(self) -> Message:
        while not (found := await self._next(1, WAIT_MS)):
            pass
        return found[0]

    async def _next(self, count_max: int, wait_ms: int) -> list[Message]:
        return [Message.of(found) for found in await self.consumer.poll(count_max=count_max, timeout_ms=wait_ms)]


class Schedule:
    """Messages that wait for their time."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def pending(self, topic: str = "") -> AsyncGenerator[Pending, None]:
        """What waits, of one topic or of all, in the order in which it is due."""
        from_ms, after = 0, ""
        while True:
            page = await call_until_done(
                self._cluster, calls.SCHEDULE_LIST, calls.ListPending(topic, from_ms, PAGE, after, with_values=True)
            )
            for message in page.messages:
                yield pending_of(message)
            if not page.more or not page.messages:
                return
            from_ms, after = page.messages[-1].due_ms, page.messages[-1].id

    async def count(self, topic: str = "") -> int:
        answer = await call_until_done(self._cluster, calls.SCHEDULE_COUNT, calls.CountPending(topic))
        return answer.messages

    async def cancel(self, scheduled_id: str) -> None:
        """Take a message back; raises NotPending if it was sent, or never was. One may be cancelled again."""
        answer = await call_until_done(self._cluster, calls.SCHEDULE_CANCEL, calls.Cancel([scheduled_id]))
        raise_for(answer.failures)

    async def move(
        self, scheduled_id: str, *, delay: float | timedelta | None = None, at: datetime | None = None
    ) -> None:
        """Send a message at another time; raises NotPending if it was sent, or never was."""
        due = due_ms(self._cluster.clock, delay, at)
        if due is None:
            raise InvalidConfig(f"can't move {scheduled_id!r}: say when, by `delay` or by `at`")
        answer = await call(self._cluster, calls.SCHEDULE_MOVE, calls.Move(scheduled_id, due))
        raise_for(answer.failures)
