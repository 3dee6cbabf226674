"""Administration of groups: which there are, who is in them, how far they are, and moving or deleting them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from runnel.client.assignors import decode_assignment
from runnel.client.cluster import Cluster, Node
from runnel.client.each import of_each
from runnel.client.errors import check
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import Committed, commit, delete_committed, fetch_committed, list_offsets
from runnel.client.positions import Bounds, Position, bounds, offset_of
from runnel.client.positions import From as Anchor
from runnel.client.share_groups import describe_share, move_share, share_places
from runnel.model.errors import GroupIsQueue, GroupNotEmpty, GroupNotFound
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api
from runnel.wire.kafka.error_codes import ErrorCode

__all__ = ["GroupAdmin", "GroupDescription", "GroupListing", "Lag", "Member", "SeekStep"]

SHARE = "share"  # the kind of a share group
EMPTY_STATES = ("Empty", "Dead")


class GroupListing(NamedTuple):
    name: str
    state: str  # Empty, Stable, PreparingRebalance, ...; "" if the broker does not say
    kind: str  # classic, consumer, share; "" if the broker does not say
    protocol: str  # "consumer" for groups that read topics


@dataclass(frozen=True, slots=True)
class Member:
    id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    name: str
    state: str
    kind: str
    assignor: str
    coordinator: str  # host:port
    members: tuple[Member, ...]


class Lag(NamedTuple):
    """How far a group is in one partition."""

    where: TopicPartition
    committed: int | None  # None: nothing yet
    limits: Bounds
    member: Member | None
    open: int = -1  # of a share group: messages that are not done, which it knows better

    @property
    def lag(self) -> int:
        """Messages that are kept and not committed."""
        if self.open >= 0:
            return self.open
        at = self.limits.start if self.committed is None else max(self.committed, self.limits.start)
        return max(0, self.limits.end - at)


class SeekStep(NamedTuple):
    """What a seek does to one partition."""

    where: TopicPartition
    before: int | None
    after: int
    limits: Bounds


class GroupAdmin:
    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.silent: list[int] = []  # brokers that did not answer when groups were last listed

    # --- looking
    async def groups(self) -> list[GroupListing]:
        """All groups: every broker is asked for those it coordinates; `silent` has those that did not answer."""
        await self.cluster.persist(lambda: self.cluster.refresh([]))
        answers = await of_each(self.cluster, self._groups_of)
        self.silent = [broker for broker, answer in answers.items() if answer is None]
        found = {group.name: group for answer in answers.values() for group in answer or ()}
        return [found[name] for name in sorted(found)]

    async def _groups_of(self, broker: int) -> list[GroupListing]:
        node = self.cluster.broker(broker)
        answer = await node.ask(Api.LIST_GROUPS, m.ListGroupsRequest(), m.ListGroupsResponse)
        check(answer.error_code, action="list the groups", broker=str(node))
        return [GroupListing(g.group_id, g.group_state, g.group_type, g.protocol_type) for g in answer.groups]

    async def describe(self, group: str) -> GroupDescription:
        """State and members of a group; GroupNotFound if there is none of this name."""

        async def attempt() -> GroupDescription:
            node = await self.cluster.coordinator(group)
            connection = await node.connection()
            if Api.CONSUMER_GROUP_DESCRIBE in connection.versions:
                modern = await self._describe_modern(node, group)
                if modern is not None:
                    return modern
            if Api.SHARE_GROUP_DESCRIBE in connection.versions:
                shared = await self._describe_share(node, group)
                if shared is not None:
                    return shared
            return await self._describe_classic(node, group)

        return await self.cluster.persist(attempt)

    async def _describe_modern(self, node: Node, group: str) -> GroupDescription | None:
        """A group of the consumer protocol (KIP-848); None if it is not one."""
        request = m.ConsumerGroupDescribeRequest(group_ids=[group])
        answer = await node.ask(Api.CONSUMER_GROUP_DESCRIBE, request, m.ConsumerGroupDescribeResponse)
        told = answer.groups[0]
        if told.error_code in (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNSUPPORTED_VERSION):
            return None
        if told.error_code:
            action = f"describe group {group!r}"
            self.cluster.raise_for(told.error_code, action=action, broker=node, message=told.error_message, group=group)
        members = tuple(
            Member(
                x.member_id,
                x.instance_id,
                x.client_id,
                x.client_host,
                tuple(TopicPartition(t.topic_name, n) for t in x.assignment.topic_partitions for n in t.partitions),
            )
            for x in told.members
        )
        return GroupDescription(group, told.group_state, "consumer", told.assignor_name, str(node), members)

    async def _describe_share(self, node: Node, group: str) -> GroupDescription | None:
        """A share group (KIP-932); None if it is not one."""
        told = await describe_share(self.cluster, node, group)
        if told is None:
            return None
        members = tuple(
            Member(
                x.member_id,
                None,
                x.client_id,
                x.client_host,
                tuple(TopicPartition(t.topic_name, n) for t in x.assignment.topic_partitions for n in t.partitions),
            )
            for x in told.members
        )
        return GroupDescription(group, told.group_state, SHARE, told.assignor_name, str(node), members)

    async def _describe_classic(self, node: Node, group: str) -> GroupDescription:
        answer = await node.ask(Api.DESCRIBE_GROUPS, m.DescribeGroupsRequest(groups=[group]), m.DescribeGroupsResponse)
        told = answer.groups[0]
        if told.error_code:
            self.cluster.raise_for(told.error_code, action=f"describe group {group!r}", broker=node, group=group)
        if told.group_state == "Dead":
            raise GroupNotFound(f"there is no group {group!r} on broker {node}: check the name")
        members = tuple(
            Member(
                x.member_id,
                x.group_instance_id,
                x.client_id,
                x.client_host,
                tuple(decode_assignment(x.member_assignment)),
            )
            for x in told.members
        )
        return GroupDescription(group, told.group_state, "classic", told.protocol_data, str(node), members)

    async def lags(self, description: GroupDescription) -> list[Lag]:
        """How far the group is in every partition that it committed or reads."""
        if description.kind == SHARE:
            return await self._share_lags(description)
        stored = await fetch_committed(self.cluster, description.name)
        readers = {where: member for member in description.members for where in member.partitions}
        everything = sorted({*stored, *readers})
        existing = [where for where in everything if await self._exists(where)]
        limits = await bounds(self.cluster, existing) if existing else {}
        return [
            Lag(where, stored[where].offset if where in stored else None, limits[where], readers.get(where))
            for where in existing
        ]

    async def _share_lags(self, description: GroupDescription) -> list[Lag]:
        """Several members may read a partition, so that it has no one reader."""
        places = await share_places(self.cluster, description.name)
        existing = [where for where in sorted(places) if await self._exists(where)]
        limits = await bounds(self.cluster, existing) if existing else {}
        return [Lag(where, places[where].offset, limits[where], None, places[where].lag) for where in existing]

    async def positions(
        self, group: str, partitions: Iterable[TopicPartition] | None = None
    ) -> dict[TopicPartition, int]:
        """Where a group of any kind is, in these partitions or in all in which it has been."""
        if await self._is_share(group):
            return {
                where: place.offset for where, place in (await share_places(self.cluster, group, partitions)).items()
            }
        stored = await fetch_committed(self.cluster, group, partitions)
        return {where: committed.offset for where, committed in stored.items()}

    async def _is_share(self, group: str) -> bool:
        description = await self._described(group)
        return description is not None and description.kind == SHARE

    async def _exists(self, where: TopicPartition) -> bool:
        """A group may remember partitions of a topic that was deleted."""
        known = self.cluster.known_topic(where.topic)
        if known is None:
            known = (await self.cluster.view([where.topic])).topics.get(where.topic)
        return known is not None and where.partition in known.partitions

    # --- changing
    async def plan_seek(self, group: str, wanted: Mapping[TopicPartition, Position]) -> list[SeekStep]:
        """What moving a group to these positions would change."""
        stored = await self.positions(group, list(wanted))
        limits = await bounds(self.cluster, list(wanted))
        times = {where: p.number for where, p in wanted.items() if p.anchor is Anchor.TIME}
        at_times = await list_offsets(self.cluster, times) if times else {}
        steps = []
        for where, position in sorted(wanted.items()):
            before = stored.get(where)
            at_time = at_times[where].offset if where in at_times else -1
            after = offset_of(position, limits[where], at_time=at_time, stored=before)
            inside = min(max(after, limits[where].start), limits[where].end)
            steps.append(SeekStep(where, before, inside, limits[where]))
        return steps

    async def seek(self, group: str, steps: Iterable[SeekStep]) -> None:
        """Carry out a plan; the group must have no members."""
        description = await self._described(group)
        if description is not None and description.members:
            count = len(description.members)
            raise GroupNotEmpty(
                f"group {group!r} has {count} member{'s' if count > 1 else ''} now, which would go on from where they "
                f"are: stop them first, then seek"
            )
        if description is not None and description.kind == SHARE:
            await move_share(self.cluster, group, {step.where: step.after for step in steps})
        else:
            await commit(self.cluster, group, {step.where: Committed(step.after) for step in steps})

    async def _described(self, group: str) -> GroupDescription | None:
        try:
            return await self.describe(group)
        except GroupNotFound:
            return None  # a seek may create a group

    async def delete(self, group: str) -> None:
        """Delete a group with all it committed; it must have no members."""

        async def attempt() -> None:
            node = await self.cluster.coordinator(group)
            request = m.DeleteGroupsRequest(groups_names=[group])
            answer = await node.ask(Api.DELETE_GROUPS, request, m.DeleteGroupsResponse)
            for result in answer.results:
                if result.error_code == ErrorCode.POLICY_VIOLATION:  # the answer has no room for a sentence
                    raise GroupIsQueue(
                        f"{group!r} is a queue, and what the group keeps is the queue's: delete the queue, with "
                        f"'runnel queue delete {group}'"
                    )
                if result.error_code:
                    action = f"delete group {group!r}"
                    self.cluster.raise_for(result.error_code, action=action, broker=node, group=group)

        await self.cluster.persist(attempt)

    async def delete_offsets(self, group: str, partitions: Iterable[TopicPartition]) -> None:
        """Forget what a group committed for these partitions."""
        await delete_committed(self.cluster, group, partitions)
