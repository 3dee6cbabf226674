"""How far a group has read each partition.

Rule 1: offsets belong to the topic's id: a topic that is created again begins without any.
Rule 2: whether a request may commit is the group's decision; this module only keeps what it was given.
Rule 3: what is pending in a transaction gives way to what came later, and goes when the offset is deleted; it keeps
        an older offset of the same partition from expiring.
"""

from collections.abc import Callable, Iterator

from runnel.groups import pending
from runnel.groups.records import OffsetRecord, expiry_ms
from runnel.groups.store import Stored
from runnel.groups.turn import Turn
from runnel.groups.values import (
    CommitInTransaction,
    CommitOffsets,
    DeleteOffsets,
    FetchedOffset,
    FetchOffsets,
    OffsetToCommit,
)
from runnel.model.errors import (
    GroupSubscribed,
    OffsetMetadataTooLarge,
    RunnelError,
    UnknownTopic,
    UnknownTopicId,
    UnstableOffsetCommit,
)
from runnel.model.ids import NO_EPOCH, NO_OFFSET, Epoch, Offset, PartitionKey, TopicId

Check = Callable[[CommitOffsets, PartitionKey], RunnelError | None]


def commit(request: CommitOffsets, check: Check, turn: Turn) -> tuple[RunnelError | None, ...]:
    """Keep what can be kept; `check` is what the group says of a single partition."""
    problems = tuple(_commit_one(request, each, check, turn) for each in request.offsets)
    stored = turn.store.groups.get(request.group_id)
    if stored and stored.pending:
        kept = {each.partition for each in _sound(request, problems)}
        pending.forget(request.group_id, lambda each: each.partition in kept, turn)
    return problems


def _sound(request: CommitOffsets, problems: tuple[RunnelError | None, ...]) -> list[OffsetToCommit]:
    return [each for each, problem in zip(request.offsets, problems, strict=True) if problem is None]


def hold(request: CommitInTransaction, check: Check, turn: Turn) -> tuple[RunnelError | None, ...]:
    """Keep what can be kept until the transaction ends."""
    problems = tuple(_problem(each, turn) or check(request, each.partition) for each in request.offsets)
    pending.hold(request, _sound(request, problems), turn)
    return problems


def _commit_one(request: CommitOffsets, each: OffsetToCommit, check: Check, turn: Turn) -> RunnelError | None:
    problem = _problem(each, turn) or check(request, each.partition)
    if problem is None:
        expires_ms = None if request.retention_ms is None else expiry_ms(turn.wall_ms + request.retention_ms)
        record = OffsetRecord(each.offset, each.leader_epoch, each.metadata, turn.wall_ms, expires_ms)
        name = turn.topics.name_of(each.partition.topic_id)
        assert name is not None  # it has partitions
        turn.store.put_offset(request.group_id, name, each.partition, record)
    return problem


def _problem(each: OffsetToCommit, turn: Turn) -> RunnelError | None:
    bytes_max = turn.config.offset_metadata_bytes_max
    if len(each.metadata) > bytes_max or len(each.metadata.encode()) > bytes_max:
        return OffsetMetadataTooLarge(f"offset metadata for {each.partition} is longer than {bytes_max} bytes")
    count = turn.topics.partition_count(each.partition.topic_id)
    if not count:
        return UnknownTopicId(f"there is no topic {each.partition.topic_id}: look its name up again")
    if not 0 <= each.partition.number < count:
        return UnknownTopic(f"topic {each.partition.topic_id} has {count} partitions, no {each.partition.number}")
    return None


def fetch(request: FetchOffsets, turn: Turn) -> tuple[FetchedOffset, ...]:
    """All offsets, or those asked for; -1 where there is none."""
    stored = turn.store.groups.get(request.group_id) or Stored()
    unstable = pending.partitions(stored) if request.require_stable else frozenset()
    wanted = request.partitions
    if wanted is None:
        wanted = tuple(dict.fromkeys((*_all_partitions(stored), *sorted(unstable))))
    return tuple(_fetched(each, _find(stored, each, turn), each in unstable) for each in wanted)


def _all_partitions(stored: Stored) -> Iterator[PartitionKey]:
    for topic in stored.offsets.values():
        if topic.topic_id is not None:
            yield from (PartitionKey(topic.topic_id, number) for number in topic.partitions)


def _find(stored: Stored, partition: PartitionKey, turn: Turn) -> OffsetRecord | None:
    name = _name(stored, partition.topic_id, turn)
    return None if name is None else stored.offset(name, partition)


def _name(stored: Stored, topic_id: TopicId, turn: Turn) -> str | None:
    """The name of a topic; one that is gone has it still in the group's records."""
    return turn.topics.name_of(topic_id) or stored.topic_of(topic_id)


def _fetched(partition: PartitionKey, record: OffsetRecord | None, unstable: bool) -> FetchedOffset:
    if unstable:
        error = UnstableOffsetCommit(f"a transaction that holds an offset of {partition} has not ended: try again")
        return FetchedOffset(partition, NO_OFFSET, NO_EPOCH, "", error)
    if record is None:
        return FetchedOffset(partition, NO_OFFSET, NO_EPOCH, "")
    return FetchedOffset(partition, Offset(record.offset), Epoch(record.leader_epoch), record.metadata)


def delete(request: DeleteOffsets, subscribes: Callable[[str], bool], turn: Turn) -> tuple[RunnelError | None, ...]:
    return tuple(_delete_one(request.group_id, each, subscribes, turn) for each in request.partitions)


def _delete_one(
    group_id: str, partition: PartitionKey, subscribes: Callable[[str], bool], turn: Turn
) -> RunnelError | None:
    name = turn.topics.name_of(partition.topic_id)
    if name is not None and subscribes(name):
        return GroupSubscribed(f"group {group_id!r} still subscribes to {name!r}: stop its members first")
    stored = turn.store.groups.get(group_id) or Stored()
    held = _name(stored, partition.topic_id, turn)
    if held is not None and stored.offset(held, partition) is not None:
        turn.store.drop_offset(group_id, held, partition.number)
    pending.forget(group_id, lambda each: each.partition == partition, turn)
    return None


def drop_topic(topic_id: TopicId, turn: Turn) -> None:
    for group_id, stored in list(turn.store.groups.items()):
        held = stored.topic_of(topic_id)
        if held is not None:
            turn.store.drop_topic(group_id, held)
        pending.forget(group_id, lambda each: each.topic_id == topic_id, turn)


def drop_expired(group_id: str, unused_since_ms: Callable[[int, str | None], int | None], turn: Turn) -> None:
    """Forget what was not needed for so long; `unused_since_ms` is the group's word on a commit time and a topic."""
    stored = turn.store.groups.get(group_id) or Stored()
    awaited = pending.partitions(stored)
    for held, topic in list(stored.offsets.items()):
        name = None if topic.topic_id is None else turn.topics.name_of(topic.topic_id)
        for number, record in list(topic.partitions.items()):
            if topic.topic_id is not None and PartitionKey(topic.topic_id, number) in awaited:
                continue
            since_ms = unused_since_ms(record.committed_ms, name)
            if since_ms is not None and turn.wall_ms >= _end_ms(record, since_ms, turn.config.offsets_retention_ms):
                turn.store.drop_offset(group_id, held, number)


def _end_ms(record: OffsetRecord, since_ms: int, retention_ms: int) -> int:
    return since_ms + retention_ms if record.expires_ms is None else record.expires_ms
