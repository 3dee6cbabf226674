"""Reading topics together with the other members of a group.

    consumer = GroupConsumer(cluster, "billing", ["orders"])
    for message in await consumer.poll(): ...
    await consumer.commit()

Partitions come and go only inside `poll`: between two polls the assignment stands still. A member that does not poll
within the rebalance timeout loses its seat, and its commits are refused.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from runnel.client.cluster import Cluster
from runnel.client.consumer import Consumer, Message
from runnel.client.fetcher import FetchSettings
from runnel.client.membership import GroupSettings, Membership
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import Committed, Generation, commit, fetch_committed
from runnel.client.positions import START, Position
from runnel.client.transaction_calls import Seat
from runnel.model.errors import (
    IllegalGeneration,
    InvalidConfig,
    RetriableError,
    RunnelError,
    TransactionAbortable,
    UnknownMember,
    UnstableOffsetCommit,
)

SEAT_LOST = (UnknownMember, IllegalGeneration)


@dataclass(frozen=True, slots=True)
class GroupConsumerSettings:
    group: GroupSettings = field(default_factory=GroupSettings)
    fetch: FetchSettings = field(default_factory=FetchSettings)
    begin: Position = START  # where a partition begins that has no committed offset
    commit_ms: int | None = 5_000  # commit what was polled so often; None: only when told


class GroupConsumer:
    """One member of a group."""

    def __init__(
        self, cluster: Cluster, group: str, topics: Sequence[str], settings: GroupConsumerSettings | None = None
    ) -> None:
        self.cluster = cluster
        self.group = group
        self.settings = settings or GroupConsumerSettings()
        self.consumer = Consumer(cluster, self.settings.fetch)
        self.membership = Membership(cluster, group, topics, self.settings.group)
        self.assignment: list[TopicPartition] = []
        self.rebalances = 0
        self._joining: asyncio.Task[None] | None = None
        self._committed: dict[TopicPartition, int] = {}
        self._loop = asyncio.get_running_loop()
        self._commit_due = 0.0

    async def __aenter__(self) -> "GroupConsumer":
        return self

    async def __aexit__(self, kind: object, error: object, trace: object) -> None:
        await self.close(commit=kind is None)

    @property
    def positions(self) -> dict[TopicPartition, int]:
        return self.consumer.positions

    # --- reading
    async def poll(self, *, count_max: int = 500, timeout_ms: int = 1_000) -> list[Message]:
        """The next messages of the partitions this member has; joins the group first if that is due."""
        end = self._loop.time() + timeout_ms / 1000
        await self._commit_if_due()
        if not await self._ensure_joined(end):
            return []
        left_ms = int((end - self._loop.time()) * 1000)
        return await self.consumer.poll(count_max=count_max, timeout_ms=max(0, left_ms))

    async def _ensure_joined(self, end: float) -> bool:
        """Whether the group is joined; a join that takes longer goes on behind, for the next poll to find."""
        if self.membership.failure is not None:
            raise self.membership.failure
        if self.membership.joined and self._joining is None:
            return True
        if self._joining is None:
            self._joining = self._loop.create_task(self._rejoin())
        done, _ = await asyncio.wait({self._joining}, timeout=max(0.0, end - self._loop.time()))
        if not done:
            return False
        joining, self._joining = self._joining, None
        joining.result()
        return self.membership.joined

    async def _rejoin(self) -> None:
        """Give back what we had, join, and begin where the group left off."""
        if self.settings.commit_ms is not None:
            await self._commit_before_rejoin()
        await self.consumer.assign({})
        self.assignment = []
        self.assignment = await self.membership.join()
        self.rebalances += 1
        await self._begin()
        self._schedule_commit()

    async def rewind(self) -> None:
        """Go on where the group left off: all that was polled since its last commit is polled again."""
        if self.membership.joined:  # else the next poll joins, and begins there
            await self._begin()

    async def _begin(self) -> None:
        self._committed = await self._stored()
        wanted: dict[TopicPartition, Position | int] = {
            where: self._committed.get(where, self.settings.begin) for where in self.assignment
        }
        await self.consumer.assign(wanted)

    async def _stored(self) -> dict[TopicPartition, int]:
        """What is committed, once no transaction is open that may change it: its end or its timeout is waited for."""
        while True:
            try:
                stored = await fetch_committed(self.cluster, self.group, self.assignment)
                return {where: committed.offset for where, committed in stored.items()}
            except UnstableOffsetCommit:
                if not self.membership.joined:
                    raise

    async def _commit_before_rejoin(self) -> None:
        """What can't be committed any more is read again by whoever gets the partition: at least once."""
        try:
            await self.commit()
        except RunnelError:
            self._committed = {}

    # --- committing
    @property
    def seat(self) -> Seat:
        """Who this member is, for a transaction that commits its offsets (`Producer.send_offsets`)."""
        if self.settings.commit_ms is not None:
            raise InvalidConfig(
                f"this member of group {self.group!r} commits by itself every {self.settings.commit_ms} ms, also what "
                "a transaction may still abort: make it with commit_ms=None"
            )
        try:
            return Seat(self.group, self._generation())
        except UnknownMember as error:
            raise TransactionAbortable(f"{error}. Abort the transaction first") from error

    def _generation(self) -> Generation:
        """The generation this member is in. Sent without one, a commit would be an administrator's."""
        if self.membership.generation.id < 0:
            raise UnknownMember(
                f"this consumer has no seat in group {self.group!r} (any more): poll, to join it (again);"
                " what was read since the last commit is read again by whoever has the partition then"
            )
        return self.membership.generation

    def _schedule_commit(self) -> None:
        if self.settings.commit_ms is not None:
            self._commit_due = self._loop.time() + self.settings.commit_ms / 1000

    async def _commit_if_due(self) -> None:
        if self.settings.commit_ms is not None and self._loop.time() >= self._commit_due:
            await self.commit_if_seated()

    async def commit_if_seated(self) -> None:
        """Commit all that was polled so far; what can't be committed is carried by the next commit.

        Who hears that its seat is lost joins again with the next poll: whoever has the partitions then reads it again.
        """
        if not self.membership.joined:
            return
        self._schedule_commit()
        try:
            await self.commit()
        except RetriableError:
            return
        except SEAT_LOST:
            self.membership.joined = False

    async def commit(
        self, offsets: Mapping[TopicPartition, int] | None = None, *, timeout_ms: int | None = None
    ) -> None:
        """Store offsets for the group: of all that was polled so far, or these (each: the next one to read)."""
        generation = self._generation()
        wanted = dict(self.positions if offsets is None else offsets)
        changed = {where: at for where, at in wanted.items() if self._committed.get(where) != at}
        if not changed:
            return
        values = {where: Committed(at) for where, at in changed.items()}
        await commit(self.cluster, self.group, values, generation=generation, timeout_ms=timeout_ms)
        self._committed |= changed

    # --- the end
    async def close(self, *, commit: bool = True) -> None:
        """Commit (if that is automatic, and the seat is not lost), leave the group, and stop."""
        if self._joining is not None:
            self._joining.cancel()
            await asyncio.gather(self._joining, return_exceptions=True)
        try:
            if commit and self.settings.commit_ms is not None and self.membership.generation.id >= 0:
                with suppress(*SEAT_LOST):  # whoever has the partitions now reads it again
                    await self.commit()
        finally:
            await self.membership.close()
            await self.consumer.close()
