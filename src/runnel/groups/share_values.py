"""What the verbs of share groups (KIP-932) take and give."""

import msgspec

from runnel.groups.values import GroupState
from runnel.model.ids import PartitionKey, TopicId


class ShareHeartbeat(msgspec.Struct, frozen=True):
    """None means unchanged since the last heartbeat. The group's own settings come with it."""

    group_id: str
    member_id: str  # the member chooses it
    member_epoch: int  # 0 joins, LEAVE leaves
    client_id: str = ""
    client_host: str = ""
    rack_id: str | None = None
    topic_names: tuple[str, ...] | None = None
    session_timeout_ms: int = 45_000  # share.session.timeout.ms
    heartbeat_interval_ms: int = 5_000  # share.heartbeat.interval.ms


class ShareAlive(msgspec.Struct, frozen=True):
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    assigned: tuple[PartitionKey, ...] | None  # None: as before


class DescribedSharer(msgspec.Struct, frozen=True):
    member_id: str
    rack_id: str | None
    member_epoch: int
    client_id: str
    client_host: str
    topic_names: tuple[str, ...]
    assigned: tuple[PartitionKey, ...]


class DescribedShareGroup(msgspec.Struct, frozen=True):
    group_id: str
    state: GroupState
    group_epoch: int
    assignment_epoch: int
    assignor: str
    members: tuple[DescribedSharer, ...]
    topics: tuple[TopicId, ...]  # those that the group has read, or was given a place in
    counts: tuple[int, ...] = ()  # of each: the partitions that it had then; -1: nobody knows


class NoteTopics(msgspec.Struct, frozen=True):
    """An administrator gives a group without members a place in these topics, or takes it away.

    `creates`: a group that is not there is made by that.
    """

    group_id: str
    added: tuple[TopicId, ...] = ()
    removed: tuple[TopicId, ...] = ()
    creates: bool = False
