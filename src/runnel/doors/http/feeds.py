"""What is pushed: feeds of topics, groups, queues and users, each with the next few messages on demand.

Rule 1: a feed gives no more than it is asked for, and waits for the first no longer than asked, nor than `waits`.
Rule 2: with each message comes the id from which to go on behind it; a queue's messages have none: settling says that.
Rule 3: of a queue no more messages are out than were granted.
"""

from collections import deque
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, NamedTuple, Protocol, Self

from runnel.broker.broker import Broker
from runnel.broker.fetch import Waits
from runnel.broker.grants import Grants
from runnel.broker.tailing import Tail
from runnel.doors.http.deliveries import delivered_view
from runnel.doors.http.following import shown_place, shown_positions
from runnel.doors.http.inbox import received
from runnel.doors.http.messages import message_view
from runnel.doors.http.payload import Form, MessageView, body_of
from runnel.doors.http.problems import Stopping
from runnel.model.calls import Read
from runnel.model.errors import NoSuchMember, RunnelError
from runnel.model.limits import MIB
from runnel.model.members import CloseMember, CommitMember, OpenMember, PollMember
from runnel.route.filter import compile

PART_BYTES: Final = MIB // 4
MEMBER_MS: Final = 60_000


class Pushed(NamedTuple):
    """One message as it is shown, and from where to go on behind it."""

    id: str
    view: Any


class Feed(Protocol):
    async def __aenter__(self) -> Self: ...

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def hello(self) -> Pushed:
        """What a client is told first, and from where it goes on if that is all it hears."""
        ...

    async def next(self, limit: int, timeout_s: float) -> list[Pushed]: ...


class TopicFeed:
    """The messages of a topic, from a place on."""

    def __init__(self, tail: Tail, form: Form) -> None:
        self._tail = tail
        self._form = form
        self._left: deque[Read] = deque()  # of one part
        self._shown: dict[int, int] = {}

    async def __aenter__(self) -> Self:
        await self._tail.__aenter__()
        self._shown = dict(self._tail.positions)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._tail.__aexit__(kind, error, trace)

    @property
    def position(self) -> str:
        return shown_positions(self._shown)

    def hello(self) -> Pushed:
        return Pushed(self.position, {"position": self.position})

    async def next(self, limit: int, timeout_s: float) -> list[Pushed]:
        if not self._left:
            part = await self._tail.next(timeout_s)
            self._left.extend(part.messages if part is not None else ())
        pushed: list[Pushed] = []
        while self._left and len(pushed) < limit:
            message = self._left.popleft()
            self._shown[message.partition] = message.offset + 1
            pushed.append(Pushed(self.position, message_view(message, self._form)))
        return pushed


class GroupFeed:
    """The messages of a member of a group, which lives as long as the feed. Nothing is committed but what is told."""

    def __init__(self, broker: Broker, group: str, topics: list[str], form: Form, waits: Waits) -> None:
        self._broker = broker
        self._group = group
        self._topics = topics
        self._form = form
        self._waits = waits
        self.member = ""
        for topic in topics:
            broker.image.topic_named(topic)

    async def __aenter__(self) -> Self:
        opened = await self._broker.members.open(OpenMember(self._group, self._topics, expires_ms=MEMBER_MS))
        self.member = opened.id
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._broker.members.close_member(CloseMember(self.member, self._group))
        except RunnelError:
            return  # it expires by itself

    def hello(self) -> Pushed:
        return Pushed("", {"member": self.member})

    async def next(self, limit: int, timeout_s: float) -> list[Pushed]:
        asked = PollMember(self.member, self._group, limit, int(timeout_s * 1000))
        try:
            polled = await self._broker.members.poll(asked, self._waits)
        except NoSuchMember:
            if not self._broker.members.stopped:
                raise
            raise Stopping("the broker is about to stop: come back, and go on from what was committed") from None
        return [
            Pushed(shown_place(one.topic, one.partition, one.offset + 1), self._view(one)) for one in polled.messages
        ]

    def _view(self, message: Read) -> MessageView:
        return MessageView(
            topic=message.topic, partition=message.partition, offset=message.offset, timestamp_ms=message.timestamp_ms,
            **body_of(message.key, message.value, message.headers, self._form),
        )  # fmt: skip

    async def commit(self, offsets: Sequence[tuple[str, int, int]] | None) -> None:
        """What was read is done: up to these offsets; None: all of it."""
        told = None if offsets is None else tuple(offsets)
        await self._broker.members.commit(CommitMember(self.member, self._group, told))


class QueueFeed:
    """The messages of a queue. They are leased until the feed ends, or somebody settles them (broker/grants.py)."""

    def __init__(self, broker: Broker, queue: str, credit: int, filter: str, form: Form, waits: Waits) -> None:
        self._queue = queue
        self._form = form
        lease_ms = broker.queues.lease_ms(queue)
        self._queues = broker.queues
        self._consumer = broker.queues.new_consumer("stream")
        self.grants = Grants(
            broker.calls, broker.id, queue, lease_ms, credit, waits, filter=filter, consumer=self._consumer
        )
        if filter:
            compile(filter)

    async def __aenter__(self) -> Self:
        await self.grants.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.grants.__aexit__(kind, error, trace)
        self._queues.gone(self._queue, self._consumer)

    def hello(self) -> Pushed:
        return Pushed("", {"queue": self._queue, "credit": self.grants.credit})

    async def next(self, limit: int, timeout_s: float) -> list[Pushed]:
        return [Pushed("", delivered_view(one, self._form)) for one in await self.grants.receive(limit, timeout_s)]


class UserFeed:
    """The messages to a user."""

    def __init__(self, broker: Broker, user: str, last_id: str | None, waits: Waits) -> None:
        self._broker = broker
        self._user = user
        self._last_id = last_id
        self._waits = waits

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def hello(self) -> Pushed:
        return Pushed("", {"user": self._user})

    async def next(self, limit: int, timeout_s: float) -> list[Pushed]:
        found = await self._broker.inbox.receive(
            self._user, self._last_id, wait_ms=int(timeout_s * 1000), messages_max=limit, waits=self._waits
        )
        views = received(found)
        if views:
            self._last_id = views[-1].message_id
        return [Pushed(view.message_id, view) for view in views]
