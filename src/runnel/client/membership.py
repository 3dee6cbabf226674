"""One member of a group of the classic protocol: join, sync, heartbeat, leave.

Rule 1: `join` alone changes the generation; the heartbeat only notes that it is over.
Rule 2: a commit carries the generation it belongs to, so one that comes too late is refused, not mixed in.

    out --join--> joined --heartbeat says rebalance--> due --join--> joined ...
                    +----- unknown member, fenced ---> out
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from runnel.client.assignors import (
    ASSIGNORS,
    PROTOCOL_TYPE,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from runnel.client.cluster import Cluster, Node
from runnel.client.errors import TopicMissing, check
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import Generation
from runnel.model.errors import (
    IllegalGeneration,
    InvalidConfig,
    RebalanceInProgress,
    RetriableError,
    RunnelError,
    UnknownMember,
)
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api
from runnel.wire.kafka.error_codes import ErrorCode


@dataclass(frozen=True, slots=True)
class GroupSettings:
    session_timeout_ms: int = 45_000  # a member that is silent so long is dead
    rebalance_timeout_ms: int = 60_000  # how long a rebalance waits for the slowest member
    heartbeat_ms: int = 3_000
    assignors: tuple[str, ...] = ("range", "roundrobin")
    instance_id: str | None = None  # static membership: a restart under the same id moves no partitions


class Membership:
    """A seat in a group."""

    def __init__(
        self, cluster: Cluster, group: str, topics: Sequence[str], settings: GroupSettings | None = None
    ) -> None:
        self.cluster = cluster
        self.group = group
        self.topics = sorted(set(topics))
        self.settings = settings or GroupSettings()
        unknown = [name for name in self.settings.assignors if name not in ASSIGNORS]
        if unknown:
            raise InvalidConfig(f"assignor can't be {unknown[0]!r}: allowed are {', '.join(ASSIGNORS)}")
        self.generation = Generation(-1, "", self.settings.instance_id)
        self.joined = False
        self.failure: RunnelError | None = None
        self._heartbeat: asyncio.Task[None] | None = None
        self._divided: dict[str, int] = {}  # as the leader: topic -> partitions that were divided
        self._lane = cluster.new_lane("group")  # JoinGroup waits for the others: nothing may wait behind it

    # --- joining
    async def join(self) -> list[TopicPartition]:
        """Take part in the next generation; the partitions this member reads in it."""
        await self._stop_heartbeat()
        self.joined = False

        async def attempt() -> list[TopicPartition]:
            try:
                return await self._join_once()
            except (UnknownMember, IllegalGeneration) as error:
                self._forget_member()
                raise RebalanceInProgress(str(error)) from error

        patience_ms = self.settings.rebalance_timeout_ms + self.cluster.settings.retry_timeout_ms
        assigned = await self.cluster.persist(attempt, timeout_ms=patience_ms)
        self.joined = True
        self._heartbeat = asyncio.get_running_loop().create_task(self._beat())
        return assigned

    def _forget_member(self) -> None:
        self.generation = Generation(-1, "", self.settings.instance_id)

    async def _join_once(self) -> list[TopicPartition]:
        node = await self.cluster.coordinator(self.group, lane=self._lane)
        answer = await self._ask_join(node)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.generation = self.generation._replace(member_id=answer.member_id)
            answer = await self._ask_join(node)
        if answer.error_code:
            self.cluster.raise_for(
                answer.error_code, action=f"join group {self.group!r}", broker=node, group=self.group
            )
        self.generation = Generation(answer.generation_id, answer.member_id, self.settings.instance_id)
        plan: list[m.SyncGroupRequest.SyncGroupRequestAssignment] = []
        self._divided = {}
        if answer.leader == answer.member_id and not answer.skip_assignment:
            plan = await self._plan(answer)
        return await self._sync(node, answer, plan)

    async def _ask_join(self, node: Node) -> m.JoinGroupResponse:
        settings = self.settings
        metadata = encode_subscription(self.topics)
        protocols = [
            m.JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata) for name in settings.assignors
        ]
        request = m.JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=settings.session_timeout_ms,
            rebalance_timeout_ms=settings.rebalance_timeout_ms,
            member_id=self.generation.member_id,
            group_instance_id=settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocols=protocols,
        )
        timeout_ms = settings.rebalance_timeout_ms + self.cluster.settings.request_timeout_ms
        return await node.ask(Api.JOIN_GROUP, request, m.JoinGroupResponse, timeout_ms=timeout_ms)

    async def _plan(self, answer: m.JoinGroupResponse) -> list[m.SyncGroupRequest.SyncGroupRequestAssignment]:
        """As the leader: divide the partitions among all members."""
        members = {member.member_id: decode_subscription(member.metadata) for member in answer.members}
        topics = sorted({topic for subscribed in members.values() for topic in subscribed})
        view = await self.cluster.refresh(topics)
        counts = {name: len(topic.partitions) for name, topic in view.topics.items()}
        self._divided = {name: counts.get(name, 0) for name in topics}
        assigned = ASSIGNORS[answer.protocol_name or self.settings.assignors[0]](members, counts)
        return [
            m.SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=encode_assignment(partitions))
            for member, partitions in assigned.items()
        ]

    async def _sync(
        self, node: Node, joined: m.JoinGroupResponse, plan: list[m.SyncGroupRequest.SyncGroupRequestAssignment]
    ) -> list[TopicPartition]:
        request = m.SyncGroupRequest(
            group_id=self.group,
            generation_id=self.generation.id,
            member_id=self.generation.member_id,
            group_instance_id=self.settings.instance_id,
            protocol_type=PROTOCOL_TYPE,
            protocol_name=joined.protocol_name,
            assignments=plan,
        )
        timeout_ms = self.settings.rebalance_timeout_ms + self.cluster.settings.request_timeout_ms
        answer = await node.ask(Api.SYNC_GROUP, request, m.SyncGroupResponse, timeout_ms=timeout_ms)
        if answer.error_code:
            self.cluster.raise_for(
                answer.error_code, action=f"sync with group {self.group!r}", broker=node, group=self.group
            )
        return decode_assignment(answer.assignment)

    # --- staying
    async def _beat(self) -> None:
        """Say that we live, until the generation is over."""
        while True:
            await asyncio.sleep(self.settings.heartbeat_ms / 1000)
            try:
                await self._beat_once()
                await self._look_for_new_partitions()
            except RebalanceInProgress:
                self.joined = False
                return
            except (UnknownMember, IllegalGeneration):
                self._forget_member()
                self.joined = False
                return
            except RetriableError:
                self.cluster.forget_coordinator(self.group)
            except RunnelError as error:
                self.failure, self.joined = error, False
                return

    async def _beat_once(self) -> None:
        node = await self.cluster.coordinator(self.group, lane=self._lane)
        request = m.HeartbeatRequest(
            group_id=self.group,
            generation_id=self.generation.id,
            member_id=self.generation.member_id,
            group_instance_id=self.settings.instance_id,
        )
        answer = await node.ask(
            Api.HEARTBEAT, request, m.HeartbeatResponse, timeout_ms=self.settings.session_timeout_ms
        )
        if answer.error_code:
            self.cluster.raise_for(
                answer.error_code, action=f"stay in group {self.group!r}", broker=node, group=self.group
            )

    async def _look_for_new_partitions(self) -> None:
        """The leader divides anew when a topic has grown, came or went.

        It looks as often as metadata gets too old; for a topic that is not there, with every heartbeat.
        """
        for name, count in self._divided.items():
            if await self._partition_count(name) != count:
                raise RebalanceInProgress(f"topic {name!r} has other partitions than group {self.group!r} divided")

    async def _partition_count(self, topic: str) -> int:
        try:
            return len((await self.cluster.topic(topic)).partitions)
        except TopicMissing:
            return 0

    async def _stop_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            await asyncio.gather(self._heartbeat, return_exceptions=True)
            self._heartbeat = None

    # --- leaving
    async def leave(self) -> None:
        """Give the seat up at once, so that others need not wait for it; a static member keeps its seat."""
        await self._stop_heartbeat()
        member_id, self.joined = self.generation.member_id, False
        if not member_id or self.settings.instance_id is not None:
            return
        node = await self.cluster.coordinator(self.group, lane=self._lane)
        request = m.LeaveGroupRequest(
            group_id=self.group, member_id=member_id, members=[m.LeaveGroupRequest.MemberIdentity(member_id=member_id)]
        )
        answer = await node.ask(Api.LEAVE_GROUP, request, m.LeaveGroupResponse)
        self._forget_member()
        gone = (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NOT_COORDINATOR)
        if answer.error_code not in gone:
            check(answer.error_code, action=f"leave group {self.group!r}", broker=str(node))

    async def close(self) -> None:
        """Leave, and let the connection go."""
        try:
            await self.leave()
        except RetriableError:
            return  # the session ends by itself
        finally:
            self.cluster.close_lane(self._lane)
