"""What other brokers follow here: the leader's side of a follower's fetches.

Rule 1: a follower says once what it follows, then only what changed; its session lives and dies with its connection.
        Partitions in which nothing happens cost nothing.
Rule 2: what a follower asks for counts as held only after it was checked: led here, in this epoch, by one of the
        replicas, in the life under which that broker is registered, and with a log that did not leave ours. Any other
        broker epoch is refused: a higher one comes from a client that poses as a broker, or from a broker that this
        one has not heard of yet, which asks again.
        Of two sessions of one broker the younger one speaks for a partition: what comes late over a connection that
        was given up is older than what is known.
Rule 3: an answer holds what is news: records, trouble, a high watermark or a start that moved. New records are sent at
        once; that the high watermark moved is told with the next answer.
Rule 4: an answer is bounded; who comes too short this time comes first the next time.
"""

import asyncio
from collections.abc import Callable, Container, Iterable, Sequence
from itertools import count
from typing import NamedTuple, TypeAlias

from runnel.broker.fetch import NOTHING, Divergence, ReadResult, Waits, check_epoch, divergence_of
from runnel.broker.partitions import Partitions
from runnel.broker.turns import TURN, by_turns
from runnel.cluster.image import Image
from runnel.model.errors import (
    FetchSessionNotFound,
    InvalidFetchSessionEpoch,
    OffsetOutOfRange,
    RunnelError,
    UnknownEpoch,
    as_value,
)
from runnel.model.ids import NO_EPOCH, BrokerId, Epoch, Millis, Offset, PartitionKey
from runnel.model.seams import Clock, Rng
from runnel.replica.partition import Partition

EPOCH_MAX = 2**31 - 1
WAIT_MS_MAX = 30_000
Answers: TypeAlias = list[tuple[PartitionKey, ReadResult]]


class Follower(NamedTuple):
    """Who asks: a broker in one of its lives."""

    broker: BrokerId
    epoch: Epoch


class Asked(NamedTuple):
    """What a follower asks of one partition: it holds all below `offset`."""

    key: PartitionKey
    offset: Offset
    bytes_max: int
    leader_epoch: Epoch
    last_epoch: Epoch


class Limits(NamedTuple):
    bytes_max: int
    wait_ms: int


class _Place:
    """One partition in a session."""

    __slots__ = ("asked", "error", "partition", "session", "told")

    def __init__(self, session: "FollowerSession", asked: Asked) -> None:
        self.session = session
        self.asked = asked
        self.partition: Partition | None = None  # what it waits for; None after trouble
        self.error: RunnelError | Divergence | None = None
        self.told: tuple[Offset, Offset] | None = None  # the high watermark and the start that the follower knows

    def grown(self, bytes_added: int) -> None:
        self.session.has_news(self)

    def leave(self) -> None:
        if self.partition is not None:
            self.partition.unwatch(self)
            self.partition = None


class FollowerSession:
    """What one life of a broker follows here, over one connection."""

    def __init__(self, follower: Follower, session_id: int, number: int = 0) -> None:
        self.follower = follower
        self.id = session_id
        self.number = number  # the younger, the higher
        self.epoch = 1  # of the next incremental fetch
        self.heard_ms = Millis(0)
        self.places: dict[PartitionKey, _Place] = {}
        self._news: dict[_Place, None] = {}
        self.overtaken: set[PartitionKey] = set()  # where a younger session speaks instead
        self._unsettled: dict[_Place, None] = {}  # those that were told a high watermark below the end
        self._awake: asyncio.Future[None] | None = None

    # --- what is followed

    def put(self, asked: Asked) -> _Place:
        place = self.places.get(asked.key)
        if place is None:
            place = self.places[asked.key] = _Place(self, asked)
        place.asked, place.error = asked, None
        self._news.pop(place, None)
        self._unsettled[place] = None
        return place

    def forget(self, key: PartitionKey) -> None:
        self.overtaken.discard(key)
        place = self.places.pop(key, None)
        if place is not None:
            place.leave()
            self._news.pop(place, None)
            self._unsettled.pop(place, None)

    # --- news

    def has_news(self, place: _Place) -> None:
        self._news[place] = None
        if self._awake is not None and not self._awake.done():
            self._awake.set_result(None)

    def wake(self) -> None:
        if self._awake is not None and not self._awake.done():
            self._awake.set_result(None)

    async def wait(self, waits: Sequence[Waits], timeout_s: float) -> None:
        """Return when there is news, or when waiting is over."""
        if self._news or timeout_s <= 0 or any(each.over for each in waits):
            return
        self._awake = asyncio.get_running_loop().create_future()
        timer = asyncio.get_running_loop().call_later(timeout_s, self.wake)
        for each in waits:
            each.begin(self)
        try:
            await self._awake
        finally:
            timer.cancel()
            for each in waits:
                each.done(self)
            self._awake = None

    def end(self) -> None:
        """Waiting is over (as `Waits` says it)."""
        self.wake()

    def next_news(self, answered: Container[PartitionKey]) -> _Place | None:
        """What is new and was not answered yet: what it is told twice, a follower can't use, and misses for ever."""
        place = next((place for place in self._news if place.asked.key not in answered), None)
        if place is not None:
            del self._news[place]
        return place

    def overdue(self, answered: Container[PartitionKey]) -> Iterable[_Place]:
        """Those whose high watermark or start moved since they were told, unless an answer to them is on its way."""
        for place in list(self._unsettled):
            partition = place.partition
            if place.asked.key in answered:
                continue  # it was read before others were: what it says may be older than what is known by now
            if partition is None:
                del self._unsettled[place]
            elif place.told != (known := (partition.high_watermark, partition.log.start_offset)):
                self.tell(place, known)
                yield place
            elif partition.high_watermark >= partition.log.end_offset:
                del self._unsettled[place]

    def remind(self, place: _Place) -> None:
        """Tell with the next answer what may have changed."""
        self._unsettled[place] = None

    def tell(self, place: _Place, known: tuple[Offset, Offset]) -> None:
        place.told = known
        partition = place.partition
        if partition is not None and known[0] >= partition.log.end_offset:
            self._unsettled.pop(place, None)
        else:
            self._unsettled[place] = None


class Followers:
    """All brokers that follow something here."""

    def __init__(
        self, partitions: Partitions, image: Callable[[], Image], clock: Clock, rng: Rng, *,
        on_fetched: Callable[[Partition, BrokerId], None],
    ) -> None:  # fmt: skip
        self._partitions = partitions
        self._image = image
        self._clock = clock
        self._rng = rng
        self._on_fetched = on_fetched
        self._sessions: dict[FollowerSession, None] = {}
        self._numbers = count(1)
        self._speakers: dict[tuple[PartitionKey, BrokerId], FollowerSession] = {}  # whom a partition believes
        self._all = Waits()

    def open(self, follower: Follower) -> FollowerSession:
        session = FollowerSession(follower, self._rng.below(EPOCH_MAX - 1) + 1, next(self._numbers))
        self._sessions[session] = None
        return session

    def forget(self, session: FollowerSession) -> None:
        self._sessions.pop(session, None)
        for key in list(session.places):
            self._forget_place(session, key)

    def _forget_place(self, session: FollowerSession, key: PartitionKey) -> None:
        session.forget(key)
        whose = key, session.follower.broker
        if self._speakers.get(whose) is session:
            del self._speakers[whose]

    def close(self) -> None:
        """Answer all who wait, at once."""
        self._all.end()

    async def note_heard(self) -> None:
        """Let the leaders here know who is still there: who has everything has nothing to say about it."""
        for session in list(self._sessions):
            broker, epoch = session.follower
            async for place in by_turns(list(session.places.values())):
                if place.partition is not None and place.partition.is_leader:
                    place.partition.heard_of(broker, epoch, session.heard_ms)
                    session.remind(place)

    async def fetch(
        self, session: FollowerSession, asked: Sequence[Asked], forgotten: Iterable[PartitionKey], limits: Limits,
        waits: Waits,
    ) -> Answers:  # fmt: skip
        """Take what a follower says, and answer with what is new to it."""
        self._image().check_life(*session.follower)
        session.heard_ms = self._clock.monotonic_ms()
        for key in forgotten:
            self._forget_place(session, key)
        if session.overtaken:
            raise _overtaken(session)
        async for each in by_turns(asked):
            self._check_open(session)
            self._take(session, each)
        await session.wait((self._all, waits), min(limits.wait_ms, WAIT_MS_MAX) / 1000)
        return await self._answers(session, limits.bytes_max)

    def _check_open(self, session: FollowerSession) -> None:
        """Its connection may break while it is told what it follows: nothing would end what begins then."""
        if session not in self._sessions:
            raise FetchSessionNotFound(f"fetch session {session.id} ended with its connection: start a new one")

    def _check_youngest(self, session: FollowerSession, key: PartitionKey) -> None:
        whose = key, session.follower.broker
        other = self._speakers.get(whose, session)
        if other.number > session.number:
            raise _overtaken(session)
        if other is not session:
            other.overtaken.add(key)  # if it is the present one after all, it says so in the next
        self._speakers[whose] = session

    def _take(self, session: FollowerSession, asked: Asked) -> None:
        self._check_youngest(session, asked.key)
        place = session.put(asked)
        try:
            partition = self._partitions.find_by_id(*asked.key)
            if partition is not place.partition:
                place.leave()
            place.error = _checked(partition, asked, session.follower)
        except RunnelError as error:
            place.leave()
            place.error = as_value(error)
        else:
            if place.partition is None:
                place.partition = partition
                partition.watch(place, replica=True)
            if place.error is None:
                partition.fetched_by(*session.follower, asked.offset)
                self._on_fetched(partition, session.follower.broker)
        if place.error is not None or asked.offset < partition.log.end_offset:
            session.has_news(place)

    # --- answering

    async def _answers(self, session: FollowerSession, bytes_max: int) -> Answers:
        answers: dict[PartitionKey, ReadResult] = {}
        left = bytes_max
        while left > 0:
            if len(answers) % TURN == TURN - 1:
                await asyncio.sleep(0)  # here: what is new is looked for after it
            place = session.next_news(answers)
            if place is None:
                break
            result = answers[place.asked.key] = await self._read(session, place, min(place.asked.bytes_max, left))
            left -= len(result.records)
        for place in session.overdue(answers):
            assert place.partition is not None
            answers[place.asked.key] = _known(place.partition)
        return list(answers.items())

    async def _read(self, session: FollowerSession, place: _Place, bytes_max: int) -> ReadResult:
        partition, asked = place.partition, place.asked
        if isinstance(place.error, Divergence) and partition is not None:
            return _known(partition)._replace(divergence=place.error)
        if partition is None or isinstance(place.error, RunnelError):
            error = place.error
            assert isinstance(error, RunnelError)
            return self._failed(asked.key, error)
        try:
            check_epoch(partition, asked.leader_epoch)
            records = partition.read_cached(asked.offset, bytes_max, replica=True)
            if records is None:
                records = await partition.read(asked.offset, bytes_max, replica=True)
            self._partitions.find_by_id(*asked.key)  # it may have stepped down meanwhile
        except RunnelError as error:
            return _known(partition)._replace(error=as_value(error))
        session.tell(place, (partition.high_watermark, partition.log.start_offset))
        return _known(partition)._replace(records=records)

    def _failed(self, key: PartitionKey, error: RunnelError) -> ReadResult:
        """A follower that is out of range learns what the range is."""
        if isinstance(error, OffsetOutOfRange):
            try:
                return _known(self._partitions.find_by_id(*key))._replace(error=as_value(error))
            except RunnelError as gone:
                return NOTHING._replace(error=as_value(gone))
        return NOTHING._replace(error=as_value(error))


def _overtaken(session: FollowerSession) -> FetchSessionNotFound:
    return FetchSessionNotFound(f"fetch session {session.id} is over, a younger one follows: start a new one")


def _known(partition: Partition) -> ReadResult:
    start = partition.log.start_offset
    return ReadResult(b"", partition.high_watermark, start, partition.last_stable_offset)


def _checked(partition: Partition, asked: Asked, follower: Follower) -> Divergence | None:
    """Rule 2: raises, or says where the follower's log left ours."""
    if asked.leader_epoch == NO_EPOCH:
        raise UnknownEpoch(f"{partition.name}: a follower must say which leader epoch it follows")
    check_epoch(partition, asked.leader_epoch)
    if partition.image is None or follower.broker not in partition.image.replicas:
        raise UnknownEpoch(f"{partition.name} has no replica on broker {follower.broker}, as far as is known here")
    if asked.last_epoch != NO_EPOCH and (divergence := divergence_of(partition, asked.last_epoch, asked.offset)):
        return divergence
    partition.check_readable(asked.offset)
    return None


def resumed(session: FollowerSession | None, session_id: int, epoch: int) -> FollowerSession:
    """The session of an incremental fetch, one epoch further."""
    if session is None or session.id != session_id:
        raise FetchSessionNotFound(f"fetch session {session_id} is not known on this connection: start a new one")
    if epoch != session.epoch:
        raise InvalidFetchSessionEpoch(f"fetch session {session_id} is at epoch {session.epoch}, not {epoch}")
    session.epoch = 1 if epoch == EPOCH_MAX else epoch + 1
    return session
