"""Administration of groups."""

from contextlib import suppress

import pytest
from tests.client.talk import OnCluster

from runnel.client.admin import Admin, NewTopic
from runnel.client.cluster import Cluster
from runnel.client.group_admin import GroupAdmin
from runnel.client.group_consumer import GroupConsumer
from runnel.client.metadata import TopicPartition
from runnel.client.offsets import Committed, commit, fetch_committed
from runnel.client.positions import END, START, From, Position
from runnel.client.producer import Producer
from runnel.model.errors import GroupNotEmpty, GroupNotFound
from runnel.wire.kafka import messages as m
from runnel.wire.kafka.apis import Api


async def fill(cluster: Cluster, name: str) -> list[TopicPartition]:
    """Two partitions with ten messages each."""
    await Admin(cluster).create_topics([NewTopic(name, partitions=2)])
    async with Producer(cluster) as producer:
        for n in range(20):
            await producer.send(name, b"x", partition=n % 2, timestamp_ms=1_000_000 + n)
    return [TopicPartition(name, 0), TopicPartition(name, 1)]


def test_committed_offsets_and_lag(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        first, second = await fill(cluster, name)
        await commit(cluster, name, {first: Committed(4, metadata="half"), second: Committed(10)})
        assert (await fetch_committed(cluster, name, [first]))[first][::2] == (4, "half")
        admin = GroupAdmin(cluster)
        assert name in [g.name for g in await admin.groups()]
        description = await admin.describe(name)
        assert (description.state, description.members) == ("Empty", ())
        lags = await admin.lags(description)
        assert [(lag.where, lag.committed, lag.lag) for lag in lags] == [(first, 4, 6), (second, 10, 0)]

    on_cluster(work)


def test_a_topic_that_is_gone_has_no_lag(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        first, _ = await fill(cluster, name)
        await commit(cluster, name, {first: Committed(4)})
        await Admin(cluster).delete_topics([name])
        admin = GroupAdmin(cluster)
        with suppress(GroupNotFound):  # the broker may forget a group together with its last offset
            assert await admin.lags(await admin.describe(name)) == []

    on_cluster(work)


def test_seeking_is_planned_first(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        first, second = await fill(cluster, name)
        admin = GroupAdmin(cluster)
        plan = await admin.plan_seek(name, {first: START, second: Position(From.END, 3)})
        assert [(step.where, step.before, step.after) for step in plan] == [(first, None, 0), (second, None, 7)]
        assert await fetch_committed(cluster, name) == {}
        await admin.seek(name, plan)
        stored = await fetch_committed(cluster, name)
        assert {where: c.offset for where, c in stored.items()} == {first: 0, second: 7}
        moved = await admin.plan_seek(name, {first: Position(From.TIME, 1_000_010), second: Position(From.STORED, -2)})
        assert [(step.before, step.after) for step in moved] == [(0, 5), (7, 5)]
        far = await admin.plan_seek(name, {first: Position(From.OFFSET, 999), second: END})
        assert [step.after for step in far] == [10, 10]

    on_cluster(work)


def test_a_group_with_members_is_left_alone(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        first, second = await fill(cluster, name)
        admin = GroupAdmin(cluster)
        async with GroupConsumer(cluster, name, [name]) as consumer:
            while not consumer.assignment:
                await consumer.poll(timeout_ms=1_000)
            plan = await admin.plan_seek(name, {first: START, second: START})
            with pytest.raises(GroupNotEmpty, match=f"group '{name}' has 1 member now"):
                await admin.seek(name, plan)
            with pytest.raises(GroupNotEmpty, match=f"can't delete group '{name}'"):
                await admin.delete(name)
            lags = await admin.lags(await admin.describe(name))
            assert [lag.member is not None for lag in lags] == [True, True]

    on_cluster(work)


def test_deleting(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        first, second = await fill(cluster, name)
        admin = GroupAdmin(cluster)
        await commit(cluster, name, {first: Committed(4), second: Committed(4)})
        await admin.delete_offsets(name, [first])
        assert list(await fetch_committed(cluster, name)) == [second]
        await admin.delete(name)
        assert name not in [g.name for g in await admin.groups()]
        with pytest.raises(GroupNotFound, match="check"):
            await admin.describe(name)
        with pytest.raises(GroupNotFound):
            await admin.delete(name)

    on_cluster(work)


async def beat(cluster: Cluster, group: str, epoch: int, topics: list[str] | None = None) -> int:
    """A heartbeat of the one member of a share group; its epoch."""
    request = m.ShareGroupHeartbeatRequest(
        group_id=group, member_id="m", member_epoch=epoch, subscribed_topic_names=topics
    )
    node = await cluster.coordinator(group)
    answer = await node.ask(Api.SHARE_GROUP_HEARTBEAT, request, m.ShareGroupHeartbeatResponse)
    if answer.error_code:
        cluster.raise_for(
            answer.error_code, action="send a heartbeat", broker=node, message=answer.error_message, group=group
        )
    return answer.member_epoch


def test_share_groups_are_looked_at_and_moved_like_others(on_cluster: OnCluster, name: str) -> None:
    async def work(cluster: Cluster) -> None:
        first, second = await fill(cluster, name)
        admin = GroupAdmin(cluster)
        assert await cluster.persist(lambda: beat(cluster, name, 0, [name])) == 1
        described = await admin.describe(name)
        assert (described.kind, described.state, described.assignor) == ("share", "Stable", "simple")
        assert [each.partitions for each in described.members] == [(first, second)]
        lags = await admin.lags(described)
        assert [(lag.where, lag.committed, lag.lag, lag.member) for lag in lags] == [
            (first, 10, 0, None), (second, 10, 0, None)
        ]  # fmt: skip
        plan = await admin.plan_seek(name, {first: Position(From.OFFSET, 4)})
        with pytest.raises(GroupNotEmpty):
            await admin.seek(name, plan)
        await beat(cluster, name, -1)
        await admin.seek(name, plan)
        assert await admin.positions(name) == {first: 4, second: 10}
        assert [lag.lag for lag in await admin.lags(await admin.describe(name))] == [6, 0]
        assert [g.kind for g in await admin.groups() if g.name == name] == ["share"]
        await admin.delete(name)
        with pytest.raises(GroupNotFound):
            await admin.describe(name)

    on_cluster(work)
