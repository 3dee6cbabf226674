"""Offsets by time, and the offsets that groups committed: what consumers and administrators both need."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from runnel.client.cluster import Cluster, Patience
from runnel.client.errors import check
from runnel.client.metadata import TopicPartition
from runnel.model.errors import OffsetNotAvailable
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api

EARLIEST = -2  # ListOffsets: the first offset that is kept
LATEST = -1  # the next offset to be written (that consumers may see)
MAX_TIMESTAMP = -3  # the message with the largest timestamp

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
KNOWN_MS = 2_000  # for which a new leader is asked again how far its partition goes, where it may stay unknown
NAMES_VERSION_MAX = 9  # OffsetCommit and OffsetFetch name topics by id from version 10 on


class FoundOffset(NamedTuple):
    offset: int  # -1: there is no such message
    timestamp_ms: int = -1
    leader_epoch: int = -1


class Committed(NamedTuple):
    """What a group stored for one partition."""

    offset: int
    leader_epoch: int = -1
    metadata: str | None = ""


class Generation(NamedTuple):
    """Who commits: a member of a group in one generation. The default is an administrator's."""

    id: int = -1
    member_id: str = ""
    instance_id: str | None = None


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for where in partitions:
        topics.setdefault(where.topic, []).append(where.partition)
    return topics


async def list_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], *, isolation: int = READ_UNCOMMITTED
) -> dict[TopicPartition, FoundOffset]:
    """For each partition the first offset at or after a time in ms, or EARLIEST, LATEST, MAX_TIMESTAMP."""
    found: dict[TopicPartition, FoundOffset] = {}

    async def attempt() -> dict[TopicPartition, FoundOffset]:
        unsure = await _look_up(cluster, wanted, isolation, found)
        if unsure is not None:
            raise unsure
        return found

    return await cluster.persist(attempt)


async def list_known_offsets(
    cluster: Cluster, wanted: Mapping[TopicPartition, int]
) -> dict[TopicPartition, FoundOffset]:
    """As `list_offsets`, without those that their leader does not know: below its minimum, that may take long."""
    found: dict[TopicPartition, FoundOffset] = {}
    patience = Patience(cluster.settings, cluster.rng, KNOWN_MS)
    while (unsure := await cluster.persist(lambda: _look_up(cluster, wanted, READ_UNCOMMITTED, found))) is not None:
        try:
            await patience.pause(unsure)
        except OffsetNotAvailable:
            break
    return found


async def _look_up(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], isolation: int, found: dict[TopicPartition, FoundOffset]
) -> OffsetNotAvailable | None:
    """Ask for what is not found yet; returns why some of it is not known, if all who lead answered."""
    missing = {where: time for where, time in wanted.items() if where not in found}
    unsure = None
    for broker, times in (await _by_leader(cluster, missing)).items():
        unsure = await _list_on(cluster, broker, times, isolation, found) or unsure
    return unsure


async def _by_leader(
    cluster: Cluster, wanted: Mapping[TopicPartition, int]
) -> dict[int, dict[TopicPartition, tuple[int, int]]]:
    """broker -> partition -> (time, leader epoch)"""
    groups: dict[int, dict[TopicPartition, tuple[int, int]]] = {}
    for where, time in wanted.items():
        leader = await cluster.leader(where)
        groups.setdefault(leader.broker, {})[where] = (time, leader.epoch)
    return groups


async def _list_on(
    cluster: Cluster,
    broker: int,
    times: Mapping[TopicPartition, tuple[int, int]],
    isolation: int,
    found: dict[TopicPartition, FoundOffset],
) -> OffsetNotAvailable | None:
    request = m.ListOffsetsRequest(replica_id=-1, isolation_level=isolation, topics=[])
    for topic, numbers in by_topic(times).items():
        partitions = [
            m.ListOffsetsRequest.ListOffsetsPartition(
                partition_index=n,
                timestamp=times[TopicPartition(topic, n)][0],
                current_leader_epoch=times[TopicPartition(topic, n)][1],
            )
            for n in numbers
        ]
        request.topics.append(m.ListOffsetsRequest.ListOffsetsTopic(name=topic, partitions=partitions))
    node = cluster.broker(broker)
    answer = await node.ask(Api.LIST_OFFSETS, request, m.ListOffsetsResponse)
    unsure = None
    for told in answer.topics:
        for p in told.partitions:
            where = TopicPartition(told.name, p.partition_index)
            try:
                if p.error_code:
                    action = f"look up offsets of {where}"
                    cluster.raise_for(p.error_code, action=action, broker=node, topics=[where.topic])
                found[where] = FoundOffset(p.offset, p.timestamp, p.leader_epoch)
            except OffsetNotAvailable as error:
                unsure = error  # the others of this answer are known
    return unsure


async def fetch_committed(
    cluster: Cluster, group: str, partitions: Iterable[TopicPartition] | None = None
) -> dict[TopicPartition, Committed]:
    """What a group committed: for these partitions, or for all; partitions without a commit are left out."""
    topics = None if partitions is None else by_topic(partitions)
    if topics == {}:
        return {}

    async def attempt() -> dict[TopicPartition, Committed]:
        node = await cluster.coordinator(group)
        answer = await node.ask(
            Api.OFFSET_FETCH, _fetch_request(group, topics), m.OffsetFetchResponse, version_max=NAMES_VERSION_MAX
        )
        told = answer.groups[0] if answer.groups else answer
        action = f"read the committed offsets of group {group!r}"
        if told.error_code:
            cluster.raise_for(told.error_code, action=action, broker=node, group=group)
        committed: dict[TopicPartition, Committed] = {}
        for topic in told.topics:
            for p in topic.partitions:
                where = TopicPartition(topic.name, p.partition_index)
                if p.error_code:
                    cluster.raise_for(p.error_code, action=f"{action} for {where}", broker=node, group=group)
                if p.committed_offset >= 0:
                    committed[where] = Committed(p.committed_offset, p.committed_leader_epoch, p.metadata)
        return committed

    return await cluster.persist(attempt)


def _fetch_request(group: str, topics: Mapping[str, list[int]] | None) -> m.OffsetFetchRequest:
    """In the shapes of all versions: one group on top up to 7, a list of groups from 8 on."""
    R = m.OffsetFetchRequest
    old = new = None
    if topics is not None:
        old = [R.OffsetFetchRequestTopic(name=name, partition_indexes=n) for name, n in topics.items()]
        new = [R.OffsetFetchRequestTopics(name=name, partition_indexes=n) for name, n in topics.items()]
    groups = [R.OffsetFetchRequestGroup(group_id=group, topics=new)]
    return R(group_id=group, topics=old, groups=groups, require_stable=True)


async def commit(
    cluster: Cluster,
    group: str,
    offsets: Mapping[TopicPartition, Committed],
    *,
    generation: Generation | None = None,
    timeout_ms: int | None = None,
) -> None:
    """Store offsets for a group; without a generation it must have no members."""
    if not offsets:
        return
    who = generation or Generation()
    request = _commit_request(group, offsets, who)

    async def attempt() -> None:
        node = await cluster.coordinator(group)
        answer = await node.ask(Api.OFFSET_COMMIT, request, m.OffsetCommitResponse, version_max=NAMES_VERSION_MAX)
        for topic in answer.topics:
            for p in topic.partitions:
                if p.error_code:
                    action = f"commit the offset of {topic.name}/{p.partition_index} for group {group!r}"
                    cluster.raise_for(p.error_code, action=action, broker=node, topics=[topic.name], group=group)

    await cluster.persist(attempt, timeout_ms=timeout_ms)


def _commit_request(group: str, offsets: Mapping[TopicPartition, Committed], who: Generation) -> m.OffsetCommitRequest:
    R = m.OffsetCommitRequest
    topics = []
    for topic, numbers in by_topic(offsets).items():
        rows = [(n, offsets[TopicPartition(topic, n)]) for n in numbers]
        partitions = [
            R.OffsetCommitRequestPartition(
                partition_index=n,
                committed_offset=c.offset,
                committed_leader_epoch=c.leader_epoch,
                committed_metadata=c.metadata,
            )
            for n, c in rows
        ]
        topics.append(R.OffsetCommitRequestTopic(name=topic, partitions=partitions))
    return R(
        group_id=group,
        generation_id_or_member_epoch=who.id,
        member_id=who.member_id,
        group_instance_id=who.instance_id,
        retention_time_ms=-1,
        topics=topics,
    )


async def delete_committed(cluster: Cluster, group: str, partitions: Iterable[TopicPartition]) -> None:
    """Forget what a group committed for these partitions."""
    R = m.OffsetDeleteRequest
    topics = [
        R.OffsetDeleteRequestTopic(
            name=name, partitions=[R.OffsetDeleteRequestPartition(partition_index=n) for n in numbers]
        )
        for name, numbers in by_topic(partitions).items()
    ]

    async def attempt() -> None:
        node = await cluster.coordinator(group)
        answer = await node.ask(Api.OFFSET_DELETE, R(group_id=group, topics=topics), m.OffsetDeleteResponse)
        action = f"delete offsets of group {group!r}"
        if answer.error_code:
            cluster.raise_for(answer.error_code, action=action, broker=node, group=group)
        for topic in answer.topics:
            for p in topic.partitions:
                check(p.error_code, action=f"{action} for {topic.name}/{p.partition_index}", broker=str(node))

    await cluster.persist(attempt)
