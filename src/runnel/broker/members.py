"""Members of consumer groups that a broker runs for those who can't: over HTTP, nobody sends heartbeats.

Rule 1: a member lives on the broker that made it, which its id names; every other broker asks that one.
Rule 2: whoever does not ask for its member for a while loses it; it leaves the group then, as when its broker ends.
Rule 3: there are few at a time, and each holds few bytes.
Rule 4: the messages of an answer that did not arrive come again, to who says which answer arrived last.
Rule 5: nothing is committed but what is told.
Rule 6: a member's client id names its broker's life: its coordinator removes it when that is over (groups/orphans.py).
Rule 7: a poll ends with whoever asked: what it did not take by then is left for the next one.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

from runnel.broker.calls import Calls
from runnel.broker.fetch import Waits
from runnel.broker.internal import refuse_reading
from runnel.client.cluster import Cluster
from runnel.client.errors import BrokerUnreachable
from runnel.client.fetcher import FetchSettings
from runnel.client.group_consumer import GroupConsumer, GroupConsumerSettings
from runnel.client.membership import GroupSettings
from runnel.client.metadata import TopicPartition
from runnel.client.positions import END, START
from runnel.model.calls import Nothing, Read
from runnel.model.errors import NoSuchMember, RunnelError, TooManyMembers
from runnel.model.ids import BrokerId
from runnel.model.limits import KIB, MIB
from runnel.model.members import (
    MEMBER_CLOSE,
    MEMBER_COMMIT,
    MEMBER_POLL,
    CloseMember,
    CommitMember,
    Opened,
    OpenMember,
    Polled,
    PollMember,
)
from runnel.model.numbers import whole_number
from runnel.model.seams import Rng

MEMBERS_MAX: Final = 256  # of one broker: each has connections and a task of its own
WAIT_MS_MAX: Final = 60_000
ANSWER_MS: Final = 15_000  # beyond the wait that was asked for
CLOSE_S: Final = 3.0  # to leave the group in order
TOKEN_BYTES: Final = 12
FETCH: Final = FetchSettings(bytes_max=MIB, partition_bytes_max=256 * KIB, buffer_bytes_max=MIB)

T = TypeVar("T")

logger = logging.getLogger("runnel.groups")


class _Member:
    """One seat, and what its client was answered last. A block of `with` is a call for it."""

    def __init__(self, consumer: GroupConsumer, expires_s: float, expire: Callable[[], None]) -> None:
        self.consumer = consumer
        self.turn = asyncio.Lock()  # a client that asks twice at once is answered in turn
        self.last = Polled(0, [], [])
        self._expires_s = expires_s
        self._expire = expire
        self._calls = 0  # under way
        self._life = Waits()
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> "_Member":
        """Somebody asks: it does not expire meanwhile."""
        self._calls += 1
        self.keep()
        return self

    def __exit__(self, *_: object) -> None:
        self._calls -= 1
        if not self._calls:
            self.rest()

    def rest(self) -> None:
        """From now on it is nobody's, unless somebody asks again."""
        self.keep()
        self._timer = asyncio.get_running_loop().call_later(self._expires_s, self._expire)

    def keep(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    async def poll(self, asked: PollMember, waits: Waits) -> Polled:
        async with self.turn:
            if 0 <= asked.after < self.last.number:
                return self.last  # rule 4
            wait_ms = min(max(asked.wait_ms, 0), WAIT_MS_MAX)
            polling = self.consumer.poll(count_max=max(1, asked.messages_max), timeout_ms=wait_ms)
            longest_s = (wait_ms + ANSWER_MS) / 1000
            found = await waits.within(longest_s, self._life.within(longest_s, polling)) or ()
            messages = [
                Read(one.topic, one.partition, one.offset, one.timestamp_ms, one.key, one.value, list(one.headers))
                for one in found
            ]
            held = [(where.topic, where.partition) for where in self.consumer.assignment]
            self.last = Polled(self.last.number + 1, messages, held)
            return self.last

    async def leave(self) -> None:
        """End the poll under way, then leave the group."""
        self._life.end()
        async with self.turn:
            await self.consumer.close(commit=False)

    async def commit(self, offsets: Sequence[tuple[str, int, int]] | None) -> None:
        """Of a partition that is told several times, the furthest counts; nothing told is nothing committed."""
        if offsets is None:
            await self.consumer.commit()
            return
        told = {TopicPartition(topic, number): offset for topic, number, offset in sorted(offsets)}
        await self.consumer.commit(told)


class Members:
    """The verbs, on any broker."""

    def __init__(self, me: BrokerId, calls: Calls, cluster: Callable[[], Cluster], rng: Rng) -> None:
        self._me = me
        self._calls = calls
        self._cluster = cluster
        self._rng = rng
        self._members: dict[str, _Member] = {}
        self.stopped = False  # there are none any more
        self._leaving: set[asyncio.Task[None]] = set()
        calls.serve_waiting(MEMBER_POLL, self._poll_here)
        calls.serve(MEMBER_COMMIT, self._commit_here)
        calls.serve(MEMBER_CLOSE, self._close_here)

    def __len__(self) -> int:
        return len(self._members)

    # --- verbs

    async def open(self, asked: OpenMember) -> Opened:
        """Make a member here. It joins its group with the first poll."""
        if self.stopped:
            raise NoSuchMember("this broker stops: make the member on another one")
        if len(self._members) >= MEMBERS_MAX:
            raise TooManyMembers(
                f"broker {self._me} runs {MEMBERS_MAX} members of groups already: close some, or ask another broker"
            )
        for topic in asked.topics:
            refuse_reading(topic)
        begin = END if asked.from_end else START
        settings = GroupConsumerSettings(GroupSettings(), FETCH, begin, commit_ms=None)
        consumer = GroupConsumer(self._cluster(), asked.group, asked.topics, settings)
        name = f"{self._me}-{self._rng.token(TOKEN_BYTES).hex()}"
        member = _Member(consumer, asked.expires_ms / 1000, lambda: self._drop(name))
        self._members[name] = member
        member.rest()
        return Opened(name)

    async def poll(self, asked: PollMember, waits: Waits | None = None) -> Polled:
        """The next messages of a member; waits for the first no longer than asked, nor than `waits`."""
        timeout_ms = min(asked.wait_ms, WAIT_MS_MAX) + ANSWER_MS
        return await _told(self._calls.ask(_home(asked.id), MEMBER_POLL, asked, timeout_ms=timeout_ms, waits=waits))

    async def commit(self, asked: CommitMember) -> None:
        await _told(self._calls.ask(_home(asked.id), MEMBER_COMMIT, asked))

    async def close_member(self, asked: CloseMember) -> None:
        await _told(self._calls.ask(_home(asked.id), MEMBER_CLOSE, asked))

    # --- what its own broker does

    async def _poll_here(self, asked: PollMember, waits: Waits) -> Polled:
        await asyncio.sleep(0)  # a request that was answered at once until now goes on in a task: timeouts need one
        with self._find(asked.id, asked.group) as member:
            return await member.poll(asked, waits)

    async def _commit_here(self, asked: CommitMember) -> Nothing:
        await asyncio.sleep(0)
        with self._find(asked.id, asked.group) as member:
            await member.commit(asked.offsets)
        return Nothing()

    async def _close_here(self, asked: CloseMember) -> Nothing:
        await asyncio.sleep(0)
        self._find(asked.id, asked.group)
        await self._leave(asked.id)
        return Nothing()

    def _find(self, name: str, group: str) -> _Member:
        member = self._members.get(name)
        if member is None or member.consumer.group != group:
            raise NoSuchMember(
                f"there is no member {name!r} of group {group!r}: it expired, was closed, or ended with its broker"
            )
        return member

    # --- ends

    def _drop(self, name: str) -> None:
        task = asyncio.get_running_loop().create_task(self._leave(name))
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _leave(self, name: str) -> None:
        member = self._members.pop(name, None)
        if member is None:
            return
        member.keep()
        try:
            async with asyncio.timeout(CLOSE_S):
                await member.leave()
        except (RunnelError, TimeoutError) as error:
            logger.info("a member of group %r did not leave in order: %s", member.consumer.group, error)

    async def stop(self) -> None:
        """Leave all groups, for good."""
        self.stopped = True
        for name in list(self._members):
            self._drop(name)
        if self._leaving:
            await asyncio.wait(self._leaving)


async def _told(answer: Awaitable[T]) -> T:
    try:
        return await answer
    except BrokerUnreachable as error:
        raise NoSuchMember(f"the member can't be asked: {error}") from None


def _home(name: str) -> BrokerId:
    """The broker that a member lives on."""
    text, dash, _ = name.partition("-")
    number = whole_number(text)
    if not dash or number is None:
        raise NoSuchMember(f"{name[:60]!r} is not the name of a member: use one as it was given")
    return BrokerId(number)
