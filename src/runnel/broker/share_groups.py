"""Share groups (KIP-932): their members, at the broker that keeps the group.

Who belongs to a group is decided by the group's coordinator, as for any group. What a member holds of a partition is
decided by the partition's leader, which knows of no members (`sharing`).
"""

from collections.abc import Callable
from typing import Final
from uuid import UUID

import msgspec

from runnel.broker.calls import Calls
from runnel.broker.groups import Groups
from runnel.broker.internal import GROUPS
from runnel.cluster.image import Image
from runnel.groups.share import UNKNOWN
from runnel.groups.share_values import DescribedShareGroup, NoteTopics, ShareAlive, ShareHeartbeat
from runnel.model.calls import Value, Verb
from runnel.model.errors import GroupNotFound
from runnel.model.ids import TopicId
from runnel.model.queue_config import QueueConfig


class Began(Value, frozen=True):
    """Asked of a group's coordinator: with how many partitions the group came to a topic."""

    group_id: str
    topic_id: UUID


class Count(Value, frozen=True):
    partitions: int  # -1: nobody knows


SHARE_BEGAN: Final = Verb("share.began", Began, Count)


class ShareGroups:
    """The verbs of members. `settings` gives those of a group, which are a queue's."""

    def __init__(
        self, groups: Groups, settings: Callable[[str], QueueConfig], calls: Calls, image: Callable[[], Image]
    ) -> None:
        self._groups = groups
        self._settings = settings
        self._calls = calls
        self._image = image
        calls.serve(SHARE_BEGAN, self._began)

    async def heartbeat(self, request: ShareHeartbeat) -> ShareAlive:
        """Join, stay or leave; the group's own settings say how long a member may be silent."""
        config = self._settings(request.group_id)
        asked = msgspec.structs.replace(
            request,
            session_timeout_ms=config.share_session_timeout_ms,
            heartbeat_interval_ms=config.share_heartbeat_interval_ms,
        )
        result: ShareAlive = await self._groups.shards.ask(request.group_id, "share_heartbeat", asked)
        return result

    async def describe(self, group_id: str) -> DescribedShareGroup:
        result: DescribedShareGroup = await self._groups.shards.ask(group_id, "describe_share", group_id)
        return result

    async def note_topics(
        self,
        group_id: str,
        *,
        added: tuple[TopicId, ...] = (),
        removed: tuple[TopicId, ...] = (),
        creates: bool = False,
    ) -> None:
        """Remember in which topics a group without members has a place, and in which not any more."""
        await self._groups.shards.ask(group_id, "note_topics", NoteTopics(group_id, added, removed, creates))

    async def began(self, group_id: str, topic_id: TopicId) -> int:
        """With how many partitions a group came to a topic, as its coordinator knows it, wherever that is."""
        if GROUPS not in self._image().names:
            return UNKNOWN
        coordinator = self._groups.shards.leader_of(group_id).id
        return (await self._calls.ask(coordinator, SHARE_BEGAN, Began(group_id, topic_id))).partitions

    async def _began(self, request: Began) -> Count:
        try:
            group = await self.describe(request.group_id)
        except GroupNotFound:
            return Count(UNKNOWN)
        return Count(dict(zip(group.topics, group.counts, strict=True)).get(TopicId(request.topic_id), UNKNOWN))
