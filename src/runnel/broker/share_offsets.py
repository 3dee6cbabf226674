"""How far share groups are: looked at, moved and deleted by administrators, at the group's coordinator.

The coordinator knows in which topics a group has a place; where that is in a partition, its leader knows.

Rule 1: a place is moved or deleted only while the group has no members: they would be told nothing of it. A group that
        is not there has none: it is made with the first place that it is given, as by Kafka.
Rule 2: a topic is noted before the group gets a place in it, and forgotten after the place is gone. A failure in
        between leaves a topic noted in which there is nothing: that is harmless, and the request can be repeated.
Rule 3: a group that is deleted loses its places before its name. With a queue, the group of its name goes unless
        somebody is in it: that begins anew.
Rule 4: what belongs to a queue that was created under the name of the group is deleted with the queue, and by nothing
        else: its definition would stay without what it had done. Groups that only have its name are nothing to it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from runnel.broker.calls import Calls
from runnel.broker.groups import Groups
from runnel.broker.keepers import Keepers
from runnel.broker.queue_deletion import SHARE_END
from runnel.broker.share_groups import ShareGroups
from runnel.broker.share_places import DROP, LOOK, MOVE, NOWHERE, Moves, Place, Places
from runnel.client.outcome import error_of_failure
from runnel.cluster.image import Image
from runnel.model.calls import NamedQueue, Nothing
from runnel.model.errors import GroupIsQueue, GroupNotEmpty, GroupNotFound, LeaderNotAvailable, RunnelError, as_value
from runnel.model.ids import BrokerId, PartitionKey, TopicId

R = TypeVar("R")


class ShareOffsets:
    """The verbs. `is_queue` tells whether a queue was created under a name."""

    def __init__(
        self, share_groups: ShareGroups, groups: Groups, keepers: Keepers, calls: Calls,
        image: Callable[[], Image], is_queue: Callable[[str], bool],
    ) -> None:  # fmt: skip
        self._share_groups = share_groups
        self._groups = groups
        self._keepers = keepers
        self._calls = calls
        self._image = image
        self._is_queue = is_queue
        calls.serve(SHARE_END, self._end)

    async def describe(
        self, group_id: str, wanted: Sequence[PartitionKey] | None = None
    ) -> dict[PartitionKey, Place | RunnelError]:
        """Where a group is, in these partitions or in all in which it has a place."""
        noted = (await self._share_groups.describe(group_id)).topics
        keys = list(self._partitions(noted)) if wanted is None else wanted

        async def look(leader: BrokerId, some: list[PartitionKey]) -> Sequence[Place | RunnelError]:
            found = await self._calls.ask(leader, LOOK, Places(group_id, list(some)))
            return [error_of_failure(place.failure) or place for place in found.places]

        found = await self._ask_leaders([key for key in keys if key.topic_id in noted], look)
        return {key: found.get(key, NOWHERE) for key in keys}

    async def alter(self, group_id: str, offsets: Mapping[PartitionKey, int]) -> dict[PartitionKey, RunnelError | None]:
        """Let a group without members go on from other offsets; one that is not there begins there."""
        topics = tuple({key.topic_id for key in offsets})
        await self._share_groups.note_topics(group_id, added=topics, creates=bool(topics))

        async def move(leader: BrokerId, some: list[PartitionKey]) -> Sequence[RunnelError | None]:
            request = Moves(group_id, list(some), [offsets[key] for key in some])
            return list(map(error_of_failure, (await self._calls.ask(leader, MOVE, request)).failures))

        return await self._ask_leaders(list(offsets), move)

    async def delete(self, group_id: str, topics: Sequence[TopicId]) -> None:
        """Take the places of a group without members in these topics away: it would begin anew."""
        self._check_no_queue(group_id, f"to deliver messages again, use 'runnel queue rewind {group_id}'")
        await self._check_empty(group_id)
        for topic_id in topics:
            await self._keepers.forget(group_id, topic_id)
        await self._drop(group_id, topics)
        await self._share_groups.note_topics(group_id, removed=tuple(topics))

    async def delete_group(self, group_id: str) -> None:
        """Delete a group of any kind; a share group with its places."""
        try:
            group = await self._share_groups.describe(group_id)
        except GroupNotFound:
            await self._delete_other(group_id)
            return
        self._check_no_queue(group_id, f"delete the queue, with 'runnel queue delete {group_id}'")
        await self._check_empty(group_id)
        await self._keepers.forget(group_id)
        await self._drop(group_id, group.topics)
        await self._groups.delete(group_id)

    async def _delete_other(self, group_id: str) -> None:
        """Delete a group that shares nothing; where there is none, a queue may be meant."""
        try:
            await self._groups.delete(group_id)
        except GroupNotFound:
            self._check_no_queue(group_id, f"delete the queue, with 'runnel queue delete {group_id}'")
            raise

    async def _end(self, request: NamedQueue) -> Nothing:
        """A queue is being deleted: end the group of its name, if it is nobody's."""
        try:
            await self._share_groups.describe(request.queue)
            await self._groups.delete(request.queue)
        except (GroupNotFound, GroupNotEmpty):
            pass  # or it never shared anything
        return Nothing()

    async def _drop(self, group_id: str, topics: Iterable[TopicId]) -> None:
        """Have the leaders forget what is not kept any more; who can't be asked finds out when it keeps something."""

        async def drop(leader: BrokerId, some: list[PartitionKey]) -> Sequence[None]:
            await self._calls.ask(leader, DROP, Places(group_id, list(some)))
            return [None] * len(some)

        await self._ask_leaders(list(self._partitions(topics)), drop)

    def _check_no_queue(self, group_id: str, instead: str) -> None:
        if self._is_queue(group_id):
            raise GroupIsQueue(f"{group_id!r} is a queue, and what the group keeps is the queue's: {instead}")

    async def _check_empty(self, group_id: str) -> None:
        if (await self._share_groups.describe(group_id)).members:
            raise GroupNotEmpty(f"share group {group_id!r} has members: stop them before changing its offsets")

    def _partitions(self, topics: Iterable[TopicId]) -> Iterable[PartitionKey]:
        for topic_id in topics:
            topic = self._image().topics.get(topic_id)
            for number in range(len(topic.partitions) if topic else 0):
                yield PartitionKey(topic_id, number)

    async def _ask_leaders(
        self, keys: Sequence[PartitionKey], ask: Callable[[BrokerId, list[PartitionKey]], Awaitable[Sequence[R]]]
    ) -> dict[PartitionKey, R | RunnelError]:
        """Ask the leaders of some partitions about them, all at once; for each what its leader says, or why not."""
        led: dict[BrokerId, list[PartitionKey]] = {}
        for key in keys:
            led.setdefault(self._image().topics[key.topic_id].partitions[key.number].leader, []).append(key)

        async def one(leader: BrokerId, some: list[PartitionKey]) -> Sequence[R | RunnelError]:
            try:
                if leader not in self._image().brokers:
                    raise LeaderNotAvailable("the partition has no leader now: try again")
                return await ask(leader, some)
            except RunnelError as error:
                return [as_value(error)] * len(some)

        answers = await asyncio.gather(*(one(leader, some) for leader, some in led.items()))
        return {
            key: answer
            for some, part in zip(led.values(), answers, strict=True)
            for key, answer in zip(some, part, strict=True)
        }
