"""Keepers: where the leaders of partitions keep what queues know of them, and the way there (queues/keeper.py).

The state lives in an internal compacted topic, as that of groups does; it is made when the first queue is used. An
owner belongs to one partition of that topic by its name. Its leader is the keeper, and is asked by a call.

Rule 1: what is asked of a keeper is asked again as long as that may help and there is time.
Rule 2: a write of unknown outcome is not sent again as it was. The owner is opened anew, which voids what is still
        under way; then the same records are written. They say what is, not what changed, so twice is as good as once.
Rule 3: an owner is opened for a partition that exists, and in no leader epoch that it has not had yet. An epoch that
        never was would shut out every leader to come.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, TypeVar

from runnel.broker.calls import Calls
from runnel.broker.internal import QUEUES
from runnel.broker.journal import Led, PartitionJournal
from runnel.broker.partitions import Partitions
from runnel.broker.shard import Shard
from runnel.broker.shards import Shards
from runnel.cluster.image import Change, Image
from runnel.model.calls import Nothing
from runnel.model.errors import CoordinatorNotAvailable, FencedEpoch, NotLeader, RecordUnreadable, RetriableError
from runnel.model.ids import BrokerId, TopicId
from runnel.model.internal_calls import (
    KEEPER_FORGET,
    KEEPER_OPEN,
    KEEPER_PENDING,
    KEEPER_WRITE,
    Forgotten,
    KeeperForget,
    KeeperOpen,
    KeeperPending,
    KeeperWrite,
    Kept,
    Owners,
)
from runnel.model.seams import Clock, Rng
from runnel.model.step import Record
from runnel.queues.keeper import KeeperShard, owner_name, owner_partition
from runnel.replica.partition import Partition
from runnel.replica.unreadable import Unreadable

PATIENCE_S: Final = 30.0  # as long as an append to a partition may take
CALL_MS: Final = 10_000
PAUSE_MS, PAUSE_MS_MAX = 20, 1_000

R = TypeVar("R")


class Keepers:
    """The shards of the keepers' topic that this broker leads, and the way to the others."""

    def __init__(
        self, partitions: Partitions, calls: Calls, clock: Clock, rng: Rng, make_topic: Callable[[], Awaitable[None]]
    ) -> None:
        self.shards = Shards(QUEUES, partitions, self._shard)
        self._calls = calls
        self._clock = clock
        self._rng = rng
        self._make_topic = make_topic
        self._image: Image
        self.unreadable = Unreadable(QUEUES)  # of what is kept for partitions that are led here
        calls.serve(KEEPER_OPEN, self._opened_here)
        calls.serve(KEEPER_WRITE, self._written_here)
        calls.serve(KEEPER_FORGET, self._forgotten_here)
        calls.serve(KEEPER_PENDING, self._pending_here)

    def start(self, image: Image) -> None:
        self._see(image)

    def follow(self, change: Change) -> None:
        """The image changed: lead new shards, forget what was kept of deleted topics."""
        self._see(change.after)
        for topic_id, topic in change.delta.topics.items():
            if topic is None:
                for shard in self.shards:
                    shard.tell("topic_deleted", topic_id)

    def close(self) -> None:
        self.shards.close()

    def _see(self, image: Image) -> None:
        self._image = image
        self.shards.follow(image)

    def _shard(self, partition: Partition, number: int) -> Shard[Any]:
        journal = PartitionJournal(partition, self._clock)
        return Shard(journal, KeeperShard, lambda: self._image.deleted, self._clock)

    # --- as the keeper

    async def _opened_here(self, request: KeeperOpen) -> Kept:
        self._check_epoch(request)
        kept: Kept = await self.shards.ask(request.owner, "open", request)
        return kept

    def _check_epoch(self, request: KeeperOpen) -> None:
        """Rule 3; this broker may not have heard of the epoch yet."""
        _, key = owner_partition(request.owner)
        topic = self._image.topic_with_id(key.topic_id)
        if key.number >= len(topic.partitions) or request.epoch > topic.partitions[key.number].leader_epoch:
            raise CoordinatorNotAvailable(
                f"the keeper of {topic.name}-{key.number} has heard of no leader epoch {request.epoch}: try again"
            )

    async def _written_here(self, request: KeeperWrite) -> Nothing:
        done: Nothing = await self.shards.of(request.owner).ask("write", request)
        return done

    async def _forgotten_here(self, request: KeeperForget) -> Forgotten:
        forgotten: Forgotten = await self.shards.numbered(request.shard).ask("forget", request)
        return forgotten

    # --- as who has something kept

    def journal(
        self, queue: str, partition: Partition, made: int = 0, begin: Callable[[], Awaitable[None]] | None = None
    ) -> "KeeperJournal":
        """The journal of a queue's state over a partition that is led here now; `made` is the number of the queue.

        `begin` is done before a queue that has nothing kept there begins.
        """
        return KeeperJournal(self, queue, partition, made, begin)

    async def open(self, request: KeeperOpen) -> Kept:
        """Take an owner over; FencedEpoch if another leads its partition by now."""
        await self._make_topic()
        return await self.patiently(
            lambda: self._calls.ask(self._keeper(request), KEEPER_OPEN, request, timeout_ms=CALL_MS)
        )

    async def write(self, request: KeeperWrite) -> None:
        """Keep records; raises if that is not certain."""
        keeper = self._keeper(request)
        if keeper == self._calls.me:
            await self._written_here(request)  # at once: this is done with every lease
        else:
            await self._calls.ask(keeper, KEEPER_WRITE, request, timeout_ms=CALL_MS)

    def _keeper(self, request: KeeperOpen | KeeperWrite) -> BrokerId:
        return self.shards.leader_of(request.owner).id

    async def forget(self, queue: str, topic_id: TopicId | None = None, *, made: int = 0) -> int:
        """Take out all that a queue has kept, or what of one topic; returns over how many partitions it had.

        `made` is the number of the queue: one of the same name that was made later keeps what it has.
        """
        topic = self._image.topic(QUEUES)
        forgotten = 0
        for number in range(len(topic.partitions) if topic else 0):
            request = KeeperForget(queue, number, topic_id, made)
            forgotten += await self.patiently(lambda request=request: self._forget(request))  # type: ignore[misc]
        return forgotten

    async def _forget(self, request: KeeperForget) -> int:
        leader = self._image.topic_named(QUEUES).partitions[request.shard].leader
        answer = await self._calls.ask(leader, KEEPER_FORGET, request, timeout_ms=CALL_MS)
        return answer.owners

    async def pending(self, begins: Sequence[bytes]) -> list[str]:
        """The owners that keep a record whose key begins with one of these."""
        topic = self._image.topic(QUEUES)
        found: list[str] = []
        for number in range(len(topic.partitions) if topic else 0):
            found += await self.patiently(lambda number=number: self._pending(number, begins))  # type: ignore[misc]
        return found

    async def _pending(self, number: int, begins: Sequence[bytes]) -> list[str]:
        leader = self._image.topic_named(QUEUES).partitions[number].leader
        asked = KeeperPending(number, list(begins))
        return (await self._calls.ask(leader, KEEPER_PENDING, asked, timeout_ms=CALL_MS)).owners

    async def _pending_here(self, request: KeeperPending) -> Owners:
        owners: Owners = await self.shards.numbered(request.shard).ask("pending", request)
        return owners

    async def patiently(self, work: Callable[[], Awaitable[R]]) -> R:
        """Do it, and again after pauses that grow, as long as it may help and there is time."""
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE_S
        pause_ms = PAUSE_MS
        while True:
            try:
                return await work()
            except FencedEpoch:
                raise
            except RetriableError:
                if loop.time() + pause_ms / 1000 >= end:
                    raise
            await asyncio.sleep((pause_ms + self._rng.below(pause_ms)) / 1000)
            pause_ms = min(2 * pause_ms, PAUSE_MS_MAX)


class KeeperJournal(Led):
    """What a queue keeps of a partition that is led here: with a keeper, which may be anywhere."""

    gone: type[RetriableError] = NotLeader

    def __init__(
        self, keepers: Keepers, queue: str, partition: Partition, made: int = 0,
        begin: Callable[[], Awaitable[None]] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(partition, owner_name(queue, partition.key))
        self._made = made
        self._begin = begin
        self._keepers = keepers
        self._session = 0

    async def read(self, take: Callable[[bytes, bytes | None], None]) -> None:
        kept = await self._keepers.open(KeeperOpen(self.name, self.epoch, made=self._made))
        self._session = kept.session
        if not kept.records and self._begin is not None:
            await self._begin()
        for key, value in kept.records:
            try:
                take(key, value)
            except RecordUnreadable as problem:
                place = hash((self.name, key))  # a key may be long
                self._keepers.unreadable.set_aside_at(problem, place, f"a record of {self.name!r}")

    async def append(self, decided: list[Record]) -> None:
        try:
            await self._write(decided)
        except FencedEpoch:
            raise
        except RetriableError:
            await self._keepers.patiently(lambda: self._write_anew(decided))

    async def _write_anew(self, decided: list[Record]) -> None:
        """Open it in a new session: what is under way in the old one counts for nothing then. Then write it."""
        request = KeeperOpen(self.name, self.epoch, self._session, self._made)
        self._session = (await self._keepers.open(request)).session
        await self._write(decided)

    async def _write(self, decided: list[Record]) -> None:
        if not self.is_held():
            raise FencedEpoch(f"{self.name} is not led here in epoch {self.epoch} any more")
        await self._keepers.write(KeeperWrite(self.name, self.epoch, self._session, decided))
