"""A member of a group of the new kind (KIP-848): it is told what to read with each heartbeat, and says what it gave up.

Rule 1: it stops reading a partition before it says that it gave it up.
Rule 2: one that is fenced forgets everything, and joins again as somebody new.
"""

from typing import Any

from runnel.client.cluster import Cluster
from runnel.client.consumer import Consumer, Message
from runnel.client.fetcher import FetchSettings
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import Committed, Generation, commit, fetch_committed
from runnel.client.positions import START, Position
from runnel.model.errors import RetriableError, RunnelError
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api
from runnel.wire.kafka.error_codes import ErrorCode

FENCED = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID)
LEAVING = -1


class ConsumerMember:
    """One seat. `beat` now and then, `poll` and `commit` in between."""

    def __init__(self, cluster: Cluster, group: str, topic: str, member_id: str, fetch: FetchSettings) -> None:
        self._cluster = cluster
        self._group = group
        self._topic = topic
        self._lane = cluster.new_lane("group")
        self.member_id = member_id  # chosen by the client itself, anew for each life
        self.epoch = 0
        self.beat_s = 0.5
        self.consumer = Consumer(cluster, fetch)
        self._told: list[TopicPartition] | None = None  # what the coordinator knows that we have
        self._committed: dict[TopicPartition, int] = {}

    async def beat(self) -> bool:
        """Say that we live; True if we have other partitions than before."""
        answer = await self._ask()
        if answer.error_code in FENCED:
            self.epoch, self._told = 0, None
            return await self._have([])
        if answer.error_code:
            self._cluster.raise_for(answer.error_code, action="stay", broker="coordinator", group=self._group)
        self.epoch, self.beat_s = answer.member_epoch, min(answer.heartbeat_interval_ms / 1000, 1.0)
        if answer.assignment is None:
            return False
        numbers = [number for topic in answer.assignment.topic_partitions for number in topic.partitions]
        return await self._have([TopicPartition(self._topic, number) for number in sorted(numbers)])

    async def _ask(self) -> Any:
        R = m.ConsumerGroupHeartbeatRequest
        mine = sorted(self.consumer.positions)
        node = await self._cluster.coordinator(self._group, lane=self._lane)
        topic = await self._cluster.topic(self._topic)
        owned = [R.TopicPartitions(topic_id=topic.id, partitions=[where.partition for where in mine])]
        request = R(
            group_id=self._group, member_id=self.member_id, member_epoch=self.epoch,
            rebalance_timeout_ms=3_000,
            subscribed_topic_names=[self._topic],
            topic_partitions=(owned if mine else []) if self.epoch == 0 or mine != self._told else None,
        )  # fmt: skip
        try:
            answer = await node.ask(Api.CONSUMER_GROUP_HEARTBEAT, request, m.ConsumerGroupHeartbeatResponse)
        except RetriableError:
            self._cluster.forget_coordinator(self._group)
            self._told = None  # it may or may not have heard us
            raise
        self._told = mine if not answer.error_code else None
        return answer

    async def _have(self, wanted: list[TopicPartition]) -> bool:
        """Read these: what we had goes on where it is, what is new begins where the group left off."""
        before = dict(self.consumer.positions)
        if sorted(before) == wanted:
            return False
        kept: dict[TopicPartition, Position | int] = {w: before[w] for w in wanted if w in before}
        await self.consumer.assign(kept)
        fresh = [where for where in wanted if where not in before]
        stored = await fetch_committed(self._cluster, self._group, fresh) if fresh else {}
        begin = {where: stored[where].offset if where in stored else START for where in fresh}
        self._committed = {w: at for w, at in self._committed.items() if w in kept}
        await self.consumer.assign({**self.consumer.positions, **begin})
        return True

    async def poll(self, count_max: int, timeout_ms: int) -> list[Message]:
        return await self.consumer.poll(count_max=count_max, timeout_ms=timeout_ms) if self.consumer.positions else []

    def uncommitted(self) -> dict[TopicPartition, int]:
        return {where: at for where, at in self.consumer.positions.items() if self._committed.get(where) != at}

    async def commit(self, offsets: dict[TopicPartition, int], timeout_ms: int) -> None:
        values = {where: Committed(at) for where, at in offsets.items()}
        who = Generation(self.epoch, self.member_id, None)
        await commit(self._cluster, self._group, values, generation=who, timeout_ms=timeout_ms)
        self._committed |= offsets

    async def leave(self) -> None:
        self.epoch = LEAVING
        try:
            await self._ask()
        except RunnelError:
            return  # its session ends by itself
        finally:
            self._cluster.close_lane(self._lane)
            await self.consumer.close()
