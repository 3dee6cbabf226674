"""Share groups (KIP-932): their members, at the broker that keeps the group.

Who belongs to a group is decided by the group's coordinator, as for any group. What a member holds of a partition is
decided by the partition's leader, which knows of no members (`sharing`).
"""

from collections.abc import Callable

import msgspec

from runnel.broker.groups import Groups
from runnel.groups.share_values import DescribedShareGroup, NoteTopics, ShareAlive, ShareHeartbeat
from runnel.model.ids import TopicId
from runnel.model.queue_config import QueueConfig


class ShareGroups:
    """The verbs of members. `settings` gives those of a group, which are a queue's."""

    def __init__(self, groups: Groups, settings: Callable[[str], QueueConfig]) -> None:
        self._groups = groups
        self._settings = settings

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
        self, group_id: str, *, added: tuple[TopicId, ...] = (), removed: tuple[TopicId, ...] = ()
    ) -> None:
        """Remember in which topics a group without members has a place, and in which not any more."""
        await self._groups.shards.ask(group_id, "note_topics", NoteTopics(group_id, added, removed))
